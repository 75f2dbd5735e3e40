#pragma once

#include <cstddef>

#include "base/memory/guarded_copy.h"
#include "fabric/memory/piece_cursor.h"
#include "fabric/types/types.h"

namespace fab {

inline PieceCursor local_of(const Transfer& transfer) noexcept {
  return transfer.piece_count ? PieceCursor(transfer.local_pieces, transfer.piece_count)
                              : PieceCursor(transfer.local);
}

// Copies the next `bytes` bytes from a list of pieces into one buffer. Returns false if memory of it is gone.
[[nodiscard]] inline bool gather(PieceCursor from, std::byte* to, std::size_t bytes) noexcept {
  while (bytes) {
    const iovec piece = from.here(bytes);
    if (!copy_guarded(to, piece.iov_base, piece.iov_len)) return false;
    from.advance(piece.iov_len);
    to += piece.iov_len;
    bytes -= piece.iov_len;
  }
  return true;
}

// Copies what a transfer sends into one buffer. Returns false if memory of it is gone.
[[nodiscard]] inline bool gather(const Transfer& transfer, std::byte* to) noexcept {
  if (transfer.piece_count == 0) return copy_guarded(to, transfer.local, transfer.length);
  return gather(local_of(transfer), to, transfer.length);
}

// Copies `bytes` bytes from one buffer into a list of pieces. Returns false if memory of it is gone.
[[nodiscard]] inline bool scatter(const std::byte* from, PieceCursor to, std::size_t bytes) noexcept {
  while (bytes) {
    const iovec piece = to.here(bytes);
    if (!copy_guarded(piece.iov_base, from, piece.iov_len)) return false;
    to.advance(piece.iov_len);
    from += piece.iov_len;
    bytes -= piece.iov_len;
  }
  return true;
}

}  // namespace fab
