#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "base/bytes/sha256.h"
#include "base/crypto/libssl.h"
#include "base/queues/byte_buffer.h"

namespace fab {

enum class TlsStep : std::uint8_t {
  done,
  again,         // when the socket has more to read
  gone,          // the other end has closed the connection
  key_rejected,  // the ends have no key in common
  nonsense,      // what came is no TLS, or was changed on its way
  no_memory,
};

// The handshake of TLS 1.3 (RFC 8446), which libssl does. Both ends prove a key that they share (an external
// PSK), and agree on keys of this connection by (EC)DHE, so that who learns the shared key later reads
// nothing that was said before. There are no certificates, no tickets, no early data, and no older version.
// It ends with the secrets from which the keys of both directions follow, and libssl is not needed any
// longer.
class TlsHandshake final {
 public:
  static constexpr std::size_t kMostHeard = 4 * 1024;  // bytes that are taken of the other side

  enum class Part : std::uint8_t { calls, answers };
  // `secrets`: the caller's key, or those of which the caller must have one. What is to be sent is put into
  // `out`. Needs libssl(). Throws std::bad_alloc.
  TlsHandshake(int socket, Part part, std::vector<std::string> secrets, ByteBuffer& out);
  ~TlsHandshake();
  TlsHandshake(const TlsHandshake&) = delete;
  TlsHandshake& operator=(const TlsHandshake&) = delete;

  // Goes on as far as what has come allows. Never reads beyond the last record of the handshake.
  TlsStep step() noexcept;
  bool heard() const noexcept { return heard_ != 0; }  // whether a byte has come

  // Once it is done.
  struct Outcome {
    Digest ours{}, theirs{};                 // traffic secrets
    std::array<std::uint8_t, 32> binding{};  // that only the two ends of this very connection know
  };
  const Outcome& outcome() const noexcept { return outcome_; }

 private:
  struct Callbacks;
  friend struct Callbacks;

  TlsStep failure() noexcept;
  bool learn_outcome() noexcept;
  void note_secret(const char* line) noexcept;
  int take(char* out, int count) noexcept;          // of the socket, for the library
  int keep(const char* bytes, int count) noexcept;  // for the socket, from the library

  const int socket_;
  const Part part_;
  std::vector<std::string> secrets_;
  ByteBuffer& out_;
  bool refused_ = false;  // the caller has none of the keys
  std::string identity_;  // what the caller says of its key
  bool out_of_memory_ = false, gone_ = false, too_much_ = false;
  std::size_t heard_ = 0;  // bytes
  unsigned noted_ = 0;     // secrets
  Outcome outcome_;
  LibSsl::Bio* bio_ = nullptr;  // belongs to stream_
  LibSsl::Stream* stream_ = nullptr;
};

}  // namespace fab
