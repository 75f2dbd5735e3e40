// Peers over a device that stand still, go, or lose their key.
#include <doctest/doctest.h>

#include <optional>

#include "providers/verbs/mock_node.h"

using namespace fab;
using namespace fab::test;

namespace {

DomainOptions with_deadline(double seconds) {
  DomainOptions options;
  options.peer_deadline = seconds;
  return options;
}

DomainOptions moved_by_hand() {
  DomainOptions options;
  options.manual_progress = true;
  return options;
}

// An update that no device does, so that the peer's processor is needed.
Transfer add_one(const MockNode& to, std::uint32_t& one, std::uint32_t& former) {
  Transfer add = transfer_of(OpCode::fetch_atomic, to.region->key(), 0, &one, sizeof one);
  add.type = DataType::u32;
  add.result = reinterpret_cast<std::byte*>(&former);
  return add;
}

}  // namespace

TEST_CASE("a peer that stands still is lost at the deadline, and served again when it goes on") {
  if (!mock_device()) return;
  MockNode a(with_deadline(1), 64), b(moved_by_hand(), 64);
  const PeerId to_b = a.knows(b);
  std::uint32_t one = 1, former = 9;
  const auto add = [&](bool moves) {
    Begun begun(a, to_b, add_one(b, one, former));
    while (moves && !begun.operation.done()) b.context->progress();
    return begun.outcome();
  };
  CHECK(add(true) == Errc::ok);
  CHECK(former == 0);
  CHECK(add(false) == Errc::peer_lost);
  const auto patience = Deadline::in_seconds(30);
  Errc outcome = Errc::again;
  while (outcome != Errc::ok && !patience.passed()) outcome = add(true);
  CHECK(outcome == Errc::ok);
  CHECK(former >= 1);
}

TEST_CASE("a removed key ends the streams that it was proven for, at the side that has called as well") {
  if (!mock_device()) return;
  for (const bool of_called : {true, false}) {
    CAPTURE(of_called);
    DomainOptions options;
    options.auth_key = "first";
    MockNode a(options, 64), b(options, 64);
    const PeerId to_b = a.knows(b);
    std::uint32_t one = 1, former = 9;
    Begun before(a, to_b, add_one(b, one, former));
    REQUIRE(before.outcome() == Errc::ok);
    AuthKeyRing& keys = (of_called ? b : a).core->auth_keys();
    keys.add("next", "first");
    keys.use("next");
    keys.remove("first", true);
    std::optional<Event> lost;
    CHECK(soon([&] { return lost || (lost = a.events->read()); }));
    REQUIRE(lost);
    CHECK(lost->type == EventType::peer_lost);
    Begun after(a, to_b, add_one(b, one, former));
    CHECK(after.outcome() == Errc::key_rejected);
  }
}

TEST_CASE("a part of a name is taken by its own link only") {
  if (!mock_device()) return;
  MockNode a({}, 64);
  const Part part = a.context->parts()[0];
  const PartCheck check = a.core->domain().part_check();
  CHECK(check({part.link, part.context, part.bytes}).usable);
  CHECK_FALSE(check({"verbs.1", part.context, part.bytes}).usable);
  CHECK_THROWS_AS(check({part.link, part.context, part.bytes.substr(0, 20)}), Error);
}
