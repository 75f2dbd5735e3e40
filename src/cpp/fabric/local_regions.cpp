#include "fabric/local_regions.h"

#include <algorithm>
#include <atomic>
#include <mutex>

namespace fab {
namespace {

std::atomic<std::uint32_t> last_context{0};

// Whether [address, address + length) lies in `buffer`, without a sum that could wrap (SYNC-10).
bool holds(const iovec& buffer, std::uint64_t address, std::uint64_t length) noexcept {
  const std::uint64_t offset = address - reinterpret_cast<std::uint64_t>(buffer.iov_base);
  return offset < buffer.iov_len && length <= buffer.iov_len - offset;
}

}  // namespace

LocalRegions::Entry LocalRegions::insert(std::span<const iovec> buffers) {
  const std::lock_guard lock(mutex_);
  std::uint32_t context;
  do context = last_context.fetch_add(1, std::memory_order_relaxed) + 1;
  while (context == 0 || context == ~0u || buffers_.contains(context));
  for (const iovec& buffer : buffers) buffers_.emplace(context, buffer);
  return {*this, context};
}

void LocalRegions::Entry::reset() noexcept {
  LocalRegions* const regions = std::exchange(regions_, nullptr);
  // In a child of fork() the parent's lock may be taken for ever, and the regions are the parent's.
  if (!regions || regions->fork_generation_ != fork_generation()) return;
  const std::lock_guard lock(regions->mutex_);
  regions->buffers_.erase(context_);
}

std::size_t LocalRegions::first_outside(std::span<const Triplet> segments) const noexcept {
  const std::shared_lock lock(mutex_);
  const auto bad = std::ranges::find_if(segments, [&](const Triplet& segment) {
    if (segment.segment_length == 0) return false;
    const auto [first, last] = buffers_.equal_range(segment.lmr_context);
    return std::none_of(first, last, [&](const auto& entry) {
      return holds(entry.second, segment.virtual_address, segment.segment_length);
    });
  });
  return static_cast<std::size_t>(bad - segments.begin());
}

std::vector<std::uint32_t> LocalRegions::holding(std::uint64_t address, std::uint64_t length) const {
  const std::shared_lock lock(mutex_);
  std::vector<std::uint32_t> contexts;
  for (const auto& [context, buffer] : buffers_)
    if (holds(buffer, address, length)) contexts.push_back(context);
  return contexts;
}

}  // namespace fab
