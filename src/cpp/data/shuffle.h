#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>

namespace fab {

// A pseudo-random permutation of the numbers below `size`. It is computed rather than stored, so each number
// costs the same, and every machine finds the same permutation. Not for secrets.
class Shuffle final {
 public:
  // 1 <= size <= 2**62.
  Shuffle(std::uint64_t size, std::uint64_t seed, std::uint64_t epoch) noexcept : size_(size) {
    const unsigned bits = std::max(2u, static_cast<unsigned>(std::bit_width(size - 1)));
    low_bits_ = bits / 2;
    high_mask_ = (std::uint64_t{1} << (bits - low_bits_)) - 1;
    low_mask_ = (std::uint64_t{1} << low_bits_) - 1;
    std::uint64_t state = seed;
    state = scramble(state) + epoch;
    for (std::uint64_t& key : keys_) key = state = scramble(state + kGolden);
  }

  std::uint64_t size() const noexcept { return size_; }

  // The number at `position`, which is below size(). The rounds permute more numbers, a power of two. A
  // result that is not below size() is permuted again, which takes few turns on average.
  std::uint64_t operator()(std::uint64_t position) const noexcept {
    do position = rounds(position);
    while (position >= size_);
    return position;
  }

 private:
  static constexpr std::uint64_t kGolden = 0x9E3779B97F4A7C15u;

  // The finalizer of splitmix64.
  static constexpr std::uint64_t scramble(std::uint64_t value) noexcept {
    value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9u;
    value = (value ^ (value >> 27)) * 0x94D049BB133111EBu;
    return value ^ (value >> 31);
  }
  // Unbalanced Feistel rounds: each changes one half of the bits by a function of the other half.
  std::uint64_t rounds(std::uint64_t value) const noexcept {
    std::uint64_t high = value >> low_bits_, low = value & low_mask_;
    for (std::size_t i = 0; i < keys_.size(); i += 2) {
      low ^= spread(high + keys_[i]) & low_mask_;
      high ^= spread(low + keys_[i + 1]) & high_mask_;
    }
    return (high << low_bits_) | low;
  }
  static constexpr std::uint64_t spread(std::uint64_t value) noexcept {
    value = (value ^ (value >> 32)) * 0xD6E8FEB86659FD93u;
    return value ^ (value >> 32);
  }

  std::uint64_t size_;
  unsigned low_bits_;
  std::uint64_t low_mask_, high_mask_;
  std::array<std::uint64_t, 8> keys_;
};

}  // namespace fab
