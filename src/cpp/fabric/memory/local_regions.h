#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

#include "base/locks/mutex.h"
#include "base/process/process.h"
#include "fabric/memory/buffer_list.h"
#include "fabric/types/sync_types.h"

namespace fab {

// The open regions of a domain by their lmr_context, for callers that name local memory by triplets. Contexts
// come from one sequence for the whole process. So until 2^32 more were made, the context of another domain's
// region, or of a closed one, is not taken for one of this domain. Safe from any thread.
class LocalRegions {
 public:
  // Opens a region under a new context, which is never 0 or 2^32 - 1. `buffers` stay where they are until
  // erase().
  std::uint32_t insert(const BufferList& buffers);
  void erase(std::uint32_t context) noexcept;
  std::uint32_t size() const noexcept { return size_.load(std::memory_order_relaxed); }
  // The first triplet that names a byte outside of its region, or no open region; `segments.size()` if all
  // are good.
  std::size_t first_outside(std::span<const Triplet> segments) const noexcept;
  // The open regions that hold [address, address + length) whole. Looks at all of them.
  std::vector<std::uint32_t> holding(std::uint64_t address, std::uint64_t length) const;

 private:
  // Contexts that follow each other share a page, so that opening and closing many regions stays in the
  // cache.
  static constexpr std::uint32_t kPage = 64;
  struct Page {
    std::array<const BufferList*, kPage> regions{};  // null: none is open under this context
    std::uint32_t open = 0;
  };
  const BufferList* find(std::uint32_t context) const noexcept FAB_REQUIRES_SHARED(mutex_);

  const std::uint32_t fork_generation_ = fork_generation();
  mutable SharedMutex mutex_;
  std::unordered_map<std::uint32_t, Page> pages_
      FAB_GUARDED_BY(mutex_);  // by context / kPage; only the newest may be empty
  std::uint32_t newest_ FAB_GUARDED_BY(mutex_) = 0;
  std::atomic<std::uint32_t> size_{0};
};

}  // namespace fab
