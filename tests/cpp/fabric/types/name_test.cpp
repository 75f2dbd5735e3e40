#include "fabric/types/name.h"

#include <doctest/doctest.h>

#include <random>

#include "fabric/types/error.h"

namespace fab {
namespace {

TEST_CASE("crc32 is the one of ISO 3309") { CHECK(crc32("123456789") == 0xCBF43926u); }

TEST_CASE("names and remote regions survive the way through bytes") {
  const Name name{{{"shm.0", 0, "abc"}, {"tcp.0", 0, std::string(1000, 'x')}, {"tcp.0", 3, ""}}};
  const Name copy = Name::decode(name.encode());
  CHECK(copy.parts == name.parts);
  CHECK(copy.contexts() == 4);
  CHECK(copy.find("tcp.0", 3) != nullptr);
  CHECK(copy.find("tcp.0", 1) == nullptr);

  const RemoteRegion region{.key = 1, .base = 2, .length = 3, .access = 4, .parts = {{"verbs.0", 0, "rkey"}}};
  const RemoteRegion same = RemoteRegion::decode(region.encode());
  CHECK(same.key == 1);
  CHECK(same.base == 2);
  CHECK(same.length == 3);
  CHECK(same.access == 4);
  CHECK(same.parts == region.parts);
}

TEST_CASE("mutated bytes are refused, never read past their end") {
  const std::string good = Name{{{"shm.0", 0, "abc"}, {"tcp.0", 0, std::string(100, 'x')}}}.encode();
  std::mt19937 random(2);
  for (int round = 0; round < 20000; ++round) {
    std::string bytes = good;
    switch (random() % 3) {
      case 0:
        bytes.resize(random() % bytes.size());
        break;
      case 1:
        bytes[random() % bytes.size()] ^= static_cast<char>(1 << random() % 8);
        break;
      default:
        bytes.insert(random() % bytes.size(), 1 + random() % 8, static_cast<char>(random()));
        break;
    }
    // Copied to the heap so that a memory checker sees the first byte past the end.
    CHECK_THROWS_AS(Name::decode(std::string(bytes)), Error);
    CHECK_THROWS_AS(RemoteRegion::decode(std::string(bytes)), Error);
  }
}

}  // namespace
}  // namespace fab
