#include <rdma/fi_rma.h>

#include <array>

#include "libfabric/endpoint/arguments.h"

namespace fab::fi {
namespace {

struct Move {
  OpCode op = OpCode::write;
  std::span<const iovec> pieces{};
  fi_addr_t peer = FI_ADDR_UNSPEC;
  std::span<const fi_rma_iov> targets{};
  void* context = nullptr;
  std::uint64_t data = 0;
  bool silent = false;
};

// The local memory of `length` bytes from `offset` on.
Local part_of(const Local& whole, Op& op, std::size_t& used, std::uint64_t offset, std::uint64_t length) {
  if (!whole.count) return {.buffer = whole.buffer + offset, .length = length};
  // The pieces of all parts follow each other, cut where a part ends.
  iovec* const first = op.pieces + used;
  for (std::uint16_t i = 0; i < whole.count && length; ++i) {
    iovec piece = whole.pieces[i];
    if (offset >= piece.iov_len) {
      offset -= piece.iov_len;
      continue;
    }
    piece.iov_base = static_cast<std::byte*>(piece.iov_base) + offset;
    piece.iov_len = std::min<std::uint64_t>(piece.iov_len - offset, length);
    offset = 0;
    length -= piece.iov_len;
    op.pieces[used++] = piece;
  }
  std::uint64_t bytes = 0;
  const auto count = static_cast<std::uint16_t>(op.pieces + used - first);
  for (const iovec& piece : std::span(first, count)) bytes += piece.iov_len;
  return {.pieces = first, .count = count, .length = bytes};
}

// Each range at the target is a transfer of its own; remote data goes with the last one.
ssize_t move(Endpoint& endpoint, const Move& move, std::uint64_t flags) {
  check_flags(flags, move.op == OpCode::read ? kSendFlags & ~FI_REMOTE_CQ_DATA : kSendFlags);
  if (move.op == OpCode::read) flags &= ~FI_INJECT;  // one of the endpoint's flags, which is for what is sent
  check_pieces(move.pieces.size());
  if (move.targets.empty() || move.targets.size() > kMaxPiecesOfCall)
    throw Error(Errc::invalid, std::to_string(move.targets.size()) +
                                   " ranges of remote memory in one call; rma_iov_limit is " +
                                   std::to_string(kMaxPiecesOfCall));
  NewOp op(endpoint);
  std::array<iovec, kMaxPiecesOfCall> given;
  Local whole;
  if (flags & FI_INJECT) {
    whole = injected(op->room().sent, move.pieces);
  } else {
    whole = local_of(*op, move.pieces);
    std::ranges::copy(move.pieces, given.begin());
    if (whole.count && move.targets.size() > 1) whole.pieces = given.data();
  }
  std::array<Transfer, kMaxPiecesOfCall> transfers;
  std::uint64_t offset = 0;
  std::size_t used = 0;
  for (std::size_t i = 0; i < move.targets.size(); ++i) {
    const fi_rma_iov& target = move.targets[i];
    Transfer& transfer = transfers[i] = {};
    put(transfer, move.targets.size() == 1 ? whole : part_of(whole, *op, used, offset, target.len));
    offset += target.len;
    transfer.op = move.op;
    transfer.remote = target.addr;
    transfer.key = target.key;
    transfer.delivery = write_level(flags);
  }
  // Of a single range the length may be left out.
  if (offset != whole.length && (move.targets.size() > 1 || offset != 0))
    throw Error(Errc::invalid, "the local and the remote memory of one call have different lengths");
  if (flags & FI_REMOTE_CQ_DATA) {
    Transfer& last = transfers[move.targets.size() - 1];
    last.data = move.data;
    last.flags |= transfer_flag::kRemoteData;
  }
  const std::uint64_t direction = move.op == OpCode::read ? FI_READ : FI_WRITE;
  return endpoint.post(
      op.release(),
      {.context = move.context, .flags = flags, .kind = FI_RMA | direction, .silent = move.silent}, move.peer,
      {transfers.data(), move.targets.size()});
}

// The functions of fi_rma(3).
struct RmaCalls {
  static ssize_t with_flags(fid_ep* ep, OpCode op, const fi_msg_rma& msg, std::uint64_t flags) {
    return boundary(FI_LOG_EP_DATA, op == OpCode::read ? "fi_readmsg" : "fi_writemsg", [&] {
      return move(endpoint_of(ep),
                  {.op = op,
                   .pieces = {msg.msg_iov, msg.iov_count},
                   .peer = msg.addr,
                   .targets = {msg.rma_iov, msg.rma_iov_count},
                   .context = msg.context,
                   .data = msg.data},
                  flags);
    });
  }
  static ssize_t plain(fid_ep* ep, Move what, std::uint64_t address, std::uint64_t key, std::uint64_t more) {
    return boundary(FI_LOG_EP_DATA, what.op == OpCode::read ? "fi_read" : "fi_write", [&] {
      Endpoint& endpoint = endpoint_of(ep);
      const fi_rma_iov target{.addr = address, .len = 0, .key = key};
      what.targets = {&target, 1};
      return move(endpoint, what, endpoint.send_flags() | more);
    });
  }

  static ssize_t readmsg(fid_ep* ep, const fi_msg_rma* msg, std::uint64_t flags) {
    return with_flags(ep, OpCode::read, *msg, flags);
  }
  static ssize_t readv(fid_ep* ep, const iovec* pieces, void**, std::size_t count, fi_addr_t from,
                       std::uint64_t address, std::uint64_t key, void* context) {
    return plain(ep, {.op = OpCode::read, .pieces = {pieces, count}, .peer = from, .context = context},
                 address, key, 0);
  }
  static ssize_t read(fid_ep* ep, void* buffer, std::size_t length, void*, fi_addr_t from,
                      std::uint64_t address, std::uint64_t key, void* context) {
    const iovec piece{buffer, length};
    return readv(ep, &piece, nullptr, 1, from, address, key, context);
  }
  static ssize_t writemsg(fid_ep* ep, const fi_msg_rma* msg, std::uint64_t flags) {
    return with_flags(ep, OpCode::write, *msg, flags);
  }
  static ssize_t writev(fid_ep* ep, const iovec* pieces, void**, std::size_t count, fi_addr_t to,
                        std::uint64_t address, std::uint64_t key, void* context) {
    return plain(ep, {.pieces = {pieces, count}, .peer = to, .context = context}, address, key, 0);
  }
  static ssize_t write(fid_ep* ep, const void* buffer, std::size_t length, void*, fi_addr_t to,
                       std::uint64_t address, std::uint64_t key, void* context) {
    const iovec piece = piece_of(buffer, length);
    return writev(ep, &piece, nullptr, 1, to, address, key, context);
  }
  static ssize_t writedata(fid_ep* ep, const void* buffer, std::size_t length, void*, std::uint64_t data,
                           fi_addr_t to, std::uint64_t address, std::uint64_t key, void* context) {
    const iovec piece = piece_of(buffer, length);
    return plain(ep, {.pieces = {&piece, 1}, .peer = to, .context = context, .data = data}, address, key,
                 FI_REMOTE_CQ_DATA);
  }
  static ssize_t inject(fid_ep* ep, const void* buffer, std::size_t length, fi_addr_t to,
                        std::uint64_t address, std::uint64_t key) {
    const iovec piece = piece_of(buffer, length);
    return plain(ep, {.pieces = {&piece, 1}, .peer = to, .silent = true}, address, key, FI_INJECT);
  }
  static ssize_t injectdata(fid_ep* ep, const void* buffer, std::size_t length, std::uint64_t data,
                            fi_addr_t to, std::uint64_t address, std::uint64_t key) {
    const iovec piece = piece_of(buffer, length);
    return plain(ep, {.pieces = {&piece, 1}, .peer = to, .data = data, .silent = true}, address, key,
                 FI_INJECT | FI_REMOTE_CQ_DATA);
  }

  static fi_ops_rma calls;
};

fi_ops_rma RmaCalls::calls = {.size = sizeof(fi_ops_rma),
                              .read = read,
                              .readv = readv,
                              .readmsg = readmsg,
                              .write = write,
                              .writev = writev,
                              .writemsg = writemsg,
                              .inject = inject,
                              .writedata = writedata,
                              .injectdata = injectdata};

}  // namespace

fi_ops_rma& rma_calls() noexcept { return RmaCalls::calls; }

}  // namespace fab::fi
