#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string_view>
#include <utility>

#include "base/crypto/libcrypto.h"
#include "base/lifetime.h"

// Ed25519 signatures (RFC 8032).
namespace fab {

using PublicKey = std::array<std::uint8_t, 32>;
using Signature = std::array<std::uint8_t, 64>;
inline constexpr PublicKey kNoPublicKey{};

struct FreeKey {
  void operator()(LibCrypto::Key* key) const noexcept { libcrypto()->free_key(key); }
};
using OwnKey = std::unique_ptr<LibCrypto::Key, FreeKey>;

// A pair of keys that lives as long as this object, and is written nowhere. Safe from any thread.
class KeyPair final {
 public:
  // Null where the system has no libcrypto.
  static std::shared_ptr<const KeyPair> make();
  KeyPair(const KeyPair&) = delete;
  KeyPair& operator=(const KeyPair&) = delete;

  const PublicKey& public_key() const noexcept FAB_LIFETIME_BOUND { return public_; }
  Signature sign(std::string_view text) const;  // throws std::bad_alloc

 private:
  explicit KeyPair(OwnKey key) noexcept : key_(std::move(key)) {}
  const OwnKey key_;
  PublicKey public_{};
};

// The pair of a domain, which is made when its first endpoint needs it. Safe from any thread.
class KeyPairOnce final {
 public:
  // A pair of KeyPair::make(), the same one each time.
  std::shared_ptr<const KeyPair> get() {
    std::call_once(once_, [this] { pair_ = KeyPair::make(); });
    return pair_;
  }

 private:
  std::once_flag once_;
  std::shared_ptr<const KeyPair> pair_;
};

// Whether the key is an encoding, canonical or not, of one of the eight points whose order divides 8. Nobody
// has a private key to it, and signatures that need none fit it: for any text, a few tries find one.
bool has_small_order(const PublicKey& key) noexcept;

// False also for a key of small order, where there is no libcrypto, and where there is no memory.
bool verify(const PublicKey& by, std::string_view text, const Signature& signature) noexcept;

}  // namespace fab
