#include "fabric/memory/local_regions.h"

#include <algorithm>
#include <atomic>

#include "base/locks/mutex.h"

namespace fab {
namespace {

std::atomic<std::uint32_t> last_context{0};

// Whether [address, address + length) lies in one of `buffers`. Computes no sum, which could wrap.
bool holds(const BufferList& buffers, std::uint64_t address, std::uint64_t length) noexcept {
  return std::ranges::any_of(buffers.view(), [&](const iovec& buffer) {
    const std::uint64_t offset = address - reinterpret_cast<std::uint64_t>(buffer.iov_base);
    return offset < buffer.iov_len && length <= buffer.iov_len - offset;
  });
}

}  // namespace

std::uint32_t LocalRegions::insert(const BufferList& buffers) {
  const LockGuard lock(mutex_);
  for (;;) {
    const std::uint32_t context = last_context.fetch_add(1, std::memory_order_relaxed) + 1;
    if (context == 0 || context == ~0u) continue;
    const std::uint32_t number = context / kPage;
    if (number != newest_) {
      if (const auto left = pages_.find(newest_); left != pages_.end() && left->second.open == 0)
        pages_.erase(left);
      newest_ = number;
    }
    Page& page = pages_[number];
    const BufferList*& region = page.regions[context % kPage];
    if (region) continue;
    region = &buffers;
    ++page.open;
    size_.fetch_add(1, std::memory_order_relaxed);
    return context;
  }
}

void LocalRegions::erase(std::uint32_t context) noexcept {
  // In a child of fork() the parent's lock may be taken for ever, and the regions are the parent's.
  if (fork_generation_ != fork_generation()) return;
  const LockGuard lock(mutex_);
  size_.fetch_sub(1, std::memory_order_relaxed);
  const auto page = pages_.find(context / kPage);
  page->second.regions[context % kPage] = nullptr;
  if (--page->second.open == 0 && page->first != newest_) pages_.erase(page);
}

const BufferList* LocalRegions::find(std::uint32_t context) const noexcept {
  const auto page = pages_.find(context / kPage);
  return page == pages_.end() ? nullptr : page->second.regions[context % kPage];
}

std::size_t LocalRegions::first_outside(std::span<const Triplet> segments) const noexcept {
  if (segments.empty()) return 0;
  const SharedLock lock(mutex_);
  const auto bad = std::ranges::find_if(segments, [&](const Triplet& segment) FAB_REQUIRES_SHARED(mutex_) {
    if (segment.segment_length == 0) return false;
    const BufferList* region = find(segment.lmr_context);
    return !region || !holds(*region, segment.virtual_address, segment.segment_length);
  });
  return static_cast<std::size_t>(bad - segments.begin());
}

std::vector<std::uint32_t> LocalRegions::holding(std::uint64_t address, std::uint64_t length) const {
  const SharedLock lock(mutex_);
  std::vector<std::uint32_t> contexts;
  for (const auto& [number, page] : pages_)
    for (std::uint32_t i = 0; i < kPage; ++i)
      if (page.regions[i] && holds(*page.regions[i], address, length)) contexts.push_back(number * kPage + i);
  return contexts;
}

}  // namespace fab
