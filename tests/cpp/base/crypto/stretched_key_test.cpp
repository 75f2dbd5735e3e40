#include "base/crypto/stretched_key.h"

#include <doctest/doctest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <set>
#include <string>
#include <thread>

#include "base/bytes/wire.h"
#include "base/crypto/key_pair.h"
#include "base/crypto/libcrypto.h"

using namespace fab;

namespace {

std::string hex_of(const Digest& digest) {
  std::string hex;
  for (const std::uint8_t byte : digest) {
    hex += "0123456789abcdef"[byte >> 4];
    hex += "0123456789abcdef"[byte & 15];
  }
  return hex;
}

std::string text(const Digest& digest) {
  return {reinterpret_cast<const char*>(digest.data()), digest.size()};
}

}  // namespace

TEST_CASE("a key with zero bytes behind it, or before it, is another key") {
  std::set<std::string> made;
  const std::string keys[] = {"red",
                              std::string("red\0", 4),
                              std::string("red\0\0", 5),
                              std::string("\0red", 4),
                              std::string(1, '\0'),
                              std::string(2, '\0'),
                              std::string(64, '\0'),
                              std::string(65, 'x'),
                              text(sha256(std::string(65, 'x')))};
  for (const std::string& key : keys) {
    CHECK(stretched_key(key).size() == 32);
    CHECK(stretched_key(key) == stretched_key(key));
    made.insert(stretched_key(key));
  }
  CHECK(made.size() == std::size(keys));
  CHECK(stretched_key("").empty());
}

TEST_CASE("keys are stretched as others do it, with a libcrypto and without") {
  // Computed by Python's hashlib.pbkdf2_hmac.
  CHECK(hex_of(pbkdf2_sha256("password", "salt", 1)) ==
        "120fb6cffcf8b32c43e7225256c4f837a86548c92ccc35480805987cb70be17b");
  CHECK(hex_of(pbkdf2_sha256("password", "salt", 4096)) ==
        "c5e478d59288c841aa530db6845c4c8d962893a001ce4e11a4963873aa98134a");
  const std::string bound = text(sha256(WireWriter().put(std::uint64_t{3}).raw("red").bytes()));
  CHECK(stretched_key("red") == text(pbkdf2_sha256(bound, "pyfab authorization key 1", 40'000)));
}

TEST_CASE("a child that was forked while keys were made and stretched makes its own") {
  std::atomic<bool> over = false;
  std::atomic<unsigned> made = 0;
  const auto make = [&](const auto& one) {
    return std::thread([&, one] {
      while (!over) {
        one();
        ++made;
      }
    });
  };
  std::thread others[] = {make([&] { stretched_key("key " + std::to_string(made)); }), make([] {
                            if (const auto pair = KeyPair::make()) pair->sign("text");
                          })};
  for (int round = 0; round < 50; ++round) {
    for (const unsigned begun = made; made == begun;) std::this_thread::yield();
    const pid_t child = ::fork();
    if (child == 0) {
      ::alarm(60);
      const auto pair = KeyPair::make();
      const bool right = stretched_key("of the child").size() == 32 &&
                         (!pair || verify(pair->public_key(), "text", pair->sign("text")));
      ::_exit(right ? 0 : 1);
    }
    int status = -1;
    REQUIRE(::waitpid(child, &status, 0) == child);
    CHECK(status == 0);
  }
  over = true;
  for (std::thread& other : others) other.join();
}
