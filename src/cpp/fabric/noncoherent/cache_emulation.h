#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <unordered_map>

#include "base/lifetime.h"
#include "base/locks/mutex.h"
#include "fabric/noncoherent/access_observer.h"
#include "fabric/noncoherent/shadow_memory.h"
#include "fabric/noncoherent/sync_checker.h"
#include "fabric/types/sync_types.h"

namespace fab {

// A region of a non-coherent domain that peers reach.
class EmulatedRegion {
 public:
  EmulatedRegion(std::uint32_t context, std::span<const iovec> buffers, bool mappable)
      : memory_(buffers, mappable), checker_(context) {}
  std::span<const iovec> device() const noexcept FAB_LIFETIME_BOUND { return memory_.device(); }
  std::int32_t file() const noexcept { return memory_.file(); }
  std::uint64_t file_offset() const noexcept { return memory_.file_offset(); }

 private:
  friend class CacheEmulation;
  Mutex mutex_;                              // guards all below
  bool open_ FAB_GUARDED_BY(mutex_) = true;  // false: the user's memory may be gone
  ShadowMemory memory_;
  SyncChecker checker_ FAB_GUARDED_BY(mutex_);
};

// What a non-coherent domain is made of: the two views of its regions, and the checker. Safe from any
// thread.
class CacheEmulation final : public AccessObserver {
 public:
  explicit CacheEmulation(const CacheModel& model);  // throws Error(invalid) for a line size that cannot be
  const CacheModel& model() const noexcept FAB_LIFETIME_BOUND { return model_; }

  std::shared_ptr<EmulatedRegion> open(std::uint32_t context, std::span<const iovec> buffers, bool mappable);
  // From now on accesses of peers to entry `index` of the region table, which begins at `offset` of `region`,
  // are accesses to that. Null: the entry is not watched any more.
  void watch(std::uint32_t index, const std::shared_ptr<EmulatedRegion>& region, std::uint64_t offset = 0);
  // To be called when no peer accesses the region any more. On return nothing touches the user's memory.
  void close(std::uint32_t context, EmulatedRegion& region);

  // `segments` were found good before; those of regions that have been closed since are skipped. A call that
  // is not `deliberate` is never needless. Returns what the checker reports of the call.
  SyncReports synchronise(SyncSide side, std::span<const Triplet> segments, bool deliberate);
  SyncStats stats() const;
  // Calls that were missing, each reported once: those for regions that were closed, and, with `open`, those
  // for open regions, as if they were closed now.
  SyncReports missing(bool open);

  void admitted(std::uint32_t index, OpCode op, std::uint64_t offset, std::uint64_t length) noexcept override;
  void stored(std::uint32_t index, OpCode op, std::uint64_t offset, std::uint64_t length) noexcept override;

 private:
  struct Watched {
    std::weak_ptr<EmulatedRegion> region;
    std::uint64_t offset = 0;  // of the entry within the region
  };
  // Null where the entry is not watched; otherwise `offset`, within the entry, becomes one within the region.
  std::shared_ptr<EmulatedRegion> watched(std::uint32_t index, std::uint64_t& offset) const;

  const CacheModel model_;
  mutable Mutex mutex_;  // guards all below; taken before the mutex of a region
  std::unordered_map<std::uint32_t, std::weak_ptr<EmulatedRegion>> by_context_ FAB_GUARDED_BY(mutex_);
  std::unordered_map<std::uint32_t, Watched> by_index_ FAB_GUARDED_BY(mutex_);
  SyncStats stats_ FAB_GUARDED_BY(mutex_);
  SyncReports missing_ FAB_GUARDED_BY(mutex_);  // calls that were missing for closed regions
};

}  // namespace fab
