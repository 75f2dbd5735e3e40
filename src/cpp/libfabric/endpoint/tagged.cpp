#include <rdma/fi_tagged.h>

#include "libfabric/endpoint/messages.h"

namespace fab::fi {
namespace {

// The functions of fi_tagged(3).
struct TaggedCalls {
  static Message message_of(const fi_msg_tagged& msg) noexcept {
    return {.pieces = {msg.msg_iov, msg.iov_count},
            .peer = msg.addr,
            .context = msg.context,
            .data = msg.data,
            .tagged = true,
            .tag = msg.tag,
            .ignore = msg.ignore};
  }
  static ssize_t recvmsg(fid_ep* ep, const fi_msg_tagged* msg, std::uint64_t flags) {
    return boundary(FI_LOG_EP_DATA, "fi_trecvmsg",
                    [&] { return fi::receive(endpoint_of(ep), message_of(*msg), flags); });
  }
  static ssize_t recvv(fid_ep* ep, const iovec* pieces, void**, std::size_t count, fi_addr_t from,
                       std::uint64_t tag, std::uint64_t ignore, void* context) {
    return boundary(FI_LOG_EP_DATA, "fi_trecvv", [&] {
      Endpoint& endpoint = endpoint_of(ep);
      return fi::receive(endpoint,
                         {.pieces = {pieces, count},
                          .peer = from,
                          .context = context,
                          .tagged = true,
                          .tag = tag,
                          .ignore = ignore},
                         endpoint.receive_flags() & ~FI_MULTI_RECV);
    });
  }
  static ssize_t recv(fid_ep* ep, void* buffer, std::size_t length, void*, fi_addr_t from, std::uint64_t tag,
                      std::uint64_t ignore, void* context) {
    const iovec piece{buffer, length};
    return recvv(ep, &piece, nullptr, 1, from, tag, ignore, context);
  }

  static ssize_t sendmsg(fid_ep* ep, const fi_msg_tagged* msg, std::uint64_t flags) {
    return boundary(FI_LOG_EP_DATA, "fi_tsendmsg",
                    [&] { return fi::send(endpoint_of(ep), message_of(*msg), flags); });
  }
  static ssize_t plain(fid_ep* ep, Message message, std::uint64_t tag, std::uint64_t more) {
    return boundary(FI_LOG_EP_DATA, "fi_tsend", [&] {
      Endpoint& endpoint = endpoint_of(ep);
      message.tagged = true;
      message.tag = tag;
      return fi::send(endpoint, message, endpoint.send_flags() | more);
    });
  }
  static ssize_t sendv(fid_ep* ep, const iovec* pieces, void**, std::size_t count, fi_addr_t to,
                       std::uint64_t tag, void* context) {
    return plain(ep, {.pieces = {pieces, count}, .peer = to, .context = context}, tag, 0);
  }
  static ssize_t send(fid_ep* ep, const void* buffer, std::size_t length, void*, fi_addr_t to,
                      std::uint64_t tag, void* context) {
    const iovec piece = piece_of(buffer, length);
    return plain(ep, {.pieces = {&piece, 1}, .peer = to, .context = context}, tag, 0);
  }
  static ssize_t senddata(fid_ep* ep, const void* buffer, std::size_t length, void*, std::uint64_t data,
                          fi_addr_t to, std::uint64_t tag, void* context) {
    const iovec piece = piece_of(buffer, length);
    return plain(ep, {.pieces = {&piece, 1}, .peer = to, .context = context, .data = data}, tag,
                 FI_REMOTE_CQ_DATA);
  }
  static ssize_t inject(fid_ep* ep, const void* buffer, std::size_t length, fi_addr_t to, std::uint64_t tag) {
    const iovec piece = piece_of(buffer, length);
    return plain(ep, {.pieces = {&piece, 1}, .peer = to, .silent = true}, tag, FI_INJECT);
  }
  static ssize_t injectdata(fid_ep* ep, const void* buffer, std::size_t length, std::uint64_t data,
                            fi_addr_t to, std::uint64_t tag) {
    const iovec piece = piece_of(buffer, length);
    return plain(ep, {.pieces = {&piece, 1}, .peer = to, .data = data, .silent = true}, tag,
                 FI_INJECT | FI_REMOTE_CQ_DATA);
  }

  static fi_ops_tagged calls;
};

fi_ops_tagged TaggedCalls::calls = {.size = sizeof(fi_ops_tagged),
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

fi_ops_tagged& tagged_calls() noexcept { return TaggedCalls::calls; }

}  // namespace fab::fi
