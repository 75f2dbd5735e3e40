#pragma once

#include <cstdint>

namespace fab {

// A hash of `key` for tables that use the low bits of it.
constexpr std::uint64_t mix(std::uint64_t key) noexcept {
  key ^= key >> 32;
  key *= 0x9E3779B97F4A7C15u;
  return key ^ (key >> 29);
}

}  // namespace fab
