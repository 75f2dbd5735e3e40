// Gets over iWARP: the peer's device writes the answer, by a key that has to let it.
#include <doctest/doctest.h>

#include "providers/verbs/mock_node.h"

using namespace fab;
using namespace fab::test;

TEST_CASE("devices do small gets and large ones over iWARP") {
  constexpr std::size_t kLarge = 32u << 20;
  REQUIRE(mock_verbs_set("iwarp=1") == 0);
  if (!mock_device()) return;
  MockNode a({}, 64), b({}, kLarge);
  const PeerId to_b = a.knows(b);
  std::fill(b.memory.begin(), b.memory.end(), std::byte{9});
  for (const std::size_t length : {std::size_t{100}, std::size_t{64 * 1024}, kLarge}) {
    std::vector<std::byte> into(length);
    const int before = mock_verbs_objects("read");
    CHECK(soon([&] {
      std::fill(into.begin(), into.end(), std::byte{0});
      Begun get(a, to_b, transfer_of(OpCode::read, b.region->key(), 0, into.data(), length));
      CHECK(get.outcome() == Errc::ok);
      return mock_verbs_objects("read") != before;
    }));
    CHECK(into == std::vector<std::byte>(length, std::byte{9}));
  }
  CHECK(mock_verbs_objects("longest_writable") == kLarge);
}
