#include "fabric/memory/check_transfer.h"

#include <algorithm>
#include <span>

#include "fabric/memory/atomics.h"
#include "fabric/memory/dma_buf.h"

namespace fab {
namespace {

bool hidden(const void* memory, std::uint64_t length) noexcept {
  return DmaBuf::hides({.start = reinterpret_cast<std::uint64_t>(memory), .length = length});
}

// Whether every link copies the bytes of this transfer.
bool must_be_copied(const Transfer& transfer) noexcept {
  return is_atomic(transfer.op) || transfer.delivery == Delivery::inject;
}

}  // namespace

bool lacks_local(const Transfer& transfer) noexcept {
  if (transfer.length == 0 || (transfer.flags & transfer_flag::kStored) != 0) return false;
  if (is_atomic(transfer.op)) {
    if (transfer.op != OpCode::atomic && !transfer.result) return true;
    if (transfer.op == OpCode::compare_atomic && !transfer.compare) return true;
    if (transfer.atomic == AtomicOp::atomic_read) return false;
  }
  if (transfer.piece_count == 0) return !transfer.local;
  return !transfer.local_pieces ||
         std::ranges::any_of(std::span(transfer.local_pieces, transfer.piece_count),
                             [](const iovec& piece) { return !piece.iov_base && piece.iov_len != 0; });
}

bool hides_local(const Transfer& transfer) noexcept {
  if (!DmaBuf::any_hidden() || (transfer.flags & transfer_flag::kStored) != 0) return false;
  const bool atomic = is_atomic(transfer.op);
  if (atomic && transfer.op != OpCode::atomic && hidden(transfer.result, transfer.length)) return true;
  if (transfer.op == OpCode::compare_atomic && hidden(transfer.compare, transfer.length)) return true;
  if (atomic && transfer.atomic == AtomicOp::atomic_read) return false;
  if (transfer.piece_count == 0) return hidden(transfer.local, transfer.length);
  return std::ranges::any_of(std::span(transfer.local_pieces, transfer.piece_count),
                             [](const iovec& piece) { return hidden(piece.iov_base, piece.iov_len); });
}

Errc check_copied(const Transfer& transfer) noexcept {
  const Errc wrong = check_transfer(transfer);
  return wrong == Errc::ok && hides_local(transfer) ? Errc::bounds : wrong;
}

Errc check_transfer(const Transfer& transfer) noexcept {
  if (transfer.piece_count > kMaxPieces) return Errc::invalid;
  const Errc memory = lacks_local(transfer) ? Errc::bounds : Errc::ok;
  if (transfer.piece_count) {
    if (!transfer.local_pieces) return Errc::bounds;
    std::uint64_t bytes = 0;
    for (std::size_t i = 0; i < transfer.piece_count; ++i) bytes += transfer.local_pieces[i].iov_len;
    if (bytes != transfer.length) return Errc::invalid;
  }
  if (must_be_copied(transfer) && hides_local(transfer)) return Errc::bounds;
  switch (transfer.op) {
    case OpCode::write:
    case OpCode::read:
    case OpCode::send:
      return memory;
    case OpCode::control:
      return Errc::ok;  // its answer may be thrown away
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
  return memory;
}

}  // namespace fab
