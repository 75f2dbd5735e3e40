#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/bytes/sha256.h"

namespace fab {

// One authorization key of an endpoint: peers that prove it are served.
struct AuthKey {
  // What stretched_key() made of the user's key; empty: peers prove nothing, and the endpoint has no other
  // key.
  std::string secret{};
  std::uint32_t number = 0;  // of the key within the domain (RegionEntry::auth); 0: the domain's key
  // What AddressVector::auth() returns for peers under this key; empty if it is not from the address vector.
  std::vector<std::uint32_t> handles{};
};
using AuthKeys = std::vector<AuthKey>;  // the keys of one endpoint; never empty, no secret twice

inline constexpr std::size_t kMaxAuthKeys = 16;  // that one endpoint may have
inline const AuthKey kNoAuthKey;

// Index of the key that `proof` was made with, where `make(secret)` is what it should be; nothing: it is none
// of them. The comparison tells nothing by its duration.
template <class Make>
std::optional<std::size_t> proven_key(const AuthKeys& keys, const Digest& proof, Make make) {
  for (std::size_t i = 0; i < keys.size(); ++i)
    if (same(proof, make(keys[i].secret))) return i;
  return std::nullopt;
}

}  // namespace fab
