#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/bytes/sha256.h"
#include "base/lifetime.h"

namespace fab {

// One authorization key of an endpoint: peers that prove it are served.
struct AuthKey {
  // What stretched_key() made of the user's key, by which this side proves it; empty: peers prove nothing,
  // and the endpoint has no other key.
  std::string secret{};
  std::uint32_t number = 0;  // of the key within the domain (RegionEntry::auth); 0: the domain's key
  // What AddressVector::auth() returns for peers under this key; empty if it is not from the address vector.
  std::vector<std::uint32_t> handles{};
  // While the key is being replaced: secrets with which peers may prove it as well.
  std::vector<std::string> others{};

  std::size_t secrets() const noexcept { return 1 + others.size(); }
  const std::string& secret_at(std::size_t i) const noexcept FAB_LIFETIME_BOUND {
    return i == 0 ? secret : others[i - 1];
  }
  bool has(const std::string& asked) const noexcept {
    return asked == secret || std::ranges::find(others, asked) != others.end();
  }
};
using AuthKeys = std::vector<AuthKey>;  // the keys of one endpoint; never empty, no secret twice

inline constexpr std::size_t kMaxAuthKeys = 16;  // secrets that one endpoint may have
inline const AuthKey kNoAuthKey;

inline std::size_t count_secrets(const AuthKeys& keys) noexcept {
  std::size_t count = 0;
  for (const AuthKey& key : keys) count += key.secrets();
  return count;
}

// The secret of a key with which two sides have proven it to each other.
class ProvenSecret final {
 public:
  void set(const std::string& secret) noexcept { hash_ = sha256(secret); }
  // Whether that is none of the key's secrets any more. Before set() it is not.
  bool removed_from(const AuthKey& key) const noexcept {
    if (hash_ == Digest{}) return false;
    for (std::size_t i = 0; i < key.secrets(); ++i)
      if (hash_ == sha256(key.secret_at(i))) return false;
    return true;
  }

 private:
  Digest hash_{};
};

struct ProvenKey {
  std::size_t index = 0;  // in AuthKeys
  std::string secret{};   // with which it was proven
};

// The key that `proof` was made with, where `make(secret)` is what it should be; nothing: it is none of them.
// The comparison tells nothing by its duration.
template <class Make>
std::optional<ProvenKey> proven_key(const AuthKeys& keys, const Digest& proof, Make make) {
  for (std::size_t i = 0; i < keys.size(); ++i)
    for (std::size_t j = 0; j < keys[i].secrets(); ++j)
      if (const std::string& secret = keys[i].secret_at(j); same(proof, make(secret)))
        return ProvenKey{i, secret};
  return std::nullopt;
}

}  // namespace fab
