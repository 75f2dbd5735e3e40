#pragma once

#include <cstddef>

#include "fabric/memory/copy_memory.h"
#include "fabric/memory/piece_cursor.h"
#include "fabric/types/types.h"

namespace fab {

inline PieceCursor local_of(const Transfer& transfer) noexcept {
  return transfer.piece_count ? PieceCursor(transfer.local_pieces, transfer.piece_count)
                              : PieceCursor(transfer.local);
}

// Copies the next `bytes` bytes from a list of pieces into one buffer.
inline void gather(PieceCursor from, std::byte* to, std::size_t bytes) noexcept {
  while (bytes) {
    const iovec piece = from.here(bytes);
    copy_memory(to, piece.iov_base, piece.iov_len);
    from.advance(piece.iov_len);
    to += piece.iov_len;
    bytes -= piece.iov_len;
  }
}

// Copies `bytes` bytes from one buffer into a list of pieces.
inline void scatter(const std::byte* from, PieceCursor to, std::size_t bytes) noexcept {
  while (bytes) {
    const iovec piece = to.here(bytes);
    copy_memory(piece.iov_base, from, piece.iov_len);
    to.advance(piece.iov_len);
    from += piece.iov_len;
    bytes -= piece.iov_len;
  }
}

}  // namespace fab
