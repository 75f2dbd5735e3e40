#pragma once

#include <cstdint>

#include "fabric/types/types.h"

namespace fab {

// A Session tells it what peers do with regions that are marked region_flag::kObserved. Called under the lock
// of the context that serves the peer.
class AccessObserver {
 public:
  virtual ~AccessObserver() = default;
  // An access to [offset, offset + length) of the region at `index` of the table has been admitted.
  virtual void admitted(std::uint32_t index, OpCode op, std::uint64_t offset,
                        std::uint64_t length) noexcept = 0;
  // All its bytes have been stored.
  virtual void stored(std::uint32_t index, OpCode op, std::uint64_t offset,
                      std::uint64_t length) noexcept = 0;
};

}  // namespace fab
