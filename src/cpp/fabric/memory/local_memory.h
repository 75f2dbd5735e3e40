#pragma once

#include <cstddef>

#include "base/memory/copy_memory.h"
#include "base/memory/fault_guard.h"
#include "base/memory/guarded_copy.h"
#include "fabric/memory/piece_cursor.h"
#include "fabric/types/types.h"

namespace fab {

inline PieceCursor local_of(const Transfer& transfer) noexcept {
  return transfer.piece_count ? PieceCursor(transfer.local_pieces, transfer.piece_count)
                              : PieceCursor(transfer.local);
}

namespace detail {
// Copies between a buffer and a list of pieces. One guard is set up for all from the first long piece on.
template <bool kGathers, class Buffer>
bool copy_pieces(PieceCursor at, Buffer* buffer, std::size_t bytes) noexcept {
  const auto each = [&](const auto& copy) {
    while (bytes) {
      const iovec piece = at.here(bytes);
      bool goes_on;
      if constexpr (kGathers)
        goes_on = copy(buffer, piece.iov_base, piece.iov_len);
      else
        goes_on = copy(piece.iov_base, buffer, piece.iov_len);
      if (!goes_on) return;
      at.advance(piece.iov_len);
      buffer += piece.iov_len;
      bytes -= piece.iov_len;
    }
  };
  bool there = true;
  each([&](void* to, const void* from, std::size_t length) {
    if (length > kSmallCopy) return false;
    return there = copy_guarded(to, from, length);
  });
  if (bytes == 0 || !there) return there;
  return guarded([&] {
    each([](void* to, const void* from, std::size_t length) {
      copy_memory(to, from, length);
      return true;
    });
  });
}
}  // namespace detail

// Copies the next `bytes` bytes from a list of pieces into one buffer. Returns false if memory of it is gone.
[[nodiscard]] inline bool gather(PieceCursor from, std::byte* to, std::size_t bytes) noexcept {
  return detail::copy_pieces<true>(from, to, bytes);
}

// Copies what a transfer sends into one buffer. Returns false if memory of it is gone.
[[nodiscard]] inline bool gather(const Transfer& transfer, std::byte* to) noexcept {
  if (transfer.piece_count == 0) return copy_guarded(to, transfer.local, transfer.length);
  return gather(local_of(transfer), to, transfer.length);
}

// Copies `bytes` bytes from one buffer into a list of pieces. Returns false if memory of it is gone.
[[nodiscard]] inline bool scatter(const std::byte* from, PieceCursor to, std::size_t bytes) noexcept {
  return detail::copy_pieces<false>(to, from, bytes);
}

}  // namespace fab
