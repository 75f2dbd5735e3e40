#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>

namespace fab::verbs {

// What a peer's device has to know to reach a region without this process: the answer to a `describe` frame.
struct Description {
  struct Piece {
    std::uint64_t address = 0, length = 0;
    std::uint32_t rkey = 0;
  };
  static constexpr std::size_t kMostPieces = 4;

  std::uint64_t base = 0;  // what peers add to offsets
  std::uint32_t access = 0;
  bool atomics = false;  // devices may do 8-byte additions and compare-and-swaps
  std::uint8_t piece_count = 0;
  std::array<Piece, kMostPieces> pieces{};

  std::uint64_t length() const noexcept {
    std::uint64_t sum = 0;
    for (std::size_t i = 0; i < piece_count; ++i) sum += pieces[i].length;
    return sum;
  }
  // Where the byte at `offset` is; at() needs an offset below length().
  struct Place {
    std::uint64_t address = 0;
    std::uint64_t left = 0;  // bytes from there to the end of the piece
    std::uint32_t rkey = 0;
  };
  Place at(std::uint64_t offset) const noexcept {
    const Piece* piece = pieces.data();
    for (; offset >= piece->length; ++piece) offset -= piece->length;
    return {piece->address + offset, piece->length - offset, piece->rkey};
  }
  void encode(std::byte* out) const;  // writes kDescriptionBytes
  static std::optional<Description> decode(const std::byte* in) noexcept;
};

}  // namespace fab::verbs
