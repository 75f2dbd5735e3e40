#pragma once

#include <cstdint>

namespace fab {

// Spreads the bits of `key` over a hash whose low ones are used.
constexpr std::uint64_t mix(std::uint64_t key) noexcept {
  key ^= key >> 32;
  key *= 0x9E3779B97F4A7C15u;
  return key ^ (key >> 29);
}

}  // namespace fab
