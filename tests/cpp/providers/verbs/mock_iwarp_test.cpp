// What is different over iWARP: the peer's device writes the answer of a get, by a key that has to let it,
// and messages that never leave their queue pair are waited for a short time only.
#include <doctest/doctest.h>

#include <list>

#include "providers/verbs/mock_caller.h"

using namespace fab;
using namespace fab::test;

namespace {

// The device is chosen before it is listed.
const Info* iwarp_device() {
  REQUIRE(mock_verbs_set("iwarp=1") == 0);
  return mock_device();
}

}  // namespace

TEST_CASE("devices do small gets and large ones over iWARP") {
  constexpr std::size_t kLarge = 32u << 20;
  if (!iwarp_device()) return;
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

TEST_CASE("receives are not shared over iWARP") {
  if (!iwarp_device()) return;
  const auto open = [] { open_mock(with_setting("verbs_srq", "64"))->close(true); };
  CHECK_THROWS_WITH_AS(open(), doctest::Contains("(iWARP) a message for which no slot is free ends"), Error);
}

TEST_CASE("an answer that never leaves is not waited for until the deadline") {
  if (!iwarp_device()) return;
  for (const std::string which : {"send:1", "send:2"}) {  // the first message of each side
    CAPTURE(which);
    MockNode a({}, 64), b({}, 64);
    std::uint64_t value = 5;
    const MockFaults faults("iwarp=1,lose=" + which);
    Begun put(a, a.knows(b), transfer_of(OpCode::write, b.region->key(), 0, &value, sizeof value));
    CHECK(put.outcome() == Errc::ok);
    CHECK(b.memory[0] == std::byte{5});
    CHECK(mock_verbs_injected() == 1);
  }
}

TEST_CASE("a get that never leaves a new connection of the devices is done again") {
  if (!iwarp_device()) return;
  MockNode a({}, 64), b({}, 1 << 20);
  std::fill(b.memory.begin(), b.memory.end(), std::byte{9});
  const MockFaults faults("iwarp=1,lose=read:1");
  CHECK(soon([&] {
    std::vector<std::byte> into(b.memory.size());
    Begun get(a, a.knows(b), transfer_of(OpCode::read, b.region->key(), 0, into.data(), into.size()));
    CHECK(get.outcome() == Errc::ok);
    CHECK(into == b.memory);
    return mock_verbs_injected() == 1;
  }));
}

TEST_CASE("callers for whom there is no room are told to come back") {
  if (!iwarp_device()) return;
  MockNode called(DomainOptions{}, 64);
  std::list<MockCaller> silent;
  for (int i = 0; i < 16; ++i) CHECK(silent.emplace_back(called).call() == RDMA_CM_EVENT_ESTABLISHED);
  MockCaller more(called);
  CHECK(more.call() == RDMA_CM_EVENT_REJECTED);
  REQUIRE(more.refusal);
  CHECK(more.refusal->why == verbs::Refusal::Why::busy);
  silent.clear();
  MockCaller next(called);
  CHECK(next.call() == RDMA_CM_EVENT_ESTABLISHED);
  CHECK(next.shake() == Errc::ok);
}
