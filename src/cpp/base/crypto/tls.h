#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/crypto/tls_handshake.h"
#include "base/crypto/tls_kernel.h"
#include "base/crypto/tls_records.h"
#include "base/queues/byte_buffer.h"

namespace fab {

// One end of a TLS 1.3 connection over a non-blocking socket, which its owner keeps open: first the
// handshake, then records.
//
// What is sealed is taken at once, and waits here while the socket is full: nothing has to be repeated, and
// sealing never waits for reading. If the kernel can, it does the records instead: see kernel(). Used by one
// thread at a time.
class Tls final {
 public:
  using Step = TlsStep;

  enum class Records : bool { here, in_kernel };  // the latter where kernel_seals()
  // Begin with the caller's or the called side's part. `secrets`: the caller's key, or those of which the
  // caller must have one. Need libssl(). Throw std::bad_alloc.
  static std::unique_ptr<Tls> call(int socket, const std::string& secret, Records where);
  static std::unique_ptr<Tls> answer(int socket, std::vector<std::string> secrets, Records where);

  // Goes on with the handshake.
  Step handshake() noexcept;
  bool heard() const noexcept { return !handshake_ || handshake_->heard(); }  // whether a byte has come
  // Once the handshake is done: 32 bytes that only the two ends of this very connection know.
  const std::array<std::uint8_t, 32>& binding() const noexcept { return binding_; }

  // Once the handshake is done: the records, if the kernel has them. Then nothing below is called.
  KernelRecords* kernel() const noexcept { return kernel_.get(); }

  // Where the content of the next record is written, at most kMostInRecord bytes; empty while so much waits
  // for the socket that no more is taken. After it
  // has thrown std::bad_alloc, nothing may be sealed any more.
  std::span<std::byte> place();
  // Seals the first bytes of place(), and sends once it is worth it. False: the connection has failed.
  bool seal(std::size_t count) noexcept;
  // Sends what waits, as far as the socket takes it, and begins with the next record. False: the connection
  // has failed.
  bool push() noexcept;
  bool unsent() const noexcept { return sealed_.size() != 0; }
  std::uint64_t handed() const noexcept { return handed_; }  // bytes that the socket has taken

  // Opens the next record that has come; what is returned is valid until the next call. Empty: there is no
  // more, or ended() says why. Nothing is returned of a record before all of it was found unchanged. Throws
  // std::bad_alloc, and may be called again.
  std::span<const std::byte> open();
  // After open() found no more: why no more will come, if none will. Step::nonsense means that the records
  // were wrong, which a socket does not tell.
  std::optional<Step> ended() const noexcept { return ended_; }
  // Is called before a round of open(): the socket may have more again.
  void begin_round() noexcept {
    dry_ = false;
    without_data_ = 0;
  }

 private:
  Tls(int socket, TlsHandshake::Part part, std::vector<std::string> secrets, Records where);

  Step begin_records() noexcept;
  std::span<std::byte> next_record();
  bool look(std::size_t least);
  void note(RecordType type, std::span<const std::byte> content) noexcept;
  std::size_t seal_as(RecordType type, std::size_t count) noexcept;
  bool seal_note(RecordType type, std::span<const std::byte> content);
  bool renew_key();
  void end_with(Step why) noexcept;

  const int socket_;
  const Records where_;
  std::unique_ptr<KernelRecords> kernel_;
  ByteBuffer sealed_;  // waits for the socket
  std::uint64_t handed_ = 0;
  std::unique_ptr<TlsHandshake> handshake_;  // until it is done
  std::array<std::uint8_t, 32> binding_{};
  std::unique_ptr<RecordKey> ours_, theirs_;  // null: the handshake is not done, or the kernel has them
  ByteBuffer come_;
  std::size_t opened_ = 0;  // bytes of come_: the record that was returned last
  bool dry_ = false;        // the socket has no more
  int without_data_ = 0;    // records of this round
  bool key_asked_for_ = false;
  std::optional<Step> ended_;
};

// The first byte of whatever a TLS caller says first, and of what is answered.
inline constexpr unsigned char kTlsHandshakeRecord = 22;

}  // namespace fab
