#include "fabric/session/by_hand.h"
#include "fabric/session/link_requests.h"

using namespace fab;
using namespace fab::test;
using Bytes = std::vector<std::byte>;

// A session that is one of several ways to the same peer, which the test plays: what is asked for again
// happens once, and announced messages go on where their stream has ended.
namespace {

struct Landing {
  explicit Landing(std::size_t size) : bytes(size) {
    operation.begin({.flags = completion_flag::kMessage | completion_flag::kRecv});
    receive.operation = &operation;
    receive.local = bytes.data();
    receive.length = size;
  }
  Errc error() const { return operation.completion().error; }
  Bytes bytes;
  Operation operation;
  Receive receive;
};

struct Rail {
  explicit Rail(Helpers helpers = {}) : side(std::move(helpers)) {}
  RailSide side;
  std::uint32_t incarnations = 0;

  // What comes of a request, in one frame.
  Said asks(const FrameHeader& frame, const std::string& payload = "") {
    REQUIRE(hears(side, frame, payload) == Errc::ok);
    return says_one(side);
  }
  FrameHeader joining(std::uint64_t epoch = 1) {
    return {.type = FrameType::join, .key = 7, .remote = epoch, .data = rail_number(0, ++incarnations)};
  }
  void join(std::uint64_t epoch = 1) {
    CHECK(asks(joining(epoch)).header == FrameHeader{.type = FrameType::ack, .total = 1});
  }
  // Its stream ends, and another one takes its place.
  void comes_back() {
    side.session.fail(Errc::peer_lost);
    join();
  }
};

FrameHeader put_of(std::uint64_t key, std::uint64_t number, std::uint32_t length = 4) {
  return {.type = FrameType::write,
          .flags = frame_flag::kLast,
          .length = length,
          .key = key,
          .total = length,
          .id = number};
}
FrameHeader message_of(std::uint64_t number, std::uint32_t length = 4) {
  return {.type = FrameType::message,
          .flags = frame_flag::kAcknowledge,
          .length = length,
          .total = length,
          .id = number};
}
FrameHeader announced(std::uint64_t number, std::uint64_t total = 20'000) {
  return {.type = FrameType::announce, .total = total, .id = number};
}
FrameHeader part_of(std::uint32_t length) {
  return {.type = FrameType::data, .flags = frame_flag::kLast, .length = length};
}
Errc outcome(const Said& said) {
  return said.header.type == FrameType::fail ? static_cast<Errc>(said.header.data) : Errc::ok;
}

}  // namespace

TEST_CASE("only a stream that has joined carries numbers, fences others and tells what is settled") {
  for (const FrameHeader& frame :
       {put_of(1, 1, 0), message_of(1, 0), announced(1), FrameHeader{.type = FrameType::settled, .total = 1},
        FrameHeader{.type = FrameType::fence, .data = rail_number(1, 1)}}) {
    CAPTURE(static_cast<int>(frame.type));
    Rail rail;
    CHECK(hears(rail.side, frame) == Errc::protocol);
    CHECK_FALSE(rail.side.session.one_of_several());
    Rail joined;
    joined.join();
    CHECK(joined.side.session.one_of_several());
    CHECK(hears(joined.side, frame) == Errc::ok);
    joined.side.session.fail(Errc::peer_lost);
    CHECK_FALSE(joined.side.session.one_of_several());
    CHECK(hears(joined.side, frame) == Errc::protocol);
  }
  Rail rail;
  FrameHeader nowhere = rail.joining();
  nowhere.data = rail_number(1000, 1);  // there are not so many
  CHECK(hears(rail.side, nowhere) == Errc::protocol);
  Rail itself;
  itself.join();
  CHECK(hears(itself.side, {.type = FrameType::fence, .data = rail_number(0, 1)}) == Errc::protocol);
  Rail good;
  good.join();
  CHECK(outcome(good.asks({.type = FrameType::fence, .data = rail_number(1, 1)})) == Errc::ok);
  CHECK(outcome(good.asks({.type = FrameType::settled, .total = 1})) == Errc::ok);
  FrameHeader known = good.joining(2);
  known.flags = frame_flag::kRejoin;  // of a flow that nobody knows
  CHECK(outcome(good.asks(known)) == Errc::peer_lost);
}

TEST_CASE("a put that comes again is answered as before, and stored once") {
  Rail rail;
  Bytes memory(100);
  const auto key = rail.side.expose({piece(memory)});
  rail.side.regions.bind_counter(rail.side.last_region, 3);
  const auto& counter = rail.side.segment.counters()[3].value;
  rail.join();
  FrameHeader put = put_of(key, 5);
  put.flags |= frame_flag::kRemoteData;
  for (const char* text : {"once", "more"}) {
    CHECK(outcome(rail.asks(put, text)) == Errc::ok);
    CHECK(text_of(memory.data(), 4) == "once");
    CHECK(counter.load() == 1);
    rail.comes_back();
  }
  Completion entries[3];
  CHECK(rail.side.completions.read(entries) == 1);
  CHECK(outcome(rail.asks(put_of(key, 6), "next")) == Errc::ok);
  CHECK(text_of(memory.data(), 4) == "next");

  CHECK(outcome(rail.asks(put_of(key, 7, 101), std::string(101, 'x'))) == Errc::bounds);
  CHECK(outcome(rail.asks(put_of(key, 7), "good")) == Errc::bounds);  // as before
  CHECK(text_of(memory.data(), 4) == "next");

  // The end of a put in stripes brings nothing itself.
  put = put_of(key, 8, 0);
  put.flags |= frame_flag::kStriped | frame_flag::kRemoteData;
  put.total = 80;
  CHECK(outcome(rail.asks(put)) == Errc::ok);
  CHECK(outcome(rail.asks(put)) == Errc::ok);
  CHECK(counter.load() == 3);
  REQUIRE(rail.side.completions.read(entries) == 1);
  CHECK(entries[0].length == 80);
}

TEST_CASE("an update that comes again is answered as before, and done once") {
  Rail rail;
  alignas(8) std::uint64_t sum = 5;
  const auto key = rail.side.expose({{&sum, 8}});
  rail.join();
  const auto update = [&](FrameType type, std::uint64_t number, std::uint64_t remote = 0) {
    return FrameHeader{.type = type,
                       .atomic_op = static_cast<std::uint8_t>(AtomicOp::sum),
                       .data_type = static_cast<std::uint8_t>(DataType::u64),
                       .length = 8,
                       .key = key,
                       .remote = remote,
                       .total = 8,
                       .id = number};
  };
  for (int time = 0; time < 2; ++time) {
    CHECK(rail.asks(update(FrameType::fetch, 1), words({10})).payload == words({5}));
    CHECK(sum == 15);
  }
  for (int time = 0; time < 2; ++time) {
    const Said said = rail.asks(update(FrameType::atomic, 2), words({100}));
    CHECK(said.header == FrameHeader{.type = FrameType::ack, .total = 1});
    CHECK(sum == 115);
  }
  for (const std::uint64_t remote : {8, 0})  // that it would be possible now changes nothing
    CHECK(outcome(rail.asks(update(FrameType::fetch, 3, remote), words({1}))) == Errc::bounds);
  CHECK(sum == 115);
  FrameHeader other = update(FrameType::fetch, 1);
  other.length = 16;  // not what was asked before
  other.total = 16;
  CHECK(outcome(rail.asks(other, words({1, 1}))) == Errc::protocol);
  // What this side knows to be settled is forgotten, and does not come again.
  rail.asks({.type = FrameType::settled, .total = 3});
  CHECK(outcome(rail.asks(update(FrameType::fetch, 3), words({1}))) == Errc::bounds);
  CHECK(hears(rail.side, update(FrameType::fetch, 2), words({1})) == Errc::protocol);
}

TEST_CASE("a small message that comes again is answered, and taken once") {
  Rail rail;
  rail.join();
  constexpr auto kLength = static_cast<std::uint32_t>(kMessageWindow / 64 - kMessageOverhead);
  const std::string text(kLength, 'm');
  for (std::size_t i = 1; i <= 16;
       ++i) {  // again and again: a quarter of the window, of which the peer is told
    REQUIRE(hears(rail.side, message_of(9, kLength), text) == Errc::ok);
    if (i == 1) CHECK(rail.side.receives.discard({}));
    CHECK_FALSE(rail.side.receives.discard({}));
    const auto said = says(rail.side);
    REQUIRE(said.size() == (i == 16 ? 2 : 1));
    CHECK(said.back().header == FrameHeader{.type = FrameType::ack, .total = 1});
  }
  // Announced now, because its sender does not know that it came whole.
  CHECK(rail.asks(announced(9)).header == FrameHeader{.type = FrameType::release, .id = 9});
  CHECK(rail.side.receives.sizes().unexpected == 0);
  // The first number is one as well.
  REQUIRE(hears(rail.side, message_of(1), "text") == Errc::ok);
  REQUIRE(hears(rail.side, message_of(1), "text") == Errc::ok);
  CHECK(rail.side.receives.discard({}));
  CHECK_FALSE(rail.side.receives.discard({}));
  // Others do not have numbers.
  REQUIRE(hears(rail.side, message_of(0), "text") == Errc::ok);
  REQUIRE(hears(rail.side, message_of(0), "text") == Errc::ok);
  CHECK(rail.side.receives.sizes().unexpected == 2);
}

TEST_CASE("an announced message is waited for where it is announced again") {
  Rail rail;
  Landing landing(20'000);
  rail.join();
  REQUIRE(hears(rail.side, announced(3)) == Errc::ok);
  rail.comes_back();
  CHECK(rail.side.receives.sizes().unexpected == 1);
  REQUIRE(hears(rail.side, announced(3)) == Errc::ok);
  CHECK(rail.side.receives.sizes().unexpected == 1);
  REQUIRE(hears(rail.side, message_of(3), "text") == Errc::ok);  // small now: it is the same
  CHECK(rail.side.receives.sizes().unexpected == 1);
  CHECK(says_one(rail.side).header.type == FrameType::ack);
  rail.side.receives.post(landing.receive);
  CHECK(says_one(rail.side).header == FrameHeader{.type = FrameType::pull, .total = 20'000, .id = 3});
  CHECK(rail.asks(part_of(20'000), std::string(20'000, 'x')).header ==
        FrameHeader{.type = FrameType::release, .id = 3});
  CHECK(landing.error() == Errc::ok);
  CHECK(landing.bytes.back() == std::byte{'x'});
  // Over, and remembered until its sender knows.
  rail.comes_back();
  CHECK(rail.asks(announced(3)).header == FrameHeader{.type = FrameType::release, .id = 3});
  CHECK(rail.side.receives.sizes().unexpected == 0);
  rail.asks({.type = FrameType::settled, .total = 4, .id = 3});
}

TEST_CASE("a message whose stream ends while it is asked for is asked for again, and lost for nobody") {
  Rail rail;
  Landing landing(20'000);
  rail.join();
  rail.side.receives.post(landing.receive);
  CHECK(rail.asks(announced(3)).header.type == FrameType::pull);
  rail.comes_back();
  CHECK_FALSE(landing.operation.done());
  CHECK(rail.asks(announced(3)).header == FrameHeader{.type = FrameType::pull, .total = 20'000, .id = 3});
  CHECK(rail.asks(part_of(20'000), std::string(20'000, 'x')).header.type == FrameType::release);
  CHECK(landing.operation.done());
  CHECK(landing.error() == Errc::ok);
}

TEST_CASE("what came of a message is told again as it was told before") {
  Rail rail;
  rail.join();
  REQUIRE(hears(rail.side, announced(3)) == Errc::ok);
  CHECK(rail.side.receives.discard({}));
  CHECK(says_one(rail.side).header.type == FrameType::release);
  Landing landing(20'000);
  rail.side.receives.post(landing.receive);
  rail.asks(announced(1));
  const auto why = static_cast<std::uint64_t>(Errc::bounds);
  CHECK(rail.asks({.type = FrameType::fail, .data = why}).header.data == why);
  rail.comes_back();
  const FrameHeader failed{.type = FrameType::release, .data = why, .id = 1};
  CHECK(rail.asks(announced(3)).header == FrameHeader{.type = FrameType::release, .id = 3});
  CHECK(rail.asks(announced(1)).header == failed);
  rail.asks({.type = FrameType::settled, .total = 1});  // that says nothing of it
  CHECK(rail.asks(announced(1)).header == failed);
  rail.asks({.type = FrameType::settled, .total = 1, .id = 1});
  CHECK(rail.asks(announced(1)).header ==
        FrameHeader{.type = FrameType::release, .id = 1});  // but that it is over
}

TEST_CASE("a message of which nobody wants a byte is over as soon as it is announced again") {
  Slice slice;
  Rail rail({.slice = &slice});
  Landing landing(0);
  rail.join();
  rail.side.receives.post(landing.receive);
  slice.spend(Slice::kBytes);  // it has to wait for the next turn, which does not come
  REQUIRE(hears(rail.side, announced(3)) == Errc::ok);
  CHECK_FALSE(landing.operation.done());
  rail.comes_back();
  CHECK(rail.asks(announced(3)).header.type == FrameType::release);
  CHECK(landing.operation.done());
  CHECK(rail.side.counts.posted == 0);
}

TEST_CASE("a stream goes over to a later flow while it is at rest") {
  Rail rail;
  rail.join();
  rail.join(2);
  REQUIRE(hears(rail.side, announced(3)) == Errc::ok);
  CHECK(hears(rail.side, rail.joining(3)) == Errc::protocol);
}

TEST_CASE("a stream that its initiator has given up before its join came is ended, and nobody is accused") {
  Rail rail;
  const FrameHeader late = rail.joining();
  rail.join();  // a later stream
  rail.side.session.fail(Errc::peer_lost);
  CHECK(hears(rail.side, late) == Errc::peer_lost);
  FrameHeader nonsense = rail.joining();
  nonsense.data = rail_number(lnx::kMaxRails, 1);
  CHECK(hears(rail.side, nonsense) == Errc::protocol);
}

TEST_CASE("the link of a peer's messages is known from the first of them on, small or announced") {
  for (const bool small : {true, false}) {
    Rail rail;
    rail.join();
    CHECK(rail.side.message_link().empty());
    REQUIRE(hears(rail.side, small ? message_of(1) : announced(1), small ? "text" : "") == Errc::ok);
    CHECK(rail.side.message_link() == "test.0");
  }
}

TEST_CASE("a request for whose outcome there is no room is refused, and its stream goes on") {
  Rail rail;
  rail.join();
  std::uint64_t number = 0;
  while (number < lnx::Flow::kMostUnsettled)
    REQUIRE(outcome(rail.asks(put_of(1, ++number, 0))) == Errc::key_rejected);
  CHECK(outcome(rail.asks(put_of(1, number + 1, 0))) == Errc::no_memory);
  CHECK(outcome(rail.asks(message_of(number + 2), "text")) == Errc::no_memory);
  CHECK(rail.side.receives.sizes().unexpected == 0);
  CHECK(outcome(rail.asks(put_of(1, number, 0))) == Errc::key_rejected);  // known: as before
  rail.asks({.type = FrameType::settled, .total = number});
  CHECK(outcome(rail.asks(put_of(1, number + 1, 0))) == Errc::key_rejected);  // there is room again
  CHECK(hears(rail.side, put_of(1, number - 1, 0)) == Errc::protocol);        // its outcome is known there
}
