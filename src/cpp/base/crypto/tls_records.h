#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "base/bytes/sha256.h"
#include "base/crypto/libssl.h"

namespace fab {

// How records of TLS 1.3 lie in memory (RFC 8446, 5.2).
inline constexpr std::size_t kRecordHeader = 5;                      // bytes
inline constexpr std::size_t kRecordTrailer = 1 + 16;                // the true type, and the tag
inline constexpr std::size_t kMostInRecord = 16 * 1024;              // bytes of content
inline constexpr std::size_t kMostSealedInRecord = 16 * 1024 + 256;  // behind the header
inline constexpr std::size_t kRecordOverhead = kRecordHeader + kRecordTrailer;
// What one key seals; AES-GCM may seal 2^24.5 (RFC 8446, 5.5). Only tests write it, before they connect.
inline std::uint64_t most_records_of_key = 1ull << 23;

// Of a record that begins so, with its header; at least kRecordHeader bytes of it are there.
constexpr std::size_t length_of_record(std::span<const std::byte> begun) noexcept {
  return kRecordHeader +
         (std::to_integer<std::size_t>(begun[3]) << 8 | std::to_integer<std::size_t>(begun[4]));
}

enum class RecordType : std::uint8_t { alert = 21, handshake = 22, data = 23 };

// What may be said in records without data (RFC 8446, 4.6.3 and 6): that the next record comes with another
// key, which the other end need not have of its own; that a record was wrong, which ends the connection.
inline constexpr std::array<std::byte, 5> kKeyUpdate{std::byte{24}, std::byte{0}, std::byte{0}, std::byte{1},
                                                     std::byte{0}};
inline constexpr std::array<std::byte, 2> kBadRecordAlert{std::byte{2}, std::byte{20}};

// What such a record says. The other end may go on with another key, and ask for the same; say that it ends;
// say nothing. Everything else ends the connection.
enum class Note : std::uint8_t { renews, renews_and_asks, leaves, nothing, nonsense };
Note note_of(RecordType type, std::span<const std::byte> content) noexcept;

// What AES-128-GCM is begun with in one direction.
struct CipherKey {
  std::uint8_t key[16], first_nonce[12];
};
// From the traffic secret of the direction (RFC 8446, 7.3). Throws std::bad_alloc.
CipherKey cipher_key(const Digest& secret);
// Makes the next secret of the direction out of this one (RFC 8446, 7.2). Throws std::bad_alloc.
void renew_secret(Digest& secret);

// One direction of a TLS 1.3 connection after its handshake: its key, and how many records that has sealed or
// opened. AES-128-GCM is libcrypto's; what a record looks like, how its nonce is counted and how a key
// follows from another one is here (RFC 8446, 5.2, 5.3, 7.1 to 7.3), because libssl takes some microseconds
// for a small record and copies large ones once more.
class RecordKey final {
 public:
  enum class Use : bool { opening, sealing };
  // `secret`: the traffic secret of the direction. Needs libssl(). Throws std::bad_alloc.
  RecordKey(Use use, const Digest& secret);
  ~RecordKey();
  RecordKey(const RecordKey&) = delete;
  RecordKey& operator=(const RecordKey&) = delete;

  // Seals `count` bytes that lie behind kRecordHeader bytes of `record` and have kRecordTrailer bytes behind
  // them. Returns the length of the record; 0: the library failed.
  std::size_t seal(std::byte* record, std::size_t count, RecordType type) noexcept;

  struct Content {
    RecordType type;
    std::size_t length;  // bytes behind the header
  };
  // Opens the next record where it lies. Nothing: it is not the one that the other end has sealed as its
  // next, or the library failed; then the bytes behind its header mean nothing.
  std::optional<Content> open(std::byte* record, std::size_t length) noexcept;

  // Begins with the next record before it is there, which costs as much as the rest of a small one. It is
  // taken to be as long as the last one; if it is not, seal() or open() begins again.
  void prepare() noexcept;

  // The next key follows from this one, which is forgotten. False: out of memory, and the key is of no use
  // any more.
  bool renew() noexcept;
  std::uint64_t used() const noexcept { return count_; }  // records under the present key

 private:
  void init(const void* kind);  // throws std::bad_alloc
  void end() noexcept;
  bool begin(const std::byte* header) noexcept;
  bool next(const std::byte* header) noexcept;

  const Use use_;
  Digest secret_;
  std::uint8_t first_nonce_[sizeof CipherKey::first_nonce];
  std::uint64_t count_ = 0;
  std::array<std::byte, kRecordHeader> last_header_{};
  bool begun_ = false;  // with the next record, under last_header_
  LibSsl::Cipher* const cipher_;
};

}  // namespace fab
