#include "providers/verbs/device/regions.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <exception>

#include "base/bytes/random.h"
#include "base/bytes/wire.h"
#include "base/locks/mutex.h"
#include "fabric/memory/dma_buf.h"
#include "fabric/registration/cache_settings.h"
#include "fabric/types/error.h"
#include "fabric/types/versions.h"

namespace fab::verbs {
namespace {

// Regions that are searched for local memory that the device does not know yet.
constexpr std::uint32_t kMostSearched = 4096;

std::unique_ptr<RegistrationCache> open_cache_of(const DomainOptions& options, const Enroller& enroller) {
  DomainCache opened = open_cache(CacheSettings::of(options), enroller);
  if (opened.cache) return std::move(opened.cache);
  return std::make_unique<RegistrationCache>(CacheLimits{.max_idle = 0}, enroller, nullptr);
}

}  // namespace

void Description::encode(std::byte* out) const {
  WireWriter writer;
  writer.put(versions::kVerbsDescription)
      .put(piece_count)
      .put(static_cast<std::uint8_t>(atomics))
      .put(std::uint8_t{0});
  writer.put(access).put(base);
  for (std::size_t i = 0; i < piece_count; ++i)
    writer.put(pieces[i].address).put(pieces[i].length).put(pieces[i].rkey);
  const std::string bytes = writer.take();
  std::memset(out, 0, kDescriptionBytes);
  std::memcpy(out, bytes.data(), std::min(bytes.size(), kDescriptionBytes));
}

std::optional<Description> Description::decode(const std::byte* in) noexcept {
  WireReader reader({reinterpret_cast<const char*>(in), kDescriptionBytes});
  Description told;
  if (reader.get<std::uint8_t>() != versions::kVerbsDescription) return {};
  told.piece_count = reader.get<std::uint8_t>();
  told.atomics = reader.get<std::uint8_t>() != 0;
  reader.get<std::uint8_t>();
  told.access = reader.get<std::uint32_t>();
  told.base = reader.get<std::uint64_t>();
  if (told.piece_count == 0 || told.piece_count > kMostPieces) return {};
  std::uint64_t sum = 0;
  for (std::size_t i = 0; i < told.piece_count; ++i) {
    Piece& piece = told.pieces[i];
    piece.address = reader.get<std::uint64_t>();
    piece.length = reader.get<std::uint64_t>();
    piece.rkey = reader.get<std::uint32_t>();
    if (piece.length == 0 || piece.address + piece.length < piece.address || sum + piece.length < sum)
      return {};
    sum += piece.length;
  }
  return reader.ok() ? std::optional(told) : std::nullopt;
}

ibv_mr* register_memory(const Library& library, ibv_pd& pd, AddressRange range, std::uint64_t shown,
                        int access) noexcept {
  if (const auto place = DmaBuf::find(range)) {
    errno = EOPNOTSUPP;
    // On-demand paging is not for a dma-buf: its exporter decides where the pages are.
    if (ibv_mr* const made = library.reg_dmabuf_mr
                                 ? library.reg_dmabuf_mr(&pd, place->offset, range.length, shown,
                                                         place->fd.get(), access & ~IBV_ACCESS_ON_DEMAND)
                                 : nullptr)
      return made;
    if (place->hidden) return nullptr;
  }
  // NOLINTNEXTLINE(performance-no-int-to-ptr): where the memory is
  void* const start = reinterpret_cast<void*>(range.start);
  if ((access & IBV_ACCESS_OPTIONAL_RANGE) == 0 && shown == range.start)
    return library.reg_mr(&pd, start, range.length, access);
  return library.reg_mr_iova2(&pd, start, range.length, shown, static_cast<unsigned>(access));
}

std::uint64_t shown_address(std::uint64_t start) noexcept {
  // The address of a page keeps its place within the largest page that there is, so that a device can
  // describe memory in huge pages by as few entries as under its own address. No device cuts addresses of 62
  // bits, and none of them wraps around with the length.
  constexpr unsigned kLargestPage = 30, kBits = 62;
  constexpr std::uint64_t kWithin = (std::uint64_t{1} << kLargestPage) - 1;
  return (random_u64() >> (64 - kBits) & ~kWithin) | (start & kWithin);
}

DeviceRegions::DeviceRegions(ibv_pd& pd, RegionView regions, const Traits& traits,
                             const DomainOptions& options)
    : pd_(pd),
      regions_(regions),
      traits_(traits),
      cache_(open_cache_of(options, {.enroll = [this](AddressRange range, const MemoryUse& use) -> void* {
                                       return enroll(range, use);
                                     },
                                     .withdraw = [this](void* mr) { dereg_mr(mr); }})),
      atomics_(traits.atomics) {}

void* DeviceRegions::enroll(AddressRange range, const MemoryUse& use) {
  ibv_mr* const made = reg_mr(range, range.start, use.rights);
  if (!made)
    throw Error(Errc::no_memory, "the device does not take the memory: " + std::string(std::strerror(errno)));
  ++made_;
  ++leased_;
  return made;
}

void DeviceRegions::dereg_mr(void* mr) noexcept {
  OwnMr(static_cast<ibv_mr*>(mr)).reset();
  --leased_;
}

RegistrationCache::Lease DeviceRegions::lend(const void* at, std::uint64_t length, bool stores) {
  return cache_->acquire({.start = reinterpret_cast<std::uint64_t>(at), .length = length},
                         {.rights = static_cast<std::uint16_t>(stores ? IBV_ACCESS_LOCAL_WRITE : 0)});
}

bool DeviceRegions::reaches_hidden(AddressRange range, bool stores) noexcept try {
  // NOLINTNEXTLINE(performance-no-int-to-ptr): where the memory is
  lend(reinterpret_cast<const void*>(range.start), range.length, stores);
  return true;
} catch (const std::exception&) {
  return false;
}

std::uint32_t DeviceRegions::key_of(const RegistrationCache::Lease& lease) noexcept {
  return static_cast<const ibv_mr*>(lease.handle())->lkey;
}

bool DeviceRegions::take(std::uint32_t region, Registered& into) {
  const RegionEntry& entry = regions_.entry(region);
  // If the owner has to see, allow or count each access, they come as messages.
  if ((entry.flags & (region_flag::kObserved | region_flag::kSpans)) != 0 ||
      entry.counters[0].load(std::memory_order_acquire) != 0 || entry.length == 0)
    return false;
  iovec pieces[RegionView::kMaxRegionPieces];
  const std::size_t count = regions_.pieces(entry, 0, entry.length, pieces);
  constexpr std::uint32_t kStores = access::kRemoteWrite | access::kWrite | access::kRecv;
  int rights = (entry.access & kStores) != 0 ? IBV_ACCESS_LOCAL_WRITE : 0;
  if ((entry.access & access::kRemoteRead) != 0) rights |= IBV_ACCESS_REMOTE_READ;
  if ((entry.access & access::kRemoteWrite) != 0) rights |= IBV_ACCESS_REMOTE_WRITE;
  const bool atomics = atomics_ && (entry.access & access::kRemoteWrite) != 0 && !claimed(region);
  if (atomics) rights |= IBV_ACCESS_REMOTE_ATOMIC;
  for (std::size_t i = 0; i < count; ++i) {
    if (pieces[i].iov_len == 0) continue;
    const AddressRange range{.start = reinterpret_cast<std::uint64_t>(pieces[i].iov_base),
                             .length = pieces[i].iov_len};
    const std::uint64_t shown = traits_.chosen_addresses ? shown_address(range.start) : range.start;
    OwnMr mr(reg_mr(range, shown, rights));
    // The device refuses too much memory, and pages that are not there. Messages serve the region then.
    if (!mr) return false;
    into.pieces.push_back({shown, range.length, std::move(mr)});
    ++made_;
  }
  into.access = entry.access;
  into.told_atomics = atomics;
  return true;
}

DeviceRegions::Registered* DeviceRegions::find(std::uint32_t region) {
  const std::uint64_t state = regions_.entry(region).state.load(std::memory_order_seq_cst);
  if (const auto known = registered_.find(region); known != registered_.end()) {
    if (known->second.state == state) {
      reused_ += known->second.pieces.size();
      return &known->second;
    }
    registered_.erase(known);
  }
  Registered made;
  made.state = state;
  if (!take(region, made)) return nullptr;
  return &registered_.emplace(region, std::move(made)).first->second;
}

bool DeviceRegions::describe(std::uint32_t region, std::byte* out) noexcept try {
  const LockGuard lock(mutex_);
  const RegionEntry& entry = regions_.entry(region);
  // A counter that was bound meanwhile counts each access, so the device must not reach the region any more.
  if (entry.counters[0].load(std::memory_order_acquire) != 0) {
    registered_.erase(region);
    return false;
  }
  Registered* const registered = find(region);
  if (!registered || registered->pieces.empty() || registered->pieces.size() > Description::kMostPieces)
    return false;
  Description told{.base = entry.base,
                   .access = registered->access,
                   .atomics = registered->told_atomics,
                   .piece_count = static_cast<std::uint8_t>(registered->pieces.size())};
  for (std::size_t i = 0; i < registered->pieces.size(); ++i) {
    const Piece& piece = registered->pieces[i];
    told.pieces[i] = {piece.address, piece.length, piece.mr->rkey};
  }
  told.encode(out);
  return true;
} catch (const std::exception&) {
  return false;
}

// Whether the processor cannot reach memory of the region. Then it cannot do the atomics instead of the
// devices.
bool DeviceRegions::hidden(std::uint32_t region) const noexcept {
  const RegionEntry& entry = regions_.entry(region);
  iovec pieces[RegionView::kMaxRegionPieces];
  const std::size_t count = regions_.pieces(entry, 0, entry.length, pieces);
  return std::any_of(pieces, pieces + count, [](const iovec& piece) {
    return DmaBuf::hides({.start = reinterpret_cast<std::uint64_t>(piece.iov_base), .length = piece.iov_len});
  });
}

// Whether the two share memory, as a region does with its grants.
bool DeviceRegions::overlap(std::uint32_t left, std::uint32_t right) const noexcept {
  iovec pieces[RegionView::kMaxRegionPieces], others[RegionView::kMaxRegionPieces];
  const RegionEntry &entry = regions_.entry(left), &other = regions_.entry(right);
  const std::span mine(pieces, regions_.pieces(entry, 0, entry.length, pieces));
  const std::span theirs(others, regions_.pieces(other, 0, other.length, others));
  return std::ranges::any_of(mine, [&](const iovec& piece) {
    return std::ranges::any_of(theirs, [&](const iovec& its) {
      const auto begin = reinterpret_cast<std::uint64_t>(piece.iov_base);
      const auto its_begin = reinterpret_cast<std::uint64_t>(its.iov_base);
      return begin < its_begin + its.iov_len && its_begin < begin + piece.iov_len;
    });
  });
}

// Whether the processor does atomics on some of the region's memory, under this key or another one.
bool DeviceRegions::claimed(std::uint32_t region) const noexcept {
  return std::ranges::any_of(claimed_, [&](std::uint32_t other) { return overlap(region, other); });
}

void DeviceRegions::claim_atomics(std::uint32_t region) noexcept {
  const LockGuard lock(mutex_);
  if (!atomics_ || claimed_.contains(region) || hidden(region)) return;
  try {
    claimed_.insert(region);
  } catch (const std::exception&) {
    // There is no memory to note the region, so the processor does the atomics of all regions.
    atomics_ = false;
  }
  // A peer that was told that its device may update the region meets an unknown key, and asks again.
  std::erase_if(registered_,
                [&](const auto& known) { return known.second.told_atomics && overlap(region, known.first); });
}

void DeviceRegions::forget(std::uint32_t region) noexcept {
  const LockGuard lock(mutex_);
  claimed_.erase(region);
  registered_.erase(region);
  std::erase_if(local_, [region](const auto& entry) { return entry.second.region == region; });
}

const DeviceRegions::Local* DeviceRegions::search(std::uint64_t at, std::uint64_t length) const noexcept {
  const auto next = local_.upper_bound(at);
  if (next == local_.begin()) return nullptr;
  const auto& [start, local] = *std::prev(next);
  const bool holds = at - start <= local.length && length <= local.length - (at - start);
  const bool open = regions_.entry(local.region).state.load(std::memory_order_seq_cst) == local.state;
  return holds && open ? &local : nullptr;
}

const DeviceRegions::Local* DeviceRegions::look_for(std::uint64_t at, std::uint64_t length) {
  iovec pieces[RegionView::kMaxRegionPieces];
  for (std::uint32_t region = 0; region < kMostSearched; ++region) {
    const RegionEntry& entry = regions_.entry(region);
    const std::uint64_t state = entry.state.load(std::memory_order_seq_cst);
    if (state == 0) break;  // neither this entry nor any behind it was ever used
    // The region of a grant is an entry as well, with all its memory and its rights.
    if (status_of(state) != RegionStatus::enabled || (entry.flags & region_flag::kGrant) != 0) continue;
    const std::size_t count = regions_.pieces(entry, 0, entry.length, pieces);
    for (std::size_t i = 0; i < count; ++i) {
      const auto start = reinterpret_cast<std::uint64_t>(pieces[i].iov_base);
      const std::uint64_t size = pieces[i].iov_len;
      if (at < start || at - start > size || length > size - (at - start)) continue;
      constexpr std::uint32_t kStores = access::kRemoteWrite | access::kWrite | access::kRecv;
      Local local{
          .length = size, .state = state, .region = region, .writable = (entry.access & kStores) != 0};
      local.lease = lend(pieces[i].iov_base, size, local.writable);
      return &local_.insert_or_assign(start, std::move(local)).first->second;
    }
  }
  return nullptr;
}

std::optional<std::uint32_t> DeviceRegions::local_key(const void* at, std::uint64_t length,
                                                      bool stores) noexcept try {
  const auto address = reinterpret_cast<std::uint64_t>(at);
  const LockGuard lock(mutex_);
  const Local* local = search(address, length);
  if (local)
    ++reused_;
  else
    local = look_for(address, length);
  if (!local || (stores && !local->writable)) return {};
  return key_of(local->lease);
} catch (const std::exception&) {
  return {};
}

LinkRegistrations DeviceRegions::registrations(const std::string& link) const {
  const LockGuard lock(mutex_);
  // stats() comes first, because it withdraws what has gone with its memory.
  const std::uint64_t hits = cache_->stats().hits;
  LinkRegistrations counts{.link = link, .held = leased_, .made = made_, .reused = reused_ + hits};
  for (const auto& [region, registered] : registered_) counts.held += registered.pieces.size();
  return counts;
}

}  // namespace fab::verbs
