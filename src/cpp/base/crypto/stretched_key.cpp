#include "base/crypto/stretched_key.h"

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <string_view>

#include "base/bytes/sha256.h"
#include "base/bytes/wire.h"
#include "base/crypto/libcrypto.h"
#include "base/locks/fork_gate.h"
#include "base/locks/mutex.h"

namespace fab {
namespace {

constexpr int kRounds = 40'000;
constexpr std::size_t kMostKnown = 1024;  // keys that are remembered
constexpr std::string_view kSalt = "pyfab authorization key 1";

std::string_view view(const Digest& digest) noexcept {
  return {reinterpret_cast<const char*>(digest.data()), digest.size()};
}

// The first block of PBKDF2 with HMAC-SHA-256 (RFC 8018).
Digest pbkdf2(std::string_view password) {
  Digest sum{};
  if (const LibCrypto* const library = libcrypto()) {
    const QuietLibCrypto quiet(*library);
    if (library->pbkdf2(password.data(), static_cast<int>(password.size()),
                        reinterpret_cast<const LibCrypto::Bytes*>(kSalt.data()),
                        static_cast<int>(kSalt.size()), kRounds, library->sha256(),
                        static_cast<int>(sum.size()), sum.data()) == 1)
      return sum;
  }
  return pbkdf2_sha256(password, kSalt, kRounds);
}

}  // namespace

Digest pbkdf2_sha256(std::string_view password, std::string_view salt, int rounds) {
  Digest last = hmac_sha256(password, std::string(salt) + std::string("\0\0\0\1", 4)), sum = last;
  for (int round = 1; round < rounds; ++round) {
    last = hmac_sha256(password, view(last));
    for (std::size_t i = 0; i < sum.size(); ++i) sum[i] ^= last[i];
  }
  return sum;
}

// Keys themselves are not kept: the process remembers by their hashes. Nobody waits for the lock: in a child
// of a fork, a thread that is not there any more may have it for ever, and to remember is only faster.
std::string stretched_key(const std::string& key) {
  if (key.empty()) return {};
  static constinit Mutex mutex;
  static constinit MadeOnce<std::map<Digest, Digest>> remembered;
  auto& known = remembered.get([] { return std::map<Digest, Digest>(); });
  const Digest bound = sha256(WireWriter().put(std::uint64_t{key.size()}).raw(key).bytes());
  if (mutex.try_lock()) {
    const LockGuard lock(mutex, std::adopt_lock);
    if (const auto found = known.find(bound); found != known.end()) return std::string(view(found->second));
  }
  const Digest stretched = pbkdf2(view(bound));
  if (mutex.try_lock()) {
    const LockGuard lock(mutex, std::adopt_lock);
    if (known.size() >= kMostKnown) known.clear();
    known.emplace(bound, stretched);
  }
  return std::string(view(stretched));
}

}  // namespace fab
