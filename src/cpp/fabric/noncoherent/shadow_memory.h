#pragma once

#include <sys/uio.h>

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "base/fd.h"
#include "base/lifetime.h"
#include "base/memory/mapping.h"
#include "fabric/types/sync_types.h"

namespace fab {

// Bytes [start, end) of a region; empty where they are equal.
struct Extent {
  std::uint64_t start = 0, end = 0;

  bool empty() const noexcept { return start == end; }
  std::uint64_t size() const noexcept { return end - start; }
  bool overlaps(const Extent& other) const noexcept { return start < other.end && other.start < end; }
  bool touches(const Extent& other) const noexcept { return start <= other.end && other.start <= end; }
  void include(const Extent& other) noexcept {
    if (other.empty()) return;
    *this = empty() ? other : Extent{std::min(start, other.start), std::max(end, other.end)};
  }
};

// Memory with two views: the user's buffers, which the CPU loads and stores, and a copy that peers get and
// put. A third copy holds what both last agreed on, and so tells which bytes either side has changed since: a
// store of the value that was there before is no change. Pages of the user that are not mapped are skipped.
// Calls are made one at a time; loads, stores and transfers of bytes that they do not name may go on
// meanwhile.
class ShadowMemory {
 public:
  // Both views start equal. The device's view has the layout and the alignment of the CPU's; with `mappable`
  // it is a file that peers map.
  ShadowMemory(std::span<const iovec> cpu, bool mappable);

  std::span<const iovec> device() const noexcept FAB_LIFETIME_BOUND { return device_; }
  std::int32_t file() const noexcept { return file_.get(); }  // -1: none
  std::uint64_t file_offset() const noexcept;                 // of the first buffer

  // The bytes of the region that the segment names. The segment lies in one of the buffers.
  Extent locate(const Triplet& segment) const noexcept;

  struct Effect {
    std::uint64_t to_device = 0, to_cpu = 0;  // bytes that changed
    Extent conflict;                          // around the bytes that both sides had changed
    bool any() const noexcept { return to_device + to_cpu != 0; }
  };
  // Read side: what the CPU stored goes to the device. Write side: what peers put goes to the CPU, and what
  // the CPU stored elsewhere in the range goes to the device. With lines of more than one byte the call also
  // copies the rest of the first and of the last line, over whatever the other side has there, as a cache
  // does.
  Effect synchronise(SyncSide side, Extent range, std::uint32_t line) noexcept;
  // The extent around the bytes of `range` that the CPU has stored and that peers do not see.
  Extent stored(Extent range) const noexcept;

 private:
  struct Buffer {
    std::byte *cpu, *device, *agreed;
    std::uint64_t offset, length;  // within the region
  };
  template <class Use>
  void each_part(Extent range, Use use) const noexcept;
  static void overwrite(SyncSide side, const Buffer& buffer, Extent part, Effect& effect) noexcept;

  OwnFd file_;
  Mapping device_memory_, agreed_memory_;
  std::vector<Buffer> buffers_;
  std::vector<iovec> device_;
};

}  // namespace fab
