#include <doctest/doctest.h>

#include <set>

#include "fabric/session/pipe.h"
#include "providers/lnx/flows/carrier.h"
#include "providers/lnx/flows/flow_table.h"

using namespace fab;
using namespace fab::lnx;
using namespace fab::test;

// What a flow knows of messages that are announced, while its rails come and go, and what its table keeps.
namespace {

// A session that is the origin of messages.
struct Announcer final : Carrier, MessageOrigin {
  using Carrier::Carrier;
  void fetch(const Message& message, const Matched&) noexcept override { fetched.insert(message.id); }
  void release(const Message& message) noexcept override { released.insert(message.id); }
  void consumed(std::uint64_t) noexcept override {}
  std::set<std::uint64_t> fetched, released;
};

struct Ground {
  AddressVector peers;
  ReceiveQueue receives;
  EventOutlet events;
  int alone = 0;
  std::shared_ptr<Sender> sender = std::make_shared<Sender>(peers, std::vector<Part>{{"test.0", 0, "peer"}});
  Flow flow{receives, sender, [this] { ++alone; }};
  Announcer first, second;

  // As a session does with a message that is announced and meets no receive.
  void keep(std::uint64_t number, MessageOrigin& origin) {
    auto message = std::make_unique<Message>();
    message->head = {.length = 100'000};
    message->sender = sender;
    message->comes_from(&origin);
    message->announced = true;
    message->id = number;
    receives.keep(std::move(message));
  }
  Standing announce(std::uint64_t number, Announcer& carrier) {
    return flow.announce(number, carrier, carrier);
  }
};

struct Taken {
  Taken() {
    operation.begin({.flags = completion_flag::kMessage | completion_flag::kRecv});
    receive.operation = &operation;
    receive.local = bytes;
    receive.length = sizeof bytes;
  }
  std::byte bytes[8];
  Operation operation;
  Receive receive;
};

}  // namespace

TEST_CASE("a message is announced on one living rail, and waits there for its receive") {
  Ground ground;
  CHECK(ground.announce(5, ground.first) == Standing::unknown);
  CHECK(ground.flow.was_announced(5));
  CHECK_FALSE(ground.flow.was_announced(6));
  ground.keep(5, ground.first);
  CHECK(ground.announce(5, ground.second) == Standing::refused);
  ground.flow.leave(ground.second);  // which has nothing to do with it
  CHECK(ground.announce(5, ground.second) == Standing::refused);
  ground.receives.leave(ground.first, &ground.flow);
  ground.flow.leave(ground.first);
  CHECK(ground.announce(5, ground.second) == Standing::waiting);
  CHECK(ground.announce(5, ground.first) == Standing::refused);
  Taken taken;
  ground.receives.post(taken.receive);
  CHECK(ground.second.fetched == std::set<std::uint64_t>{5});
  CHECK(ground.first.fetched.empty());
  taken.operation.settle(Errc::ok, 0);
}

TEST_CASE("a message that met its receive while it had no rail goes on with the next one") {
  for (const bool before : {true, false}) {
    CAPTURE(before);
    Ground ground;
    Taken taken;
    CHECK(ground.announce(5, ground.first) == Standing::unknown);
    Matched matched{.head = {.length = 100'000}, .operation = &taken.operation, .room = 8};
    if (before) {
      ground.flow.fetching(5, matched);
      ground.flow.fetching(6, matched);  // of which nobody knows
    } else {
      ground.keep(5, ground.first);
      ground.receives.leave(ground.first, &ground.flow);
    }
    ground.flow.leave(ground.first);
    if (!before) ground.receives.post(taken.receive);
    CHECK(ground.announce(5, ground.second) == Standing::resumed);
    CHECK(ground.second.resumed == std::vector<std::uint64_t>{5});
    CHECK_FALSE(ground.flow.was_announced(6));
    ground.flow.done(6, Errc::ok);
    ground.flow.done(5, Errc::bounds);
    CHECK(ground.flow.message_outcome(5) == Errc::bounds);
    CHECK(ground.flow.message_outcome(6) == Errc::ok);
    CHECK(ground.announce(5, ground.first) == Standing::done);
    CHECK(ground.first.resumed.empty());
    taken.operation.settle(Errc::ok, 0);
  }
}

TEST_CASE("a message that nobody wants while it has no rail is over") {
  Ground ground;
  CHECK(ground.announce(5, ground.first) == Standing::unknown);
  ground.keep(5, ground.first);
  ground.receives.leave(ground.first, &ground.flow);
  ground.flow.leave(ground.first);
  CHECK(ground.receives.discard({}));
  CHECK(ground.announce(5, ground.second) == Standing::done);
  CHECK(ground.flow.message_outcome(5) == Errc::ok);
}

TEST_CASE("what is settled of a message is forgotten, but that it came") {
  Ground ground;
  ground.flow.record(8, Errc::ok);  // came whole: its sender does not know
  CHECK(ground.announce(8, ground.first) == Standing::done);
  CHECK(ground.announce(5, ground.first) == Standing::unknown);
  ground.flow.message_settled(5);  // by a peer that cannot know it
  CHECK(ground.flow.was_announced(5));
  ground.flow.message_settled(6);
  ground.flow.done(5, Errc::bounds);
  ground.flow.message_settled(5);
  CHECK_FALSE(ground.flow.was_announced(5));
  CHECK(ground.flow.known(5));
  CHECK(ground.flow.outcome(5)->error == Errc::ok);
  CHECK_FALSE(ground.flow.known(6));
  ground.flow.message_settled(8);
  CHECK(ground.flow.known(8));
  // Below the mark nothing is kept.
  CHECK(ground.announce(9, ground.first) == Standing::unknown);
  CHECK(ground.announce(10, ground.first) == Standing::unknown);
  ground.flow.done(9, Errc::ok);
  ground.flow.done(10, Errc::ok);
  ground.flow.settled(10);
  ground.flow.message_settled(9);
  CHECK_FALSE(ground.flow.known(9));
  CHECK_FALSE(ground.flow.may_come(9));
  ground.flow.message_settled(10);
  CHECK(ground.flow.known(10));
  CHECK(ground.flow.may_come(10));
  // An outcome that is known already is not told anew.
  CHECK(ground.announce(12, ground.first) == Standing::unknown);
  ground.flow.record(12, Errc::bounds);
  ground.flow.done(12, Errc::ok);
  ground.flow.message_settled(12);
  CHECK(ground.flow.outcome(12)->error == Errc::bounds);
}

TEST_CASE("twice as many messages as one stream may announce are known at a time") {
  Ground ground;
  std::uint64_t number = 0;
  while (ground.announce(++number, ground.first) == Standing::unknown) REQUIRE(number < 100'000);
  CHECK(number == 2 * kMaxOutstanding + 1);
  ground.flow.done(1, Errc::ok);
  ground.flow.message_settled(1);
  CHECK(ground.announce(number, ground.first) == Standing::unknown);
}

TEST_CASE("marks only rise, and what is below them neither comes again nor is known") {
  Ground ground;
  Flow& flow = ground.flow;
  for (std::uint64_t number = 1; number <= 10; ++number) flow.record(number, Errc::ok);
  const std::vector<std::byte> result(100);
  flow.record(11, Errc::ok, result);
  flow.settled(5);
  CHECK_FALSE(flow.may_come(4));
  CHECK_FALSE(flow.known(4));
  CHECK(flow.may_come(5));
  CHECK(flow.known(5));
  flow.settled(3);
  CHECK_FALSE(flow.may_come(4));
  flow.settled(11);
  CHECK_FALSE(flow.known(10));
  CHECK(flow.known(11));
  CHECK(flow.held() >= 100);
  flow.settled(12);
  CHECK(flow.held() == 0);
  CHECK_FALSE(flow.over());
  Carrier carrier;
  REQUIRE(flow.join({.slot = 0, .incarnation = 1}, carrier) == Errc::ok);
  flow.settled(Flow::kOver);
  CHECK_FALSE(flow.over());  // this rail may still bring something
  CHECK(flow.may_come(12));
  flow.leave(carrier);
  CHECK(flow.over());
}

TEST_CASE("a flow remembers as much as it says, and no more") {
  Ground ground;
  Flow& flow = ground.flow;
  std::uint64_t number = 0;
  while (flow.may_come(number + 2)) flow.record(number += 2, Errc::ok);  // no two in one run
  CHECK(number / 2 == Flow::kMostUnsettled);
  CHECK(flow.may_come(number));  // of what is known the answer is
  flow.settled(3);
  CHECK(flow.may_come(number + 2));
  flow.record(number + 2, Errc::ok);
  CHECK_FALSE(flow.may_come(number + 4));
  for (std::uint64_t between = 5; between < number; between += 2) flow.record(between, Errc::ok);
  std::uint64_t more = number + 2;
  while (flow.may_come(more + 2)) flow.record(more += 2, Errc::ok);  // all before are a single run by now
  CHECK(more - number > 2 * (Flow::kMostUnsettled - 4));

  Ground other;
  const std::vector<std::byte> result(kMaxAtomicBytes);
  for (number = 0; other.flow.may_come(number + 1);) other.flow.record(++number, Errc::ok, result);
  CHECK(number == Flow::kMostResults / kMaxAtomicBytes);
}

TEST_CASE("rails have places of their own, and a fence keeps out what it was about") {
  Ground ground;
  Flow& flow = ground.flow;
  ground.first.flow = ground.second.flow = &flow;
  CHECK(flow.join({.slot = kMaxRails, .incarnation = 1}, ground.first) == Errc::protocol);
  CHECK_FALSE(flow.fence({.slot = kMaxRails, .incarnation = 1}, ground.first));
  REQUIRE(flow.join({.slot = kMaxRails - 1, .incarnation = 1}, ground.first) == Errc::ok);
  CHECK(flow.fence({.slot = 3, .incarnation = 5}, ground.first));
  CHECK(flow.join({.slot = 3, .incarnation = 5}, ground.second) == Errc::peer_lost);
  CHECK(flow.join({.slot = 3, .incarnation = 6}, ground.second) == Errc::ok);
  CHECK(flow.fence({.slot = 3, .incarnation = 6}, ground.first));
  CHECK(ground.second.cuts == 1);
  CHECK(ground.alone == 0);
  flow.leave(ground.first);
  flow.leave(ground.first);
  CHECK(ground.alone == 1);  // once
}

TEST_CASE("what waits for a flow is lost with it") {
  AddressVector peers;
  ReceiveQueue receives;
  EventOutlet events;
  const auto sender = std::make_shared<Sender>(peers, std::vector<Part>{{"test.0", 0, "peer"}});
  Taken taken;
  Announcer carrier;
  {
    Flow flow(receives, sender, [] {});
    CHECK(flow.announce(5, carrier, carrier) == Standing::unknown);
    CHECK(flow.announce(6, carrier, carrier) == Standing::unknown);
    flow.fetching(5, {.head = {.length = 100'000}, .operation = &taken.operation, .room = 8});
    auto message = std::make_unique<Message>();
    message->sender = sender;
    message->comes_from(&flow);
    message->announced = true;
    message->id = 6;
    receives.keep(std::move(message));
    flow.leave(carrier);
    CHECK(receives.sizes().unexpected == 1);
  }
  CHECK(taken.operation.done());
  CHECK(taken.operation.completion().error == Errc::peer_lost);
  CHECK(receives.sizes().unexpected == 0);
}

TEST_CASE("a message that is over is not told again when its flow goes") {
  Taken taken;
  taken.operation.begin({.transfers = 2});
  {
    Ground ground;
    CHECK(ground.announce(5, ground.first) == Standing::unknown);
    const Matched matched{.head = {.length = 100'000}, .operation = &taken.operation, .room = 8};
    ground.flow.fetching(5, matched);
    ground.flow.done(5, Errc::ok);
    ReceiveQueue::finish(matched, Errc::ok);
  }
  CHECK_FALSE(taken.operation.done());
}

TEST_CASE("a flow belongs to the public key of its first rail") {
  AddressVector peers;
  ReceiveQueue receives;
  EventOutlet events;
  const auto proven = [&](PublicKey key, const char* link) {
    auto sender = std::make_shared<Sender>(peers, std::vector<Part>{{link, 0, "peer"}});
    sender->proven_by(key);
    return sender;
  };
  FlowTable table(receives, events, 10, [] {});
  const auto flow = table.open({.peer = 7, .epoch = 1}, false, proven({1}, "tcp.0"));
  REQUIRE(flow);
  CHECK(table.open({.peer = 7, .epoch = 1}, false, proven({1}, "tcp.1")) == flow);
  for (const std::uint64_t epoch : {1, 2}) {
    CHECK_FALSE(table.open({.peer = 7, .epoch = epoch}, false, proven({2}, "tcp.0")));
    CHECK_FALSE(table.open({.peer = 7, .epoch = epoch}, false, proven({}, "tcp.0")));
  }
  const auto unproven = table.open({.peer = 8, .epoch = 1}, false, proven({}, "tcp.0"));
  REQUIRE(unproven);
  CHECK_FALSE(table.open({.peer = 8, .epoch = 2}, false, proven({1}, "tcp.0")));
}

TEST_CASE("a table tells the link of a peer's messages while one of its flows has a rail") {
  AddressVector peers;
  ReceiveQueue receives;
  EventOutlet events;
  const auto named = [&](const char* name) {
    return std::make_shared<Sender>(peers, std::vector<Part>{{"test.0", 0, name}});
  };
  FlowTable table(receives, events, 10, [] {});
  const PeerId peer = peers.insert(Name{{{"test.0", 0, "peer"}}}.encode()),
               other = peers.insert(Name{{{"test.0", 0, "other"}}}.encode());
  const auto flow = table.open({.peer = 7, .epoch = 1}, false, named("peer"));
  Carrier first, second("test.1");
  REQUIRE(flow->join({.slot = 0, .incarnation = 1}, first) == Errc::ok);
  CHECK(table.message_link(peer).empty());
  CHECK_FALSE(flow->came(1, second));
  CHECK_FALSE(flow->came(2, first));
  CHECK(table.message_link(peer) == "test.1");  // of the first of them
  CHECK(table.message_link(other).empty());
  flow->leave(first);
  CHECK(table.message_link(peer).empty());
}

TEST_CASE("a flow that is over goes at once, and one with a rail stays") {
  AddressVector peers;
  ReceiveQueue receives;
  EventOutlet events;
  const auto sender = std::make_shared<Sender>(peers, std::vector<Part>{{"test.0", 0, "peer"}});
  FlowTable table(receives, events, 10, [] {});
  const auto now = std::chrono::seconds(100);
  Carrier carrier;
  for (const std::uint64_t peer : {1, 2, 3}) CHECK(table.open({.peer = peer, .epoch = 1}, false, sender));
  table.open({.peer = 1, .epoch = 1}, true, sender)->settled(Flow::kOver);
  REQUIRE(table.open({.peer = 2, .epoch = 1}, true, sender)->join({.slot = 0, .incarnation = 1}, carrier) ==
          Errc::ok);
  CHECK(table.expire(now));
  CHECK_FALSE(table.open({.peer = 1, .epoch = 1}, true, sender));
  CHECK(table.open({.peer = 2, .epoch = 1}, true, sender));
  CHECK(table.open({.peer = 3, .epoch = 1}, true, sender));
  CHECK_FALSE(table.open({.peer = 2, .epoch = 2}, true, sender));  // a later one that nobody knows
  CHECK(table.expire(now + std::chrono::seconds(10)));
  CHECK_FALSE(table.expire(now + std::chrono::nanoseconds(10'000'000'001)));
  CHECK(table.open({.peer = 2, .epoch = 1}, true, sender));
  table.open({.peer = 2, .epoch = 1}, true, sender)->leave(carrier);
  CHECK(table.expire(now));
}

TEST_CASE("of flows without rails the oldest give way, when they are many or hold much") {
  AddressVector peers;
  ReceiveQueue receives;
  EventOutlet events;
  const auto sender = std::make_shared<Sender>(peers, std::vector<Part>{{"test.0", 0, "peer"}});
  const auto now = std::chrono::seconds(100);
  constexpr std::uint64_t kMost = 4096;
  {
    FlowTable table(receives, events, 10, [] {});
    for (std::uint64_t peer = 1; peer <= kMost; ++peer)  // one peer has only some of them
      REQUIRE(table.open({.peer = peer, .epoch = 1}, false,
                         std::make_shared<Sender>(
                             peers, std::vector<Part>{{"test.0", 0, "peer" + std::to_string(peer / 32)}})));
    CHECK(table.expire(now));
    CHECK(table.open({.peer = 1, .epoch = 1}, true, sender));
    REQUIRE(table.open({.peer = kMost + 1, .epoch = 1}, false, sender));
    CHECK(table.expire(now));
    CHECK_FALSE(table.open({.peer = 1, .epoch = 1}, true, sender));
    CHECK(table.open({.peer = 2, .epoch = 1}, true, sender));
    CHECK(table.open({.peer = kMost + 1, .epoch = 1}, true, sender));
  }
  {
    FlowTable table(receives, events, 10, [] {});
    const std::vector<std::byte> byte(1);
    Flow one(receives, sender, [] {});
    one.record(1, Errc::ok, byte);
    const std::vector<std::byte> half(Flow::kMostResults / 2 - (one.held() - 1));
    for (const std::uint64_t peer : {1, 2, 3}) {
      const auto flow = table.open({.peer = peer, .epoch = 1}, false, sender);
      REQUIRE(flow);
      if (peer < 3) flow->record(1, Errc::ok, half);
    }
    CHECK(table.expire(now));
    CHECK(table.open({.peer = 1, .epoch = 1}, true, sender));  // to the byte
    table.open({.peer = 3, .epoch = 1}, true, sender)->record(1, Errc::ok, byte);
    CHECK(table.expire(now));
    CHECK_FALSE(table.open({.peer = 1, .epoch = 1}, true, sender));
    CHECK(table.open({.peer = 2, .epoch = 1}, true, sender));
    CHECK(table.open({.peer = 3, .epoch = 1}, true, sender));
  }
}

TEST_CASE("a message that came whole takes no memory when it is announced") {
  Ground ground;
  for (std::uint64_t number = 1; number <= 2 * kMaxOutstanding; ++number) {
    ground.flow.record(number, Errc::ok);
    CHECK(ground.announce(number, ground.first) == Standing::done);
    CHECK_FALSE(ground.flow.was_announced(number));
    CHECK(ground.flow.message_outcome(number) == Errc::ok);
  }
  ground.flow.settled(2 * kMaxOutstanding + 1);
  CHECK(ground.announce(2 * kMaxOutstanding + 1, ground.first) == Standing::unknown);
}

TEST_CASE("a stream that leaves again and again gives up what it has announced since") {
  Ground ground;
  for (std::uint64_t number = 1; number <= 3; ++number) {
    CHECK(ground.announce(number, ground.first) == Standing::unknown);
    CHECK(ground.announce(number, ground.second) == Standing::refused);  // the first one has it
    ground.flow.leave(ground.first);
    CHECK(ground.announce(number, ground.second) == Standing::waiting);
    CHECK(ground.announce(number, ground.first) == Standing::refused);
  }
}
