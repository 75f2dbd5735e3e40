#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/crypto/libssl.h"

namespace fab {

// One end of a TLS 1.3 connection (RFC 8446) over a non-blocking socket, which its owner keeps open. Both
// ends prove a key that they share (an external PSK), and agree on keys of this connection by (EC)DHE, so
// that who learns the shared key later reads nothing that was said before. There are no certificates, no
// tickets, no early data, and no older version.
//
// What is sealed is taken at once, and waits here while the socket is full: nothing has to be repeated, and
// sealing never waits for reading. Used by one thread at a time.
class Tls final {
 public:
  static constexpr std::size_t kMostInRecord = 16 * 1024;    // bytes
  static constexpr std::size_t kMostOfHandshake = 4 * 1024;  // bytes that are taken of the other side

  // Begin with the caller's or the called side's part. `secrets`: the caller's key, or those of which the
  // caller must have one. Need libssl(). Throw std::bad_alloc.
  static std::unique_ptr<Tls> call(int socket, const std::string& secret);
  static std::unique_ptr<Tls> answer(int socket, std::vector<std::string> secrets);
  ~Tls();
  Tls(const Tls&) = delete;
  Tls& operator=(const Tls&) = delete;

  enum class Step : std::uint8_t {
    done,
    again,         // when the socket has more to read
    gone,          // the other end has closed the connection
    key_rejected,  // the ends have no key in common
    nonsense,      // what came is no TLS, or was changed on its way
    no_memory,
  };
  // Goes on with the handshake.
  Step handshake() noexcept;
  bool heard() const noexcept { return heard_ != 0; }  // whether a byte has come
  // Once the handshake is done: 32 bytes that only the two ends of this very connection know.
  std::array<std::uint8_t, 32> binding() const;  // throws std::bad_alloc

  // Seals at most kMostInRecord bytes, and sends what the socket takes. Before that, room() says whether they
  // are taken. False: the connection has failed.
  bool seal(const std::byte* bytes, std::size_t count) noexcept;
  bool room() const noexcept;
  // Sends what waits, as far as the socket takes it. False: the connection has failed.
  bool push() noexcept;
  bool unsent() const noexcept { return sent_ != sealed_.size(); }
  std::uint64_t handed() const noexcept { return handed_; }  // bytes that the socket has taken

  // Opens what has come, into room for kMostInRecord bytes; returns how many bytes of one record that were,
  // or 0: there is no more, or ended() says why. Nothing is returned of a record before all of it was found
  // unchanged.
  std::size_t open(std::byte* out) noexcept;
  // After open() found no more: why no more will come, if none will. Step::nonsense means that the records
  // were wrong, which a socket does not tell.
  std::optional<Step> ended() const noexcept { return ended_; }
  // From here on records are read many at a time. Until then nothing beyond the present record is read.
  void read_ahead() noexcept;
  // Is called before a round of open(): the socket may have more again.
  void begin_round() noexcept { dry_ = false; }

 private:
  struct Callbacks;
  friend struct Callbacks;
  Tls(int socket, std::vector<std::string> secrets);

  Step failure() noexcept;
  bool look() noexcept;
  int take(char* out, int count) noexcept;          // of the socket, for the library
  int keep(const char* bytes, int count) noexcept;  // for the socket, from the library
  bool renew_key() noexcept;

  const int socket_;
  std::vector<std::string> secrets_;
  bool refused_ = false;  // the caller has none of the keys
  std::string identity_;  // what the caller says of its key
  std::vector<char> sealed_;
  std::size_t sent_ = 0;  // bytes of sealed_
  std::uint64_t handed_ = 0;
  // What came first after a pause. Most turns find nothing, and the library is not asked in these; and a
  // small record is here as a whole.
  std::array<char, 2048> first_;
  std::size_t first_taken_ = 0, first_come_ = 0;  // bytes of first_
  bool reads_ahead_ = false;
  bool dry_ = false;            // the socket has no more
  bool out_of_memory_ = false;  // sealed_ could not grow
  bool handshaking_ = true;
  std::size_t heard_ = 0;      // bytes that have come of the handshake
  std::uint64_t records_ = 0;  // sealed under the present key
  std::optional<Step> ended_;
  LibSsl::Bio* bio_ = nullptr;  // belongs to stream_
  LibSsl::Stream* stream_ = nullptr;
};

// The first byte of whatever a TLS caller says first, and of what is answered.
inline constexpr unsigned char kTlsHandshakeRecord = 22;

}  // namespace fab
