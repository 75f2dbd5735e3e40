#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <memory>
#include <span>

#include "base/crypto/tls.h"

namespace fab::tcp {

// The bytes of a connection under TLS, from and to memory of users, which may not be there: what the kernel
// looks at in sendmsg() and recvmsg() is looked at here, with the same outcomes in errno; unless the kernel
// has the records.
class SecureConnection final {
 public:
  explicit SecureConnection(std::unique_ptr<Tls> tls) noexcept : tls_(std::move(tls)) {}
  Tls& tls() noexcept { return *tls_; }

  // Seals a prefix of the pieces, sends what the socket takes, and returns the length of the prefix; without
  // pieces it only sends. -1: as sendmsg(); EAGAIN while more waits for the socket than is worth it.
  ssize_t send(std::span<const iovec> pieces) noexcept;
  // Fills the pieces in order, and returns how many bytes have come; -1: as recvmsg(). EBADMSG: what came was
  // changed on its way. After fewer bytes than there is room for, the socket has no more for now, unless
  // in_kernel().
  ssize_t receive(std::span<const iovec> pieces) noexcept;
  // Whether sealed bytes wait here for the socket.
  bool unsent() const noexcept { return tls_->unsent(); }
  // Sealed bytes that the socket has taken.
  std::uint64_t handed() const noexcept {
    return tls_->handed() + (tls_->kernel() ? tls_->kernel()->handed() : 0);
  }
  bool in_kernel() const noexcept { return tls_->kernel() != nullptr; }  // the records
  // Whether the next receive() tells of an end that the socket does not tell of.
  bool ended() const noexcept { return opened_.empty() && tls_->ended().has_value(); }
  // Whether receive() stopped at memory that is not there, with bytes in hand of which the socket does not
  // tell.
  bool holds() const noexcept { return !opened_.empty(); }

 private:
  const std::unique_ptr<Tls> tls_;
  std::span<const std::byte> opened_;  // of the last record, what was not received yet
};

}  // namespace fab::tcp
