#pragma once

#include <cstdint>

namespace fab {

// The addresses [start, start + length) of this process. Ranges that wrap around are no ranges.
struct AddressRange {
  std::uint64_t start = 0;
  std::uint64_t length = 0;
  constexpr std::uint64_t end() const noexcept { return start + length; }
  constexpr bool overlaps(const AddressRange& other) const noexcept {
    return start < other.end() && other.start < end();
  }
  constexpr bool contains(const AddressRange& other) const noexcept {
    return start <= other.start && other.length <= length && other.start - start <= length - other.length;
  }
  friend bool operator==(const AddressRange&, const AddressRange&) = default;
};

}  // namespace fab
