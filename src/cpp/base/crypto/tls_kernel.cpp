#include "base/crypto/tls_kernel.h"

#include <linux/tls.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <new>
#include <system_error>

#include "base/fd.h"
#include "base/locks/fork_gate.h"
#include "base/network/tcp_socket.h"

// What older headers lack.
#ifndef SOL_TLS
#define SOL_TLS 282
#endif
#ifndef TCP_ULP
#define TCP_ULP 31
#endif
#ifndef TLS_RX
#define TLS_RX 2
#endif

namespace fab {
namespace {

constexpr std::uint16_t kVersion13 = 0x0304;
constexpr int kMostNotes = 32;         // records without data in one call of receive()
constexpr int kPatience = 1000;        // ms, with a loopback that does not answer
constexpr std::size_t kNoteRoom = 64;  // bytes; nothing that the other end may say without data is longer

bool set_key(int socket, int direction, const CipherKey& from) noexcept {
  tls12_crypto_info_aes_gcm_128 key{};
  static_assert(sizeof key.salt + sizeof key.iv == sizeof from.first_nonce &&
                sizeof key.key == sizeof from.key);
  key.info.version = kVersion13;
  key.info.cipher_type = TLS_CIPHER_AES_GCM_128;
  std::memcpy(key.salt, from.first_nonce, sizeof key.salt);
  std::memcpy(key.iv, from.first_nonce + sizeof key.salt, sizeof key.iv);
  std::memcpy(key.key, from.key, sizeof key.key);
  const bool done = ::setsockopt(socket, SOL_TLS, direction, &key, sizeof key) == 0;
  ::explicit_bzero(&key, sizeof key);
  return done;
}

bool attach(int socket) noexcept { return ::setsockopt(socket, IPPROTO_TCP, TCP_ULP, "tls", 4) == 0; }

// Whether a socket takes a second key. Throws std::system_error while descriptors or memory are short.
bool tries_keys() try {
  const OwnFd listens = listen_tcp(parse_socket_address("127.0.0.1", 0));
  const OwnFd calls = connect_tcp(local_address(listens.get()));
  check_call(calls.get(), "connect");
  pollfd connected{calls.get(), POLLOUT, 0};
  check_call(::poll(&connected, 1, kPatience), "poll");
  const CipherKey key{};
  return attach(calls.get()) && set_key(calls.get(), TLS_TX, key) && set_key(calls.get(), TLS_TX, key);
} catch (const std::system_error& error) {
  if (is_shortage(error.code().value())) throw;
  return false;
}

ssize_t fails(int error) noexcept {
  errno = error;
  return -1;
}

msghdr message_of(std::span<const iovec> pieces) noexcept {
  msghdr message{};
  message.msg_iov = const_cast<iovec*>(pieces.data());
  message.msg_iovlen = pieces.size();
  return message;
}

// Room for the type of a record, as it goes beside the bytes.
struct TypeBeside {
  alignas(cmsghdr) char bytes[CMSG_SPACE(sizeof(std::uint8_t))]{};
};

}  // namespace

bool kernel_seals() noexcept try {
  static constinit MadeOnce<bool> can;
  return can.get(tries_keys);
} catch (const std::system_error&) {
  return false;  // for now
}

std::unique_ptr<KernelRecords> KernelRecords::begin(int socket, const Digest& ours, const Digest& theirs) {
  if (!kernel_seals() || !attach(socket)) return nullptr;
  std::unique_ptr<KernelRecords> records(new KernelRecords(socket, ours, theirs));
  if (!records->use(TLS_RX, theirs)) return nullptr;
  if (!records->use(TLS_TX, ours)) throw std::bad_alloc();
  return records;
}

KernelRecords::~KernelRecords() {
  ::explicit_bzero(ours_.data(), ours_.size());
  ::explicit_bzero(theirs_.data(), theirs_.size());
}

bool KernelRecords::use(int direction, const Digest& secret) const noexcept try {
  CipherKey key = cipher_key(secret);
  const bool done = set_key(socket_, direction, key);
  ::explicit_bzero(&key, sizeof key);
  return done;
} catch (const std::bad_alloc&) {
  return false;
}

bool KernelRecords::renew(int direction, Digest& secret) noexcept try {
  renew_secret(secret);
  return use(direction, secret);
} catch (const std::bad_alloc&) {
  return false;
}

// A record that is no data. The kernel takes all of it, or nothing.
bool KernelRecords::say(RecordType type, std::span<const std::byte> content) noexcept {
  iovec piece{const_cast<std::byte*>(content.data()), content.size()};
  TypeBeside beside;
  msghdr message = message_of({&piece, 1});
  message.msg_control = beside.bytes;
  message.msg_controllen = sizeof beside.bytes;
  cmsghdr* const header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_TLS;
  header->cmsg_type = TLS_SET_RECORD_TYPE;
  header->cmsg_len = CMSG_LEN(sizeof(std::uint8_t));
  *CMSG_DATA(header) = static_cast<unsigned char>(type);
  const ssize_t taken = ::sendmsg(socket_, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
  if (taken > 0) handed_ += static_cast<std::size_t>(taken) + kRecordOverhead;
  return taken > 0;
}

// False, with errno: EAGAIN while the socket is full, and nothing has changed; ENOMEM, or EPIPE where a card
// seals and takes no other key: the connection has failed.
bool KernelRecords::renew_ours() noexcept {
  if (!say(RecordType::handshake, kKeyUpdate)) return false;
  key_asked_for_ = false;
  sealed_ = 0;
  if (renew(TLS_TX, ours_)) return true;
  if (errno != ENOMEM) errno = EPIPE;
  return false;
}

ssize_t KernelRecords::send(std::span<const iovec> pieces) noexcept {
  if ((key_asked_for_ || sealed_ >= most_records_of_key) && !renew_ours()) return -1;
  const msghdr message = message_of(pieces);
  const ssize_t taken = ::sendmsg(socket_, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
  if (taken > 0) {
    const auto bytes = static_cast<std::size_t>(taken);
    const std::size_t records = (bytes + kMostInRecord - 1) / kMostInRecord;
    handed_ += bytes + records * kRecordOverhead;
    sealed_ += records + 1;  // one may have been begun before
  }
  return taken;
}

ssize_t KernelRecords::receive(std::span<const iovec> pieces) noexcept {
  for (int notes = 0; notes <= kMostNotes; ++notes) {
    msghdr message = message_of(pieces);
    const ssize_t got = ::recvmsg(socket_, &message, MSG_DONTWAIT);
    if (got >= 0) return got;
    // The kernel does not look at the type that stands outside of a record, which means nothing in TLS 1.3.
    if (errno == EINVAL || errno == EMSGSIZE) return fails(EBADMSG);  // what has come begins as no record
    // A record that is no data waits for somebody who asks for its type, and goes to nobody else's memory.
    if (errno != EIO) return got;
    if (const ssize_t end = take_note(); end <= 0) return end;
  }
  return fails(EBADMSG);
}

// Reads a record that is no data. More than 0: the connection goes on; else as recvmsg().
ssize_t KernelRecords::take_note() noexcept {
  std::byte content[kNoteRoom];
  iovec piece{content, sizeof content};
  TypeBeside beside;
  msghdr message = message_of({&piece, 1});
  message.msg_control = beside.bytes;
  message.msg_controllen = sizeof beside.bytes;
  const ssize_t got = ::recvmsg(socket_, &message, MSG_DONTWAIT);
  if (got < 0) return got;
  const cmsghdr* const header = CMSG_FIRSTHDR(&message);
  if (!header) return got == 0 ? 0 : fails(EBADMSG);
  switch (note_of(static_cast<RecordType>(*CMSG_DATA(header)), {content, static_cast<std::size_t>(got)})) {
    case Note::renews_and_asks:
      key_asked_for_ = true;
      [[fallthrough]];
    case Note::renews:
      return renew(TLS_RX, theirs_) ? 1 : fails(ENOMEM);
    case Note::leaves:
      return 0;
    case Note::nothing:
      return 1;
    case Note::nonsense:
      break;
  }
  say(RecordType::alert, kBadRecordAlert);
  return fails(EBADMSG);
}

}  // namespace fab
