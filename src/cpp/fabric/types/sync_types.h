#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "base/lifetime.h"
#include "fabric/types/error.h"

namespace fab {

// A range of local memory, named for a synchronisation call (DAT_LMR_TRIPLET). The address is always virtual,
// even if peers reach the region by offsets.
struct Triplet {
  std::uint32_t lmr_context = 0;  // MemoryRegion::lmr_context()
  std::uint64_t virtual_address = 0;
  std::uint64_t segment_length = 0;  // bytes; 0 names nothing and is always valid

  // The 16 bytes of DAT 2.0, in this machine's byte order: address, 32-bit length, context. pack() throws
  // Error(invalid) for a length of 4 GiB or more.
  using Packed = std::array<std::byte, 16>;
  Packed pack() const;
  static Triplet unpack(const Packed& packed) noexcept;

  bool operator==(const Triplet&) const = default;
};

// Which of the two calls is meant: read is for memory that peers get, write for memory that they put into.
enum class SyncSide : std::uint8_t { read, write };

// A machine whose devices and processors see memory through different caches, emulated
// (docs/synchronisation.md).
struct CacheModel {
  enum class Place : std::uint8_t { device, cpu };
  Place place = Place::device;  // where the cache is that the calls flush and invalidate
  std::uint32_t line = 1;       // bytes, a power of two; 1: a call touches no byte but those named
  bool check = false;           // look out for missing, late and needless calls
};

// What the calls on a non-coherent domain have done since it was opened.
struct SyncStats {
  std::uint64_t read_calls = 0, write_calls = 0;
  std::uint64_t flushes = 0, invalidations = 0;  // by the emulated cache, one for each segment
  std::uint64_t bytes_to_device = 0, bytes_to_cpu = 0;
};

// A segment that a synchronisation call refuses; nothing was synchronised.
class SegmentError final : public Error {
 public:
  SegmentError(std::size_t index, const std::string& reason)
      : Error(Errc::invalid, "segment " + std::to_string(index) + ": " + reason),
        index_(index),
        reason_(reason) {}
  std::size_t index() const noexcept { return index_; }  // place of the first such segment in the list
  const std::string& reason() const noexcept FAB_LIFETIME_BOUND { return reason_; }

 private:
  std::size_t index_;
  std::string reason_;
};

// A mistake that the checker found.
struct SyncReport {
  enum class Kind : std::uint8_t { missing, late, needless };
  enum class Event : std::uint8_t { get, put, atomic, sync_rdma_read, sync_rdma_write };
  Kind kind;
  SyncSide side;             // of the call that is missing, came late, or was not needed
  std::uint32_t region;      // its lmr_context
  std::uint64_t start, end;  // bytes of the region: [start, end)
  Event event;               // the peer's operation that met the mistake, or, if needless, the call
};
using SyncReports = std::vector<SyncReport>;

}  // namespace fab
