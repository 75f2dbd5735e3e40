#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "base/bytes/sha256.h"
#include "base/crypto/tls_records.h"

namespace fab {

// Whether the kernel can seal and open the records of connections below their sockets, and can go on with
// another key while a connection lasts: Linux 6.14 or later, with the module `tls` loaded. Is found out once
// in a process, over the loopback, which takes a second at most.
bool kernel_seals() noexcept;

// The records of a TLS 1.3 connection, sealed and opened by the kernel. So bytes go from and to where the
// user's memory lies by the kernel alone, and memory that is not there is EFAULT as without TLS. Nothing of a
// record is stored before all of it was found unchanged. Used by one thread at a time.
class KernelRecords final {
 public:
  // Hands the keys of a connection over, from whose handshake on nothing else has gone over the socket.
  // `ours`, `theirs`: the traffic secrets. Null: the kernel takes none for this socket, and all is as before.
  // Throws std::bad_alloc, after which the socket is of no use.
  static std::unique_ptr<KernelRecords> begin(int socket, const Digest& ours, const Digest& theirs);
  ~KernelRecords();
  KernelRecords(const KernelRecords&) = delete;
  KernelRecords& operator=(const KernelRecords&) = delete;

  // As sendmsg() without waiting.
  ssize_t send(std::span<const iovec> pieces) noexcept;
  // As recvmsg() without waiting, but more may be there after fewer bytes than there is room for. The poller
  // tells nothing of what stands behind another key's announcement, which ends a call, so call until EAGAIN.
  // EBADMSG: what came was changed on its way, or is nothing that the other end may say.
  ssize_t receive(std::span<const iovec> pieces) noexcept;
  std::uint64_t handed() const noexcept { return handed_; }  // bytes that the socket has taken, sealed

 private:
  KernelRecords(int socket, const Digest& ours, const Digest& theirs) noexcept
      : socket_(socket), ours_(ours), theirs_(theirs) {}
  bool use(int direction, const Digest& secret) const noexcept;
  bool renew(int direction, Digest& secret) noexcept;
  bool renew_ours() noexcept;
  bool say(RecordType type, std::span<const std::byte> content) noexcept;
  ssize_t take_note() noexcept;

  const int socket_;
  Digest ours_, theirs_;
  std::uint64_t sealed_ = 0;  // records under our present key, at most
  std::uint64_t handed_ = 0;
  bool key_asked_for_ = false;
};

}  // namespace fab
