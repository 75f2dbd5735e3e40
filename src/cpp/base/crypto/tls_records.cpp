#include "base/crypto/tls_records.h"

#include <cstring>
#include <new>
#include <string>
#include <string_view>

namespace fab {
namespace {

constexpr int kKey = 16, kTag = 16;  // bytes

// HKDF-Expand-Label without a context, of at most 32 bytes (RFC 8446, 7.1).
template <std::size_t kBytes>
void expand(const Digest& secret, std::string_view label, std::uint8_t (&out)[kBytes]) {
  static_assert(kBytes <= sizeof(Digest));
  std::string info{0, kBytes, static_cast<char>(6 + label.size())};
  info.append("tls13 ").append(label).append({0, 1});
  Digest all = hmac_sha256({reinterpret_cast<const char*>(secret.data()), secret.size()}, info);
  std::memcpy(out, all.data(), kBytes);
  ::explicit_bzero(all.data(), all.size());
}

LibSsl::Bytes* bytes_of(std::byte* at) noexcept { return reinterpret_cast<LibSsl::Bytes*>(at); }

}  // namespace

RecordKey::RecordKey(Use use, const Digest& secret)
    : use_(use), secret_(secret), cipher_(libssl()->new_cipher()) {
  const QuietLibSsl quiet;
  try {
    if (!cipher_) throw std::bad_alloc();
    init(libssl()->aes_128_gcm());
  } catch (const std::bad_alloc&) {
    end();
    throw;
  }
}

RecordKey::~RecordKey() { end(); }

void RecordKey::end() noexcept {
  libssl()->free_cipher(cipher_);
  ::explicit_bzero(secret_.data(), secret_.size());
}

// Takes the key of the secret; `kind` is null where the cipher has one already.
void RecordKey::init(const void* kind) {
  const LibSsl& library = *libssl();
  expand(secret_, "iv", first_nonce_);
  std::uint8_t key[kKey];
  expand(secret_, "key", key);
  const bool done = library.init_cipher(cipher_, kind, nullptr, key, nullptr, use_ == Use::sealing) == 1;
  ::explicit_bzero(key, sizeof key);
  if (!done) throw std::bad_alloc();
  count_ = 0;
}

bool RecordKey::renew() noexcept try {
  const QuietLibSsl quiet;
  std::uint8_t next[sizeof(Digest)];
  expand(secret_, "traffic upd", next);
  std::memcpy(secret_.data(), next, sizeof next);
  ::explicit_bzero(next, sizeof next);
  init(nullptr);
  return true;
} catch (const std::bad_alloc&) {
  return false;
}

// The nonce of the next record, and its header, which is covered but not sealed.
bool RecordKey::begin(const std::byte* header) noexcept {
  const LibSsl& library = *libssl();
  std::uint8_t nonce[sizeof first_nonce_];
  std::memcpy(nonce, first_nonce_, sizeof nonce);
  for (unsigned i = 0; i < 8; ++i) nonce[11 - i] ^= static_cast<std::uint8_t>(count_ >> 8 * i);
  ++count_;
  int covered;
  return library.init_cipher(cipher_, nullptr, nullptr, nullptr, nonce, -1) == 1 &&
         library.update_cipher(cipher_, nullptr, &covered, reinterpret_cast<const LibSsl::Bytes*>(header),
                               kRecordHeader) == 1;
}

std::size_t RecordKey::seal(std::byte* record, std::size_t count, RecordType type) noexcept {
  const LibSsl& library = *libssl();
  const std::size_t behind = count + kRecordTrailer;
  const std::byte header[kRecordHeader] = {std::byte{23}, std::byte{3}, std::byte{3},
                                           static_cast<std::byte>(behind >> 8),
                                           static_cast<std::byte>(behind)};
  std::memcpy(record, header, sizeof header);
  std::byte* const content = record + kRecordHeader;
  content[count] = static_cast<std::byte>(type);
  int done, rest;
  if (!begin(record) ||
      library.update_cipher(cipher_, bytes_of(content), &done, bytes_of(content),
                            static_cast<int>(count) + 1) != 1 ||
      library.finish_cipher(cipher_, bytes_of(content) + done, &rest) != 1 ||
      library.control_cipher(cipher_, LibSsl::kGetTag, kTag, content + count + 1) != 1)
    return 0;
  return kRecordHeader + behind;
}

std::optional<RecordKey::Content> RecordKey::open(std::byte* record, std::size_t length) noexcept {
  const LibSsl& library = *libssl();
  if (length < kRecordHeader + kRecordTrailer) return std::nullopt;
  std::byte* const content = record + kRecordHeader;
  std::size_t count = length - kRecordHeader - kTag;
  int done, rest;
  if (!begin(record) ||
      library.update_cipher(cipher_, bytes_of(content), &done, bytes_of(content), static_cast<int>(count)) !=
          1 ||
      library.control_cipher(cipher_, LibSsl::kSetTag, kTag, content + count) != 1 ||
      library.finish_cipher(cipher_, bytes_of(content) + done, &rest) != 1)
    return std::nullopt;
  // Zeros may follow the type, to hide how long the content is.
  while (count != 0 && content[count - 1] == std::byte{0}) --count;
  if (count == 0 || count - 1 > kMostInRecord) return std::nullopt;
  return Content{static_cast<RecordType>(content[count - 1]), count - 1};
}

}  // namespace fab
