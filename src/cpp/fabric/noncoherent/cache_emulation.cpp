#include "fabric/noncoherent/cache_emulation.h"

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/locks/mutex.h"

namespace fab {
namespace {

constexpr std::uint32_t kLongestLine = 4096;

SyncReport::Event event_of(OpCode op) noexcept {
  if (op == OpCode::read) return SyncReport::Event::get;
  return op == OpCode::write ? SyncReport::Event::put : SyncReport::Event::atomic;
}

}  // namespace

CacheEmulation::CacheEmulation(const CacheModel& model) : model_(model) {
  if (model.line == 0 || model.line > kLongestLine || (model.line & (model.line - 1)) != 0)
    throw Error(Errc::invalid, "a cache line of " + std::to_string(model.line) +
                                   " bytes; it is a power of two from 1 to " + std::to_string(kLongestLine));
}

std::shared_ptr<EmulatedRegion> CacheEmulation::open(std::uint32_t context, std::span<const iovec> buffers,
                                                     bool mappable) {
  auto region = std::make_shared<EmulatedRegion>(context, buffers, mappable);
  const LockGuard lock(mutex_);
  by_context_[context] = region;
  return region;
}

void CacheEmulation::watch(std::uint32_t index, const std::shared_ptr<EmulatedRegion>& region,
                           std::uint64_t offset) {
  if (!model_.check) return;
  const LockGuard lock(mutex_);
  if (region)
    by_index_[index] = {.region = region, .offset = offset};
  else
    by_index_.erase(index);
}

void CacheEmulation::close(std::uint32_t context, EmulatedRegion& region) {
  const LockGuard lock(mutex_);
  by_context_.erase(context);
  const LockGuard region_lock(region.mutex_);
  region.checker_.finish(missing_);
  region.open_ = false;
}

SyncReports CacheEmulation::synchronise(SyncSide side, std::span<const Triplet> segments, bool deliberate) {
  std::vector<std::shared_ptr<EmulatedRegion>> regions(segments.size());
  {
    const LockGuard lock(mutex_);
    for (std::size_t i = 0; i < segments.size(); ++i) {
      if (segments[i].segment_length == 0) continue;
      if (i != 0 && segments[i].lmr_context == segments[i - 1].lmr_context && regions[i - 1])
        regions[i] = regions[i - 1];
      else if (const auto found = by_context_.find(segments[i].lmr_context); found != by_context_.end())
        regions[i] = found->second.lock();
    }
  }
  SyncStats done;
  SyncReports found;
  bool useful = false;
  std::optional<SyncReport> needless;
  for (std::size_t i = 0; i < segments.size(); ++i) {
    if (!regions[i]) continue;
    EmulatedRegion& region = *regions[i];
    const LockGuard lock(region.mutex_);
    if (!region.open_) continue;
    const Extent range = region.memory_.locate(segments[i]);
    const auto effect = region.memory_.synchronise(side, range, model_.line);
    // A cache at the CPU holds back the CPU's stores; a cache at the device holds back what peers put.
    const bool holds_back = (side == SyncSide::read) == (model_.place == CacheModel::Place::cpu);
    ++(holds_back ? done.flushes : done.invalidations);
    done.bytes_to_device += effect.to_device;
    done.bytes_to_cpu += effect.to_cpu;
    if (!model_.check) continue;
    useful |= region.checker_.called(side, range, effect, found);
    if (!needless)
      needless = {.kind = SyncReport::Kind::needless,
                  .side = side,
                  .region = segments[i].lmr_context,
                  .start = range.start,
                  .end = range.end,
                  .event = side == SyncSide::read ? SyncReport::Event::sync_rdma_read
                                                  : SyncReport::Event::sync_rdma_write};
  }
  if (needless && deliberate && !useful) found.push_back(*needless);

  const LockGuard lock(mutex_);
  ++(side == SyncSide::read ? stats_.read_calls : stats_.write_calls);
  stats_.flushes += done.flushes;
  stats_.invalidations += done.invalidations;
  stats_.bytes_to_device += done.bytes_to_device;
  stats_.bytes_to_cpu += done.bytes_to_cpu;
  return found;
}

SyncStats CacheEmulation::stats() const {
  const LockGuard lock(mutex_);
  return stats_;
}

SyncReports CacheEmulation::missing(bool open) {
  const LockGuard lock(mutex_);
  if (open)
    for (const auto& [context, known] : by_context_)
      if (const auto region = known.lock()) {
        const LockGuard region_lock(region->mutex_);
        region->checker_.finish(missing_);
      }
  return std::exchange(missing_, {});
}

std::shared_ptr<EmulatedRegion> CacheEmulation::watched(std::uint32_t index, std::uint64_t& offset) const {
  const LockGuard lock(mutex_);
  const auto found = by_index_.find(index);
  if (found == by_index_.end()) return nullptr;
  offset += found->second.offset;
  return found->second.region.lock();
}

void CacheEmulation::admitted(std::uint32_t index, OpCode op, std::uint64_t offset,
                              std::uint64_t length) noexcept try {
  const auto region = watched(index, offset);
  if (!region) return;
  const LockGuard lock(region->mutex_);
  if (!region->open_) return;
  const Extent unseen = region->memory_.stored({offset, offset + length});
  if (!unseen.empty()) region->checker_.met(event_of(op), unseen);
} catch (const std::bad_alloc&) {
  return;  // the report is lost
}

void CacheEmulation::stored(std::uint32_t index, OpCode op, std::uint64_t offset,
                            std::uint64_t length) noexcept try {
  const auto region = length ? watched(index, offset) : nullptr;
  if (!region) return;
  const LockGuard lock(region->mutex_);
  region->checker_.put(event_of(op), {offset, offset + length});
} catch (const std::bad_alloc&) {
  return;  // the checker does not know of the put
}

}  // namespace fab
