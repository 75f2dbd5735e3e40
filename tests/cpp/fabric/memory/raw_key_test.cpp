#include "fabric/memory/raw_key.h"

#include <doctest/doctest.h>

#include <random>

namespace fab {
namespace {

TEST_CASE("raw keys of every size give the key back") {
  std::mt19937_64 random(1);
  for (std::size_t size : {std::size_t{4}, std::size_t{5}, std::size_t{8}, kRawKeyBytes})
    for (int round = 0; round < 1000; ++round) {
      const std::uint64_t key = size < 8 ? random() >> (64 - 8 * size) : random();
      const std::string raw = encode_raw_key(key, size);
      REQUIRE(raw.size() == size);
      REQUIRE(decode_raw_key(raw) == key);
    }
}

TEST_CASE("a key that has to be mapped does not read as the key, and one damaged bit is seen") {
  const std::string raw = encode_raw_key(0x0123456789abcdef, kRawKeyBytes);
  CHECK(raw.find(encode_raw_key(0x0123456789abcdef, 8)) == std::string::npos);
  for (std::size_t bit = 0; bit < 8 * raw.size(); ++bit) {
    std::string damaged = raw;
    damaged[bit / 8] = static_cast<char>(damaged[bit / 8] ^ (1 << bit % 8));
    CHECK_FALSE(decode_raw_key(damaged));
  }
}

TEST_CASE("other lengths are no raw keys") {
  for (const std::size_t size : {0, 1, 3, 9, 15, 17, 100})
    CHECK_FALSE(decode_raw_key(std::string(size, 'x')));
}

}  // namespace
}  // namespace fab
