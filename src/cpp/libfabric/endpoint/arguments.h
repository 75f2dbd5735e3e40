#pragma once

#include <rdma/fabric.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>
#include <sys/uio.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "base/memory/guarded_copy.h"
#include "fabric/types/error.h"
#include "fabric/types/types.h"
#include "libfabric/endpoint/endpoint.h"
#include "libfabric/plugin/boundary.h"
#include "libfabric/plugin/object.h"

// What the data calls of libfabric have in common: buffers, flags and levels of completion.
namespace fab::fi {

inline Endpoint& endpoint_of(fid_ep* ep) noexcept { return object_of<Endpoint>(ep); }

// An operation that goes back to its endpoint unless a call takes it over, which happens last.
class NewOp final {
 public:
  explicit NewOp(Endpoint& endpoint) : op_(&endpoint.new_op()) {}
  NewOp(const NewOp&) = delete;
  NewOp& operator=(const NewOp&) = delete;
  ~NewOp() {
    if (op_) op_->pool.give(*op_);
  }
  Op& operator*() const noexcept { return *op_; }
  Op* operator->() const noexcept { return op_; }
  Op& release() noexcept { return *std::exchange(op_, nullptr); }

 private:
  Op* op_;
};

constexpr std::uint64_t kLevels =
    FI_INJECT_COMPLETE | FI_TRANSMIT_COMPLETE | FI_DELIVERY_COMPLETE | FI_COMMIT_COMPLETE;
// Flags of calls that send, beyond which a call is refused.
constexpr std::uint64_t kSendFlags = FI_REMOTE_CQ_DATA | FI_COMPLETION | FI_MORE | FI_INJECT | kLevels |
                                     FI_PRIORITY | FI_AFFINITY | FI_TRIGGER;
constexpr std::uint64_t kReceiveFlags = FI_COMPLETION | FI_MORE;

inline void check_flags(std::uint64_t flags, std::uint64_t known) {
  if (flags & ~known) throw Error(Errc::bad_flags, "flags of this call that are not offered");
}

// The level of a message: that the peer's node has it is what fi_cq(3) asks of every level up to
// FI_TRANSMIT_COMPLETE, so that a message outlives its sender. It goes to no region that could be durable:
// for a message FI_COMMIT_COMPLETE, which an endpoint may have as its level, asks for the most that there is.
inline Delivery message_level(std::uint64_t flags) noexcept {
  return flags & (FI_DELIVERY_COMPLETE | FI_COMMIT_COMPLETE) ? Delivery::delivery : Delivery::transmit;
}
// The level of a put or an atomic.
inline Delivery write_level(std::uint64_t flags) noexcept {
  return flags & FI_COMMIT_COMPLETE ? Delivery::commit : Delivery::delivery;
}

// The bytes of a call, as one buffer or as pieces that the operation keeps.
struct Local {
  std::byte* buffer = nullptr;
  const iovec* pieces = nullptr;
  std::uint16_t count = 0;  // of pieces; 0: one buffer
  std::uint64_t length = 0;
};

inline void check_pieces(std::size_t count) {
  if (count > kMaxPiecesOfCall)
    throw Error(Errc::invalid, std::to_string(count) + " buffers in one call; iov_limit is " +
                                   std::to_string(kMaxPiecesOfCall));
}

inline Local local_of(Op& op, std::span<const iovec> pieces) {
  check_pieces(pieces.size());
  Local local;
  if (pieces.size() == 1) {
    local.buffer = static_cast<std::byte*>(pieces[0].iov_base);
    local.length = pieces[0].iov_len;
    return local;
  }
  std::ranges::copy(pieces, op.pieces);
  for (const iovec& piece : pieces) local.length += piece.iov_len;
  local.pieces = op.pieces;
  local.count = static_cast<std::uint16_t>(pieces.size());
  return local;
}

// Copies what is to be sent to `copy`, where the program may use its memory again at once (FI_INJECT).
inline Local injected(std::byte (&copy)[kInjectBytes], std::span<const iovec> pieces) {
  std::uint64_t length = 0;
  for (const iovec& piece : pieces) length += piece.iov_len;
  if (length > kInjectBytes)
    throw Error(Errc::message_size, "inject of " + std::to_string(length) + " bytes; inject_size is " +
                                        std::to_string(kInjectBytes));
  std::size_t at = 0;
  for (const iovec& piece : pieces) {
    if (!copy_guarded(copy + at, piece.iov_base, piece.iov_len))
      throw Error(Errc::bounds, "inject: the memory of the buffer is gone");
    at += piece.iov_len;
  }
  return {.buffer = copy, .pieces = nullptr, .count = 0, .length = length};
}

inline void put(Transfer& transfer, const Local& local) noexcept {
  transfer.length = local.length;
  transfer.piece_count = local.count;
  local.count ? void(transfer.local_pieces = local.pieces) : void(transfer.local = local.buffer);
}

inline iovec piece_of(const void* buffer, std::size_t length) noexcept {
  return {const_cast<void*>(buffer), length};
}

}  // namespace fab::fi
