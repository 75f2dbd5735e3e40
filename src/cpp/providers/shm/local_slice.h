#pragma once

#include <sys/uio.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "fabric/memory/atomics.h"
#include "fabric/types/error.h"
#include "fabric/types/types.h"
#include "providers/shm/attach.h"

namespace fab::shm {

// Calls `use(piece, size)` for the pieces of local memory from byte `from` on, `length` bytes of them.
template <class Use>
void each_local(const Transfer& transfer, std::uint64_t from, std::uint64_t length, Use use) noexcept {
  for (std::size_t i = 0; i < transfer.piece_count && length; ++i) {
    const iovec& piece = transfer.local_pieces[i];
    if (from >= piece.iov_len) {
      from -= piece.iov_len;
      continue;
    }
    const std::uint64_t part = std::min<std::uint64_t>(length, piece.iov_len - from);
    use(static_cast<std::byte*>(piece.iov_base) + from, static_cast<std::size_t>(part));
    length -= part;
    from = 0;
  }
}

// What a part of a transfer's local memory is, as the kernel takes it: as many bytes as AttachBatch::kMost
// pieces have.
struct LocalSlice {
  std::size_t pieces = 0;
  std::uint64_t bytes = 0;
};
// Of `length` bytes from byte `from` on, into `out`.
inline LocalSlice local_slice(const Transfer& transfer, std::uint64_t from, std::uint64_t length,
                              iovec* out) noexcept {
  if (length == 0) return {};
  if (transfer.piece_count == 0) {
    out[0] = {transfer.local + from, static_cast<std::size_t>(length)};
    return {1, length};
  }
  LocalSlice slice;
  each_local(transfer, from, length, [&](std::byte* piece, std::size_t size) {
    if (slice.pieces == AttachBatch::kMost) return;
    out[slice.pieces++] = {piece, size};
    slice.bytes += size;
  });
  return slice;
}

// An atomic whose operands lie in several pieces, at `target`; sets `modified` if it changed something there.
[[gnu::noinline]] inline Errc gathered_atomic(const Transfer& transfer, std::byte* target,
                                              const std::byte* compare, std::byte* result,
                                              bool* modified) noexcept {
  std::byte operands[kMaxAtomicBytes];
  std::size_t filled = 0;
  each_local(transfer, 0, transfer.length, [&](const std::byte* piece, std::size_t size) {
    std::memcpy(operands + filled, piece, size);
    filled += size;
  });
  return apply_atomic(transfer.atomic, transfer.type, target, transfer.length, operands, compare, result,
                      modified);
}

}  // namespace fab::shm
