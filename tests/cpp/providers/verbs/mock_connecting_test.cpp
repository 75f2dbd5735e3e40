// Calls over a device that come back, or of which nothing is told.
#include <doctest/doctest.h>

#include "providers/verbs/mock_node.h"

using namespace fab;
using namespace fab::test;

namespace {

constexpr std::size_t kLarge = 1 << 20;

DomainOptions impatient() {
  DomainOptions options;
  options.peer_deadline = 1;
  return options;
}

// A put of all the memory that the other side has.
Errc put_whole(MockNode& from, MockNode& to, std::byte value) {
  std::vector<std::byte> bytes(to.memory.size(), value);
  Begun put(from, from.knows(to),
            transfer_of(OpCode::write, to.region->key(), 0, bytes.data(), bytes.size()));
  const Errc outcome = put.outcome();
  if (outcome == Errc::ok) CHECK(to.memory == bytes);
  return outcome;
}

}  // namespace

TEST_CASE("a call that fails once is made again") {
  if (!mock_device()) return;
  for (const std::string fault : {"lose=address:1", "lose=route:1", "lose=call:1", "lose=answer:1",
                                  "deny=resolve_route:1", "deny=connect:1"}) {
    CAPTURE(fault);
    MockNode a({}, 64), b({}, 64);
    const MockFaults faults(fault);
    CHECK(put_whole(a, b, std::byte{1}) == Errc::ok);
    CHECK(mock_verbs_injected() == 1);
  }
  CHECK(mock_verbs_objects("qp") == 0);
  CHECK(mock_verbs_objects("cm_id") == 0);
}

TEST_CASE("a peer to which no call comes through is unreachable until one does") {
  if (!mock_device()) return;
  for (const std::string fault :
       {"lose=address:1/1", "lose=route:1/1", "lose=call:1/1", "lose=silent_call:1/1", "lose=answer:1/1",
        "deny=resolve:1/1", "deny=resolve_route:1/1", "deny=connect:1/1", "deny=create_qp:1/1"}) {
    CAPTURE(fault);
    MockNode a(impatient(), 64), b(impatient(), 64);
    {
      const MockFaults faults(fault);
      const Errc outcome = put_whole(a, b, std::byte{1});
      CHECK((outcome == Errc::unreachable || outcome == Errc::no_memory));
      CHECK(b.memory.front() == std::byte{0});
    }
    CHECK(put_whole(a, b, std::byte{2}) == Errc::ok);
  }
  CHECK(mock_verbs_objects("qp") == 0);
  CHECK(mock_verbs_objects("cm_id") == 0);
}

TEST_CASE("messages do what devices could not be connected for, until they are") {
  if (!mock_device()) return;
  for (const std::string fault : {"lose=call:1/1", "lose=silent_call:1/1", "deny=create_qp:1/1"}) {
    CAPTURE(fault);
    MockNode a(impatient(), 64), b(impatient(), kLarge);
    std::byte word{1};
    Begun first(a, a.knows(b), transfer_of(OpCode::write, b.region->key(), 0, &word, 1));
    CHECK(first.outcome() == Errc::ok);  // the stream stands
    const int before = mock_verbs_objects("written");
    {
      const MockFaults faults(fault);
      CHECK(put_whole(a, b, std::byte{3}) == Errc::ok);
      CHECK(mock_verbs_injected() != 0);
      CHECK(mock_verbs_objects("written") == before);
    }
    CHECK(soon([&] {
      CHECK(put_whole(a, b, std::byte{4}) == Errc::ok);
      return mock_verbs_objects("written") != before;
    }));
  }
}
