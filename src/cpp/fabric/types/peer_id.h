#pragma once

#include <cstdint>

#include "fabric/types/types.h"

// What one 64-bit handle of a peer holds (fi_av(3)): the index in its lowest 32 bits, then a peer group, and
// on top, where the address vector reserved bits for it, a receive context.
namespace fab {

inline constexpr unsigned kPeerIndexBits = 32, kPeerGroupBits = 24;
inline constexpr std::uint64_t kMaxPeers = (std::uint64_t{1} << kPeerIndexBits) - 1;
inline constexpr std::uint64_t kMaxGroupId = (std::uint64_t{1} << kPeerGroupBits) - 1;
// Receive contexts and groups share the bits that the index leaves; `max_group_id` is the domain's.
constexpr unsigned max_rx_bits(std::uint64_t max_group_id) noexcept {
  return max_group_id ? 64 - kPeerIndexBits - kPeerGroupBits : 16;
}

// A handle taken apart. kNoPeer is no handle, and must not be taken apart.
struct PeerTarget {
  std::uint64_t index = 0;
  std::uint32_t group = 0;
  std::uint32_t rx_context = 0;
};
constexpr PeerTarget take_apart(PeerId peer, unsigned rx_bits) noexcept {
  const std::uint64_t below = rx_bits ? peer & ((std::uint64_t{1} << (64 - rx_bits)) - 1) : peer;
  return {.index = below & kMaxPeers,
          .group = static_cast<std::uint32_t>(below >> kPeerIndexBits),
          .rx_context = rx_bits ? static_cast<std::uint32_t>(peer >> (64 - rx_bits)) : 0};
}

}  // namespace fab
