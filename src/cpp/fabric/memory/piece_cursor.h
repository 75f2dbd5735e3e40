#pragma once

#include <sys/uio.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

namespace fab {

// A place in one buffer, or in a list of buffers that are taken as one.
class PieceCursor {
 public:
  PieceCursor() = default;
  explicit PieceCursor(std::byte* buffer) noexcept : buffer_(buffer) {}
  PieceCursor(const iovec* pieces, std::size_t count) noexcept
      : pieces_(pieces), count_(static_cast<std::uint32_t>(count)) {}

  // The contiguous bytes from here on, at most `limit`; none at the end of the list.
  iovec here(std::size_t limit) noexcept {
    if (count_ == 0) return {buffer_ + offset_, limit};
    while (index_ < count_ && offset_ >= pieces_[index_].iov_len) {
      offset_ = 0;
      ++index_;
    }
    if (index_ == count_) return {nullptr, 0};
    return {static_cast<std::byte*>(pieces_[index_].iov_base) + offset_,
            std::min(limit, pieces_[index_].iov_len - offset_)};
  }
  void advance(std::size_t bytes) noexcept { offset_ += bytes; }  // not beyond what here() gave
  // Moves on by `bytes`, over as many buffers as that takes.
  void skip(std::size_t bytes) noexcept {
    while (bytes) {
      const std::size_t part = here(bytes).iov_len;
      if (part == 0) return;
      advance(part);
      bytes -= part;
    }
  }

 private:
  union {
    std::byte* buffer_ = nullptr;
    const iovec* pieces_;
  };
  std::size_t offset_ = 0;
  std::uint32_t index_ = 0, count_ = 0;  // count_ 0: one buffer
};

// What of some memory fits into a list of pieces.
struct PieceList {
  std::size_t pieces = 0;
  std::uint64_t bytes = 0;
};
// Up to `length` bytes from byte `begin` on, as many of them as there is room for in `out`.
inline PieceList list_pieces(PieceCursor at, std::uint64_t begin, std::uint64_t length,
                             std::span<iovec> out) noexcept {
  PieceList list;
  at.skip(begin);
  while (list.bytes < length && list.pieces < out.size()) {
    const iovec piece = at.here(length - list.bytes);
    if (piece.iov_len == 0) break;
    at.advance(piece.iov_len);
    out[list.pieces++] = piece;
    list.bytes += piece.iov_len;
  }
  return list;
}

}  // namespace fab
