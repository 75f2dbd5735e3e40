#include "base/crypto/tls_records.h"

#include <algorithm>
#include <cstring>
#include <new>
#include <string>
#include <string_view>
#include <utility>

namespace fab {
namespace {

constexpr int kTag = 16;  // bytes
constexpr std::byte kCloseNotify{0};

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

// Writes the tag of the record that was just sealed. False: the library failed.
bool get_tag(const LibSsl& library, LibSsl::Cipher* cipher, std::byte* at) noexcept {
  LibSsl::Parameter tag[] = {{"tag", LibSsl::kOctets, at, kTag, 0}, {}};
  return (library.get_of_cipher && library.get_of_cipher(cipher, tag) == 1) ||
         library.control_cipher(cipher, LibSsl::kGetTag, kTag, at) == 1;
}

// Takes the tag that the record under way must have. False: the library failed.
bool set_tag(const LibSsl& library, LibSsl::Cipher* cipher, std::byte* at) noexcept {
  const LibSsl::Parameter tag[] = {{"tag", LibSsl::kOctets, at, kTag, 0}, {}};
  return (library.set_of_cipher && library.set_of_cipher(cipher, tag) == 1) ||
         library.control_cipher(cipher, LibSsl::kSetTag, kTag, at) == 1;
}

}  // namespace

Note note_of(RecordType type, std::span<const std::byte> content) noexcept {
  const auto begins = [&](const auto& said) {
    return content.size() == said.size() && std::equal(said.begin(), said.end() - 1, content.begin());
  };
  if (type == RecordType::handshake && begins(kKeyUpdate) && content.back() <= std::byte{1})
    return content.back() == std::byte{1} ? Note::renews_and_asks : Note::renews;
  if (type == RecordType::alert && content.size() == 2 && content[1] == kCloseNotify) return Note::leaves;
  return type == RecordType::data && content.empty() ? Note::nothing : Note::nonsense;
}

CipherKey cipher_key(const Digest& secret) {
  CipherKey made;
  expand(secret, "key", made.key);
  expand(secret, "iv", made.first_nonce);
  return made;
}

void renew_secret(Digest& secret) {
  std::uint8_t next[sizeof(Digest)];
  expand(secret, "traffic upd", next);
  std::memcpy(secret.data(), next, sizeof next);
  ::explicit_bzero(next, sizeof next);
}

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
  CipherKey made = cipher_key(secret_);
  std::memcpy(first_nonce_, made.first_nonce, sizeof first_nonce_);
  const bool done = library.init_cipher(cipher_, kind, nullptr, made.key, nullptr, use_ == Use::sealing) == 1;
  ::explicit_bzero(&made, sizeof made);
  if (!done) throw std::bad_alloc();
  count_ = 0;
  begun_ = false;
}

bool RecordKey::renew() noexcept try {
  const QuietLibSsl quiet;
  renew_secret(secret_);
  init(nullptr);
  return true;
} catch (const std::bad_alloc&) {
  return false;
}

// Gives the cipher the nonce of the next record, and its header, which is covered but not sealed.
bool RecordKey::begin(const std::byte* header) noexcept {
  const LibSsl& library = *libssl();
  std::uint8_t nonce[sizeof first_nonce_];
  std::memcpy(nonce, first_nonce_, sizeof nonce);
  for (unsigned i = 0; i < 8; ++i) nonce[11 - i] ^= static_cast<std::uint8_t>(count_ >> 8 * i);
  int covered;
  return library.init_cipher(cipher_, nullptr, nullptr, nullptr, nonce, -1) == 1 &&
         library.update_cipher(cipher_, nullptr, &covered, reinterpret_cast<const LibSsl::Bytes*>(header),
                               kRecordHeader) == 1;
}

void RecordKey::prepare() noexcept {
  if (begun_ || count_ == 0) return;  // of the first record under a key, no length is known
  const QuietLibSsl quiet;
  begun_ = begin(last_header_.data());
}

// A nonce that was begun with has sealed nothing yet, and is begun with again under another header.
bool RecordKey::next(const std::byte* header) noexcept {
  const bool begun =
      std::exchange(begun_, false) && std::ranges::equal(last_header_, std::span(header, kRecordHeader));
  if (!begun && !begin(header)) return false;
  std::memcpy(last_header_.data(), header, kRecordHeader);
  ++count_;
  return true;
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
  if (!next(record) ||
      library.update_cipher(cipher_, bytes_of(content), &done, bytes_of(content),
                            static_cast<int>(count) + 1) != 1 ||
      library.finish_cipher(cipher_, bytes_of(content) + done, &rest) != 1 ||
      !get_tag(library, cipher_, content + count + 1))
    return 0;
  return kRecordHeader + behind;
}

std::optional<RecordKey::Content> RecordKey::open(std::byte* record, std::size_t length) noexcept {
  const LibSsl& library = *libssl();
  if (length < kRecordHeader + kRecordTrailer) return std::nullopt;
  std::byte* const content = record + kRecordHeader;
  std::size_t count = length - kRecordHeader - kTag;
  int done, rest;
  if (!next(record) ||
      library.update_cipher(cipher_, bytes_of(content), &done, bytes_of(content), static_cast<int>(count)) !=
          1 ||
      !set_tag(library, cipher_, content + count) ||
      library.finish_cipher(cipher_, bytes_of(content) + done, &rest) != 1)
    return std::nullopt;
  // Zeros may follow the type, to hide how long the content is.
  while (count != 0 && content[count - 1] == std::byte{0}) --count;
  if (count == 0 || count - 1 > kMostInRecord) return std::nullopt;
  return Content{static_cast<RecordType>(content[count - 1]), count - 1};
}

}  // namespace fab
