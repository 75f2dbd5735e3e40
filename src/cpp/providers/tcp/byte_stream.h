#pragma once

#include <sys/socket.h>

#include <cstdint>
#include <memory>
#include <utility>

#include "base/fd.h"
#include "providers/tcp/secure_connection.h"

namespace fab::tcp {

// A connected socket, plain or under TLS, which is decided once for each connection. Plain bytes go from and
// to where they lie by the kernel alone.
class ByteStream final {
 public:
  ByteStream() = default;
  explicit ByteStream(OwnFd socket) noexcept : socket_(std::move(socket)) {}

  bool valid() const noexcept { return socket_.valid(); }
  int get() const noexcept { return socket_.get(); }
  void reset() noexcept {
    secure_.reset();
    socket_.reset();
  }
  // From here on, or until leave(), all bytes are sealed.
  void enter(std::unique_ptr<Tls> tls) { secure_ = std::make_unique<SecureConnection>(std::move(tls)); }
  void leave() noexcept { secure_.reset(); }
  SecureConnection* secure() noexcept { return secure_.get(); }

  // Whether bytes that send() has taken wait for the socket. Without pieces, send() sends these.
  bool unsent() const noexcept { return secure_ && secure_->unsent(); }
  // Whether the next receive() tells of the end, of which the poller may know nothing.
  bool ended() const noexcept { return secure_ && secure_->ended(); }
  // Whether bytes may have come that the poller knows nothing of; and whether some have, though receive() did
  // not fill its pieces.
  bool may_hold_more() const noexcept { return secure_ != nullptr; }
  bool holds_more() const noexcept { return secure_ && secure_->holds(); }
  // Whether the kernel seals. Then more may have come although receive() did not fill its pieces; and a
  // socket that closes may throw away what it has taken, while the other end's kernel has not acknowledged
  // all before.
  bool sealed_by_kernel() const noexcept { return secure_ && secure_->in_kernel(); }

  // Bytes that the socket has taken, sealed ones where they are.
  std::uint64_t handed() const noexcept { return secure_ ? secure_->handed() : handed_; }

  // As sendmsg() and recvmsg() do without waiting. Both take one piece, too.
  ssize_t send(const msghdr& message) noexcept {
    if (secure_) return secure_->send({message.msg_iov, message.msg_iovlen});
    const ssize_t taken = message.msg_iovlen == 1
                              ? ::send(socket_.get(), message.msg_iov->iov_base, message.msg_iov->iov_len,
                                       MSG_DONTWAIT | MSG_NOSIGNAL)
                              : ::sendmsg(socket_.get(), &message, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (taken > 0) handed_ += static_cast<std::uint64_t>(taken);
    return taken;
  }
  ssize_t receive(msghdr& message) noexcept {
    if (secure_) return secure_->receive({message.msg_iov, message.msg_iovlen});
    return message.msg_iovlen == 1
               ? ::recv(socket_.get(), message.msg_iov->iov_base, message.msg_iov->iov_len, MSG_DONTWAIT)
               : ::recvmsg(socket_.get(), &message, MSG_DONTWAIT);
  }

 private:
  OwnFd socket_;
  std::unique_ptr<SecureConnection> secure_;
  std::uint64_t handed_ = 0;
};

}  // namespace fab::tcp
