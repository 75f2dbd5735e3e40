#include "base/crypto/key_pair.h"

#include <algorithm>
#include <cstring>
#include <new>

#include "base/bytes/random.h"

namespace fab {
namespace {

using Bytes = LibCrypto::Bytes;

const Bytes* bytes_of(std::string_view text) noexcept { return reinterpret_cast<const Bytes*>(text.data()); }

// What one signature is made or looked at with.
struct DigestContext {
  explicit DigestContext(const LibCrypto& of) : library(of), made(of.new_context()) {}
  ~DigestContext() { library.free_context(made); }
  DigestContext(const DigestContext&) = delete;
  DigestContext& operator=(const DigestContext&) = delete;
  const LibCrypto& library;
  LibCrypto::Context* const made;
};

// The y coordinates, as they are encoded, of the points of small order on the curve of RFC 8032. A number
// below 19 has a second encoding, with the prime p = 2^255 - 19 added to it, which a decoder may take as
// well. Chalkias, Garillot and Nikolaenko, "Taming the many EdDSAs" (2020), list the points and their
// encodings.
constexpr Bytes kSmallOrder[][32] = {
    // 0, of order 4, and p
    {},
    {0xed, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff,
     0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f},
    // 1, the neutral element, and p + 1
    {1},
    {0xee, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff,
     0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f},
    // p - 1, of order 2
    {0xec, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff,
     0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f},
    // of order 8
    {0x26, 0xe8, 0x95, 0x8f, 0xc2, 0xb2, 0x27, 0xb0, 0x45, 0xc3, 0xf4, 0x89, 0xf2, 0xef, 0x98, 0xf0,
     0xd5, 0xdf, 0xac, 0x05, 0xd3, 0xc6, 0x33, 0x39, 0xb1, 0x38, 0x02, 0x88, 0x6d, 0x53, 0xfc, 0x05},
    {0xc7, 0x17, 0x6a, 0x70, 0x3d, 0x4d, 0xd8, 0x4f, 0xba, 0x3c, 0x0b, 0x76, 0x0d, 0x10, 0x67, 0x0f,
     0x2a, 0x20, 0x53, 0xfa, 0x2c, 0x39, 0xcc, 0xc6, 0x4e, 0xc7, 0xfd, 0x77, 0x92, 0xac, 0x03, 0x7a}};

}  // namespace

std::shared_ptr<const KeyPair> KeyPair::make() {
  const LibCrypto* const library = libcrypto();
  if (!library) return nullptr;
  const QuietLibCrypto quiet(*library);
  Bytes seed[32];
  fill_random(seed, sizeof seed);
  OwnKey key(library->new_raw_private_key(LibCrypto::kEd25519, nullptr, seed, sizeof seed));
  ::explicit_bzero(seed, sizeof seed);
  if (!key) throw std::bad_alloc();
  std::shared_ptr<KeyPair> pair(new KeyPair(std::move(key)));
  std::size_t length = pair->public_.size();
  if (library->get_raw_public_key(pair->key_.get(), pair->public_.data(), &length) != 1)
    throw std::bad_alloc();
  return pair;
}

Signature KeyPair::sign(std::string_view text) const {
  const LibCrypto& library = *libcrypto();
  const QuietLibCrypto quiet(library);
  const DigestContext context(library);
  Signature signature{};
  std::size_t length = signature.size();
  if (!context.made || library.sign_init(context.made, nullptr, nullptr, nullptr, key_.get()) != 1 ||
      library.sign(context.made, signature.data(), &length, bytes_of(text), text.size()) != 1)
    throw std::bad_alloc();
  return signature;
}

bool has_small_order(const PublicKey& key) noexcept {
  PublicKey y = key;
  y.back() &= 0x7f;  // the highest bit is the sign of the other coordinate
  return std::ranges::any_of(kSmallOrder,
                             [&](const Bytes(&point)[32]) { return std::ranges::equal(y, point); });
}

bool verify(const PublicKey& by, std::string_view text, const Signature& signature) noexcept {
  const LibCrypto* const library = libcrypto();
  if (!library || has_small_order(by)) return false;
  const QuietLibCrypto quiet(*library);
  const OwnKey key(library->new_raw_public_key(LibCrypto::kEd25519, nullptr, by.data(), by.size()));
  if (!key) return false;
  const DigestContext context(*library);
  return context.made && library->verify_init(context.made, nullptr, nullptr, nullptr, key.get()) == 1 &&
         library->verify(context.made, signature.data(), signature.size(), bytes_of(text), text.size()) == 1;
}

}  // namespace fab
