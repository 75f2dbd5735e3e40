#pragma once

#include <sys/uio.h>

#include <cstdint>
#include <shared_mutex>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/process.h"
#include "fabric/sync_types.h"

namespace fab {

// The open regions of a domain by their lmr_context, for those who name local memory by triplets. Contexts
// come from one sequence for the whole process, so that none of another domain, or of a region that is
// closed, is taken for one of this domain (SYNC-9, SYNC-11). Safe from any thread.
class LocalRegions {
 public:
  // Keeps one region open under its context, which is never 0 or 2^32 - 1, until reset() or its end.
  class Entry {
   public:
    Entry() noexcept = default;
    Entry(Entry&& other) noexcept
        : regions_(std::exchange(other.regions_, nullptr)), context_(other.context_) {}
    Entry& operator=(Entry&& other) noexcept {
      reset();
      regions_ = std::exchange(other.regions_, nullptr);
      context_ = other.context_;
      return *this;
    }
    ~Entry() { reset(); }
    std::uint32_t context() const noexcept { return context_; }  // also after reset()
    void reset() noexcept;

   private:
    friend class LocalRegions;
    Entry(LocalRegions& regions, std::uint32_t context) noexcept : regions_(&regions), context_(context) {}
    LocalRegions* regions_ = nullptr;
    std::uint32_t context_ = 0;
  };
  Entry insert(std::span<const iovec> buffers);
  // The first triplet that names a byte outside of its region, or no open region; `segments.size()` if all
  // are good.
  std::size_t first_outside(std::span<const Triplet> segments) const noexcept;
  // The open regions that hold [address, address + length) whole. Looks at all of them.
  std::vector<std::uint32_t> holding(std::uint64_t address, std::uint64_t length) const;

 private:
  const std::uint32_t fork_generation_ = fork_generation();
  mutable std::shared_mutex mutex_;
  std::unordered_multimap<std::uint32_t, iovec> buffers_;  // a region of several buffers has several entries
};

}  // namespace fab
