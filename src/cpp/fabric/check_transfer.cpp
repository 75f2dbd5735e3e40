#include "fabric/check_transfer.h"

#include "fabric/atomics.h"

namespace fab {

Errc check_transfer(const Transfer& transfer) noexcept {
  if (transfer.piece_count > kMaxPieces) return Errc::invalid;
  if (transfer.piece_count) {
    std::uint64_t bytes = 0;
    for (std::size_t i = 0; i < transfer.piece_count; ++i) bytes += transfer.local_pieces[i].iov_len;
    if (bytes != transfer.length) return Errc::invalid;
  }
  switch (transfer.op) {
    case OpCode::write:
    case OpCode::read:
    case OpCode::send:
    case OpCode::join:
    case OpCode::fence:
    case OpCode::settled:
    case OpCode::describe:
      return Errc::ok;
    case OpCode::atomic:
    case OpCode::fetch_atomic:
    case OpCode::compare_atomic:
      break;
    default:
      return Errc::invalid;
  }
  if (!atomic_supported(transfer.atomic, transfer.type)) return Errc::not_supported;
  if (transfer.length > kMaxAtomicBytes) return Errc::message_size;
  if (transfer.length % size_of(transfer.type) != 0) return Errc::invalid;
  if ((transfer.op == OpCode::compare_atomic) != needs_compare(transfer.atomic)) return Errc::invalid;
  if (transfer.op == OpCode::atomic && transfer.atomic == AtomicOp::atomic_read) return Errc::invalid;
  return Errc::ok;
}

}  // namespace fab
