// What a device tells of its ports, queues and queue pairs, and of itself.
#include <doctest/doctest.h>

#include <list>
#include <optional>

#include "providers/verbs/mock_node.h"

using namespace fab;
using namespace fab::test;

namespace {

constexpr std::size_t kPart = 1000;

// Peers share the receives of an endpoint, and no deadline ends anything.
DomainOptions shared_and_patient() {
  DomainOptions options = with_setting("verbs_srq", "64");
  options.peer_deadline = 1000;
  return options;
}

Transfer part_of(const MockNode& node, std::vector<std::byte>& bytes) {
  return transfer_of(OpCode::write, node.region->key(), 0, bytes.data(), kPart);
}

std::string objects_held() {
  std::string all;
  for (const char* const kind : {"pd", "cq", "qp", "mr", "cm_id", "shared_receive"})
    all += std::to_string(mock_verbs_objects(kind)) + " ";
  return all;
}

std::optional<Event> next_event(MockNode& node) {
  std::optional<Event> event;
  soon([&] { return event || (event = node.events->read()); });
  return event;
}

}  // namespace

TEST_CASE("what a device says of a queue or of itself ends all that is under way at once") {
  if (!mock_device()) return;
  std::vector<std::byte> bytes(kPart, std::byte{1});
  for (const std::string what : {"device_fatal", "cq_err", "srq_err"}) {
    CAPTURE(what);
    {
      MockNode a(shared_and_patient(), 64), b(shared_and_patient(), kPart);
      const PeerId to_b = a.knows(b);
      Begun first(a, to_b, part_of(b, bytes));
      REQUIRE(first.outcome() == Errc::ok);
      std::list<Begun> all;
      {
        const MockFaults faults("late_us=1000000000");
        for (int i = 0; i < 20; ++i) all.emplace_back(a, to_b, part_of(b, bytes));
        REQUIRE(mock_verbs_tell(what.c_str()) == 0);
        for (Begun& each : all) CHECK(each.outcome() == Errc::peer_lost);
      }
      const auto lost = next_event(a);
      REQUIRE(lost);
      CHECK(lost->type == EventType::peer_lost);
      CHECK(lost->peer == to_b);
      const Reach reach = a.context->reaches(to_b);
      CHECK_FALSE(reach.ok);
      CHECK(reach.why.find("mock0 has failed") != std::string::npos);
    }
    CHECK(objects_held() == "0 0 0 0 0 0 ");
    MockNode next(shared_and_patient(), 64), b(shared_and_patient(), kPart);
    Begun put(next, next.knows(b), part_of(b, bytes));
    CHECK(put.outcome() == Errc::ok);
    CHECK(b.memory == bytes);
  }
}

TEST_CASE("a queue pair that fails ends what it carried, and another one follows") {
  if (!mock_device()) return;
  std::vector<std::byte> bytes(kPart, std::byte{2});
  MockNode a(shared_and_patient(), 64), b(shared_and_patient(), kPart);
  const PeerId to_b = a.knows(b);
  for (int round = 0; round < 5; ++round) {
    Begun before(a, to_b, part_of(b, bytes));
    REQUIRE(before.outcome() == Errc::ok);
    REQUIRE(mock_verbs_tell("qp_fatal") == 0);
    Errc outcome = Errc::again;
    for (int tries = 0; outcome != Errc::ok && tries < 3; ++tries) {
      Begun put(a, to_b, part_of(b, bytes));
      outcome = put.outcome();
      CHECK((outcome == Errc::ok || outcome == Errc::peer_lost));
    }
    CHECK(outcome == Errc::ok);
  }
  CHECK(b.memory == bytes);
  // The receives of the pairs that have gone serve the next ones.
  CHECK(soon([] { return mock_verbs_objects("shared_receive") == 128; }));
}

TEST_CASE("the last receive of a failed queue pair may be told late, or never") {
  if (!mock_device()) return;
  std::vector<std::byte> bytes(kPart, std::byte{3});
  for (const std::string fault : {"last_receive_late_us=50000", "last_receive_never=1"}) {
    CAPTURE(fault);
    const MockFaults faults(fault);
    MockNode b(shared_and_patient(), kPart);
    for (int round = 0; round < 3; ++round) {
      MockNode a(shared_and_patient(), 64);
      Begun put(a, a.knows(b), part_of(b, bytes));
      CHECK(put.outcome() == Errc::ok);
    }
    CHECK(soon([] { return mock_verbs_objects("qp") == 0; }));
    CHECK(soon([] { return mock_verbs_objects("shared_receive") == 64; }));
  }
}

TEST_CASE("ports that change are told, and lose nobody") {
  if (!mock_device()) return;
  std::vector<std::byte> bytes(kPart, std::byte{4});
  MockNode a(DomainOptions{}, 64), b(DomainOptions{}, kPart);
  const PeerId to_b = a.knows(b);
  const std::pair<const char*, EventType> all[] = {{"port_err", EventType::link_down},
                                                   {"port_active", EventType::link_up},
                                                   {"gid_change", EventType::address_changed}};
  for (const auto& one : all) {
    REQUIRE(mock_verbs_tell(one.first) == 0);
    const auto told = next_event(a);
    REQUIRE(told);
    CHECK(told->type == one.second);
    CHECK(told->peer == kNoPeer);
    CHECK(told->link() == "verbs.0");
    Begun put(a, to_b, part_of(b, bytes));
    CHECK(put.outcome() == Errc::ok);
  }
  CHECK_FALSE(a.events->read());
}
