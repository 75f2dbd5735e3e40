#include "libfabric/endpoint/messages.h"

namespace fab::fi {
namespace {

std::uint64_t kind_of(const Message& message) noexcept { return message.tagged ? FI_TAGGED : FI_MSG; }

MatchRule rule_of(const Endpoint& endpoint, const Message& message) noexcept {
  MatchRule rule;
  rule.tagged = message.tagged;
  rule.tag = message.tag;
  rule.ignore = message.ignore;
  rule.source = endpoint.source_of(message.peer);
  return rule;
}

}  // namespace

ssize_t send(Endpoint& endpoint, const Message& message, std::uint64_t flags) {
  check_flags(flags, kSendFlags);
  NewOp op(endpoint);
  Transfer transfer{};
  put(transfer,
      flags & FI_INJECT ? injected(op->room().sent, message.pieces) : local_of(*op, message.pieces));
  transfer.op = OpCode::send;
  transfer.delivery = message_level(flags);
  if (message.tagged) {
    transfer.key = message.tag;
    transfer.flags |= transfer_flag::kTagged;
  }
  if (flags & FI_REMOTE_CQ_DATA) {
    transfer.data = message.data;
    transfer.flags |= transfer_flag::kRemoteData;
  }
  return endpoint.post(op.release(),
                       {.context = message.context,
                        .flags = flags,
                        .kind = FI_SEND | kind_of(message),
                        .silent = message.silent},
                       message.peer, {&transfer, 1});
}

ssize_t receive(Endpoint& endpoint, const Message& message, std::uint64_t flags) {
  constexpr std::uint64_t kLooks = FI_PEEK | FI_CLAIM | FI_DISCARD;
  check_flags(flags, kReceiveFlags | (message.tagged ? kLooks : FI_MULTI_RECV));
  const Endpoint::Start start{.context = message.context, .flags = flags, .kind = FI_RECV | kind_of(message)};
  if ((flags & FI_DISCARD) && !(flags & (FI_PEEK | FI_CLAIM))) return -FI_EINVAL;
  if (flags & FI_PEEK) return endpoint.peek(start, rule_of(endpoint, message));
  if ((flags & FI_CLAIM) && (flags & FI_DISCARD)) return endpoint.discard_claimed(start);
  NewOp op(endpoint);
  Receive wanted;
  const Local local = local_of(*op, message.pieces);
  wanted.length = local.length;
  wanted.piece_count = local.count;
  local.count ? void(wanted.pieces = local.pieces) : void(wanted.local = local.buffer);
  wanted.rule = rule_of(endpoint, message);
  std::uint64_t claim = 0;
  if (flags & FI_CLAIM) {
    const auto claimed = endpoint.find_claim(message.context);
    if (!claimed) return -FI_EINVAL;
    claim = claimed->number;
  }
  const ssize_t done = endpoint.receive(op.release(), start, wanted, (flags & FI_MULTI_RECV) != 0, claim);
  if (claim && (done == 0 || done == -FI_ENOMSG)) endpoint.forget_claim(message.context, claim);
  return done;
}

namespace {

// The functions of fi_msg(3).
struct MessageCalls {
  static ssize_t recvmsg(fid_ep* ep, const fi_msg* msg, std::uint64_t flags) {
    return boundary(FI_LOG_EP_DATA, "fi_recvmsg", [&] {
      return fi::receive(
          endpoint_of(ep),
          {.pieces = {msg->msg_iov, msg->iov_count}, .peer = msg->addr, .context = msg->context}, flags);
    });
  }
  static ssize_t recvv(fid_ep* ep, const iovec* pieces, void**, std::size_t count, fi_addr_t from,
                       void* context) {
    return boundary(FI_LOG_EP_DATA, "fi_recvv", [&] {
      Endpoint& endpoint = endpoint_of(ep);
      return fi::receive(endpoint, {.pieces = {pieces, count}, .peer = from, .context = context},
                         endpoint.receive_flags());
    });
  }
  static ssize_t recv(fid_ep* ep, void* buffer, std::size_t length, void*, fi_addr_t from, void* context) {
    const iovec piece{buffer, length};
    return recvv(ep, &piece, nullptr, 1, from, context);
  }

  static ssize_t sendmsg(fid_ep* ep, const fi_msg* msg, std::uint64_t flags) {
    return boundary(FI_LOG_EP_DATA, "fi_sendmsg", [&] {
      return fi::send(endpoint_of(ep),
                      {.pieces = {msg->msg_iov, msg->iov_count},
                       .peer = msg->addr,
                       .context = msg->context,
                       .data = msg->data},
                      flags);
    });
  }
  // Calls without flags: those of the endpoint, and `more`.
  static ssize_t plain(fid_ep* ep, Message message, std::uint64_t more) {
    return boundary(FI_LOG_EP_DATA, "fi_send", [&] {
      Endpoint& endpoint = endpoint_of(ep);
      return fi::send(endpoint, message, endpoint.send_flags() | more);
    });
  }
  static ssize_t sendv(fid_ep* ep, const iovec* pieces, void**, std::size_t count, fi_addr_t to,
                       void* context) {
    return plain(ep, {.pieces = {pieces, count}, .peer = to, .context = context}, 0);
  }
  static ssize_t send(fid_ep* ep, const void* buffer, std::size_t length, void*, fi_addr_t to,
                      void* context) {
    const iovec piece = piece_of(buffer, length);
    return plain(ep, {.pieces = {&piece, 1}, .peer = to, .context = context}, 0);
  }
  static ssize_t senddata(fid_ep* ep, const void* buffer, std::size_t length, void*, std::uint64_t data,
                          fi_addr_t to, void* context) {
    const iovec piece = piece_of(buffer, length);
    return plain(ep, {.pieces = {&piece, 1}, .peer = to, .context = context, .data = data},
                 FI_REMOTE_CQ_DATA);
  }
  static ssize_t inject(fid_ep* ep, const void* buffer, std::size_t length, fi_addr_t to) {
    const iovec piece = piece_of(buffer, length);
    return plain(ep, {.pieces = {&piece, 1}, .peer = to, .silent = true}, FI_INJECT);
  }
  static ssize_t injectdata(fid_ep* ep, const void* buffer, std::size_t length, std::uint64_t data,
                            fi_addr_t to) {
    const iovec piece = piece_of(buffer, length);
    return plain(ep, {.pieces = {&piece, 1}, .peer = to, .data = data, .silent = true},
                 FI_INJECT | FI_REMOTE_CQ_DATA);
  }

  static fi_ops_msg calls;
};

fi_ops_msg MessageCalls::calls = {.size = sizeof(fi_ops_msg),
                                  .recv = recv,
                                  .recvv = recvv,
                                  .recvmsg = recvmsg,
                                  .send = send,
                                  .sendv = sendv,
                                  .sendmsg = sendmsg,
                                  .inject = inject,
                                  .senddata = senddata,
                                  .injectdata = injectdata};

}  // namespace

fi_ops_msg& message_calls() noexcept { return MessageCalls::calls; }

}  // namespace fab::fi
