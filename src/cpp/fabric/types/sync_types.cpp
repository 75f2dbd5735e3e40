#include "fabric/types/sync_types.h"

#include <cstring>
#include <limits>
#include <string>

namespace fab {

Triplet::Packed Triplet::pack() const {
  if (segment_length > std::numeric_limits<std::uint32_t>::max())
    throw Error(Errc::invalid, "a segment of " + std::to_string(segment_length) +
                                   " bytes does not fit the 16-byte form, whose lengths have 32 bits; split "
                                   "it, or pass the triplet itself");
  const auto length = static_cast<std::uint32_t>(segment_length);
  Packed packed;
  std::memcpy(packed.data(), &virtual_address, 8);
  std::memcpy(packed.data() + 8, &length, 4);
  std::memcpy(packed.data() + 12, &lmr_context, 4);
  return packed;
}

Triplet Triplet::unpack(const Packed& packed) noexcept {
  Triplet triplet;
  std::uint32_t length;
  std::memcpy(&triplet.virtual_address, packed.data(), 8);
  std::memcpy(&length, packed.data() + 8, 4);
  std::memcpy(&triplet.lmr_context, packed.data() + 12, 4);
  triplet.segment_length = length;
  return triplet;
}

}  // namespace fab
