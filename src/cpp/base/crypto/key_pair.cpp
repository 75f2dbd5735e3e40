#include "base/crypto/key_pair.h"

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

bool verify(const PublicKey& by, std::string_view text, const Signature& signature) noexcept {
  const LibCrypto* const library = libcrypto();
  if (!library) return false;
  const QuietLibCrypto quiet(*library);
  const OwnKey key(library->new_raw_public_key(LibCrypto::kEd25519, nullptr, by.data(), by.size()));
  if (!key) return false;
  const DigestContext context(*library);
  return context.made && library->verify_init(context.made, nullptr, nullptr, nullptr, key.get()) == 1 &&
         library->verify(context.made, signature.data(), signature.size(), bytes_of(text), text.size()) == 1;
}

}  // namespace fab
