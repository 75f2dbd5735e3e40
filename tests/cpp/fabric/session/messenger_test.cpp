#include <array>
#include <list>

#include "fabric/session/by_hand.h"
#include "fabric/session/link_requests.h"

using namespace fab;
using namespace fab::test;
using Bytes = std::vector<std::byte>;

// The messages of a session, against a peer that the test plays itself.
namespace {

struct Beside final : SmallMessages {
  bool push(const Transfer& transfer) noexcept override {
    if (full) return false;
    pushed.push_back(text_of(transfer.local, transfer.length));
    return true;
  }
  std::uint32_t number() noexcept override { return ++numbers; }
  bool come_to(std::uint32_t number) noexcept override {
    came.push_back(number);
    return there;
  }
  bool full = false, there = true;
  std::uint32_t numbers = 0;
  std::vector<std::string> pushed;
  std::vector<std::uint32_t> came;
};

struct Reads final : MemoryReader {
  void read(std::span<Read> reads) noexcept override {
    for (Read& one : reads) one.outcome = Errc::ok, bytes += one.length;
  }
  std::uint64_t bytes = 0;
};

struct Send : Probe {
  Send(Bytes& bytes, Delivery delivery = Delivery::transmit, std::uint64_t group = 0)
      : Probe(OpCode::send, 0, group, bytes.data(), bytes.size()) {
    transfer.delivery = delivery;
  }
};

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

// That many of them fill the window to the byte.
constexpr std::size_t kCost = 16 * 1024, kFitting = kCost - kMessageOverhead, kFit = kMessageWindow / kCost;

FrameHeader small_one(std::uint32_t length = 4, std::uint8_t flags = 0) {
  return {.type = FrameType::message, .flags = flags, .length = length, .total = length};
}
FrameHeader announced(std::uint64_t number, std::uint64_t total = 100'000) {
  return {.type = FrameType::announce, .total = total, .id = kStreamOnly | number};
}

}  // namespace

TEST_CASE("a small message goes beside the stream if nothing is before it that its receiver may look at") {
  LinkCounters counters;
  Bytes bytes(20, std::byte{'m'}), large(kMaxMessage + 1);
  Beside beside;
  std::list<Send> sends;
  Side side(1, {.small_messages = &beside, .counters = &counters});
  const auto post = [&](Bytes& what, Delivery level) -> Send& {
    Send& send = sends.emplace_back(what, level, 5);
    REQUIRE(send.post(side) == 1);
    return send;
  };
  for (const Delivery level : {Delivery::transmit, Delivery::inject}) {
    const PathCounts before = side.counts;
    const Send& sent = post(bytes, level);
    CHECK(sent.done());
    CHECK(sent.length() == 20);
    CHECK(side.counts.posted == before.posted + 1);
    CHECK(side.counts.settled == before.settled + 1);
    CHECK(side.counts.bytes_out == before.bytes_out + 20);
  }
  CHECK(beside.pushed == std::vector<std::string>(2, std::string(20, 'm')));
  CHECK_FALSE(side.session.has_output());
  CHECK(side.session.messages().owes());
  CHECK(counters.sends[0] == 1);
  CHECK(counters.sends[send_form::kInject] == 1);

  post(large, Delivery::transmit);  // too large
  Said said = says_one(side);
  CHECK(said.header.type == FrameType::announce);
  CHECK(said.header.remote == (std::uint64_t{1} << 32 | 5));
  beside.full = true;
  post(bytes, Delivery::transmit);
  said = says_one(side);
  CHECK(said.header.type == FrameType::message);
  CHECK(said.header.remote == (std::uint64_t{2} << 32 | 5));
  beside.full = false;
  const Send& answered = post(bytes, Delivery::delivery);  // of whose end the receiver tells
  said = says_one(side);
  CHECK(said.header.flags == frame_flag::kAcknowledge);
  CHECK(said.header.remote == (std::uint64_t{3} << 32 | 5));
  post(bytes, Delivery::transmit);  // not past what has no answer yet
  CHECK(says_one(side).header.remote == (std::uint64_t{4} << 32 | 5));
  CHECK(beside.pushed.size() == 2);
  REQUIRE(hears(side, {.type = FrameType::ack, .total = 1}) == Errc::ok);
  CHECK(answered.done());
  CHECK(post(bytes, Delivery::transmit).done());
  CHECK(beside.pushed.size() == 3);
}

TEST_CASE("messages beside the stream have their part of the window") {
  Bytes bytes(kFitting);
  Beside beside;
  std::list<Send> sends;
  Side side(1, {.small_messages = &beside});
  for (std::size_t i = 0; i < kFit; ++i) REQUIRE(sends.emplace_back(bytes).post(side) == 1);
  CHECK(beside.pushed.size() == kFit);
  CHECK_FALSE(side.session.messages().announces());
  REQUIRE(sends.emplace_back(bytes).post(side) == 1);
  CHECK(side.session.messages().announces());
  CHECK(beside.pushed.size() == kFit);
  CHECK(hears(side, {.type = FrameType::credit, .total = kMessageWindow + 1}) == Errc::protocol);
  CHECK(hears(side, {.type = FrameType::credit, .total = kMessageWindow}) == Errc::ok);
  REQUIRE(sends.emplace_back(bytes).post(side) == 1);
  CHECK(beside.pushed.size() == kFit + 1);
}

TEST_CASE("a message beside the stream is with the peer when the peer holds that memory") {
  Bytes bytes(20);
  Beside beside;
  Side side(1, {.small_messages = &beside, .handover = Handover::when_held});
  Send transmit(bytes), inject(bytes, Delivery::inject);
  REQUIRE(transmit.post(side) == 1);
  REQUIRE(inject.post(side) == 1);
  CHECK(beside.pushed.size() == 2);
  CHECK(inject.done());
  CHECK_FALSE(transmit.done());
  CHECK(side.session.awaits_peer());
  CHECK(side.session.oldest() == 1);
  side.session.held();
  CHECK(transmit.done());
  CHECK(transmit.length() == 20);
  CHECK(side.session.oldest() == Initiator::kNone);
}

TEST_CASE("an injected message that ends with its stream while it is here is a late error") {
  for (const std::size_t size : {20, 100'000}) {
    CAPTURE(size);
    const bool announces = size > 20;
    for (const bool sent : {false, true}) {
      Side side(1);
      Bytes bytes(size);
      Send inject(bytes, Delivery::inject);
      inject.operation.begin({.context = 41, .flags = completion_flag::kMessage});
      REQUIRE(inject.post(side) == 1);
      CHECK(inject.done());
      if (sent) says(side);
      CHECK((side.session.oldest() == Initiator::kNone) == (sent && !announces));
      side.session.fail(Errc::peer_lost);
      Completion late[2];
      REQUIRE(side.completions.read(late) == (sent && !announces ? 0 : 1));
      if (!sent) CHECK((late[0].context == 41 && late[0].error == Errc::peer_lost));
      CHECK(side.counts.settled == 1);
    }
  }
}

TEST_CASE("a message of the stream comes behind all that came beside it") {
  for (const bool there : {true, false}) {
    Beside beside;
    beside.there = there;
    Side side(1, {.small_messages = &beside});
    FrameHeader message = small_one(), announcement = announced(1);
    message.remote = std::uint64_t{3} << 32;
    announcement.remote = std::uint64_t{4} << 32;
    CHECK(hears(side, message, "text") == (there ? Errc::ok : Errc::protocol));
    CHECK(hears(side, announcement) == (there ? Errc::ok : Errc::protocol));
    CHECK(beside.came == std::vector<std::uint32_t>{3, 4});
    CHECK(side.receives.sizes().unexpected == (there ? 2 : 0));
  }
}

TEST_CASE("the window holds what it says, to the byte, on either side") {
  Bytes bytes(kFitting);
  std::list<Send> sends;
  Side side(1);
  for (std::size_t i = 0; i < kFit; ++i) REQUIRE(sends.emplace_back(bytes).post(side) == 1);
  CHECK_FALSE(side.session.messages().announces());
  REQUIRE(sends.emplace_back(bytes).post(side) == 1);
  CHECK(side.session.messages().announces());

  for (const bool beside : {false, true}) {
    Side target(2);
    const auto comes = [&] {
      if (!beside) return hears(target, small_one(kFitting), std::string(kFitting, 'x'));
      Matched arrived{.head = {.length = kFitting}};
      return target.session.accept(arrived, bytes.data());
    };
    for (std::size_t i = 0; i < kFit; ++i) REQUIRE(comes() == Errc::ok);
    CHECK(target.receives.sizes().unexpected == kFit);
    CHECK(comes() == Errc::protocol);
  }
}

TEST_CASE("credit is told as soon as a quarter of the window is free again, whatever freed it") {
  const std::string text(kFitting, 'x');
  for (const int way : {0, 1, 2}) {
    CAPTURE(way);
    int output = 0;
    std::list<Landing> landings;
    Side side(1, {.on_output = [&] { ++output; }});
    if (way == 2)
      side.session.peer_gave_up();  // who waits for answers gets none, and nobody gets the message
    for (std::size_t i = 1; i <= kFit / 4; ++i) {
      if (way == 0) side.receives.post(landings.emplace_back(kFitting).receive);
      REQUIRE(hears(side, small_one(kFitting, way == 2 ? frame_flag::kAcknowledge : std::uint8_t{0}), text) ==
              Errc::ok);
      if (way == 1) REQUIRE(side.receives.discard({}));
      const auto said = says(side);
      REQUIRE(said.size() == (i == kFit / 4 ? 1 : 0));
      if (said.size() == 1)
        CHECK(said[0].header == FrameHeader{.type = FrameType::credit, .total = kMessageWindow / 4});
    }
    CHECK(output == 1);
    CHECK(side.receives.sizes().unexpected == 0);
  }
}

TEST_CASE("an announcement tells where the message lies, if that can be read and is not too scattered") {
  Reads reads;
  const auto described = [](const Helpers& helpers, std::size_t count, Delivery level) {
    Bytes bytes(300'000);
    std::vector<iovec> pieces;
    for (std::size_t i = 0; i < count; ++i)
      pieces.push_back(piece(bytes, i * 1000, i + 1 < count ? 1000 : bytes.size() - i * 1000));
    Send send(bytes, level);
    send.transfer.local_pieces = pieces.data();
    send.transfer.piece_count = static_cast<std::uint16_t>(count);
    Side side(1, helpers);
    REQUIRE(send.post(side) == 1);
    const Said said = says_one(side);
    CHECK(said.header.total == 300'000);
    std::string expected;
    for (const iovec& one : pieces)
      expected += words({reinterpret_cast<std::uint64_t>(one.iov_base), one.iov_len});
    if (said.payload == expected) return count;
    return said.header.length / kPieceBytes + 1000;  // something else
  };
  CHECK(described({.reader = &reads}, 3, Delivery::transmit) == 3);
  CHECK(described({.reader = &reads}, kMaxAnnouncedPieces, Delivery::transmit) == kMaxAnnouncedPieces);
  CHECK(described({.reader = &reads}, kMaxAnnouncedPieces + 1, Delivery::transmit) == 1000);
  CHECK(described({}, 3, Delivery::transmit) == 1000);
  CHECK(described({.reader = &reads}, 3, Delivery::inject) == 1001);  // where its copy lies
}

TEST_CASE("an injected message is sent from its copy, and is over for the program") {
  Reads reads;
  Bytes bytes(20'000, std::byte{'m'});
  const iovec pieces[] = {piece(bytes, 0, 5'000), piece(bytes, 5'000, 15'000)};
  Send send(bytes, Delivery::inject);
  send.operation.begin({.transfers = 2});  // the second part would be a settlement too many
  send.transfer.local_pieces = pieces;
  send.transfer.piece_count = 2;
  Side side(1, {.reader = &reads});
  REQUIRE(send.post(side) == 1);
  std::ranges::fill(bytes, std::byte{'-'});
  const Said said = says_one(side);
  const auto* copy =
      reinterpret_cast<const void*>(to_little(*reinterpret_cast<const std::uint64_t*>(said.payload.data())));
  CHECK(said.payload.substr(8) == words({20'000}));
  CHECK(text_of(copy, 20'000) == std::string(20'000, 'm'));
  REQUIRE(hears(side, {.type = FrameType::pull, .total = 20'000, .id = said.header.id}) == Errc::ok);
  std::string pulled;
  for (const Said& part : says(side)) pulled += part.payload;
  CHECK(pulled == std::string(20'000, 'm'));
  REQUIRE(hears(side, {.type = FrameType::release, .id = said.header.id}) == Errc::ok);
  CHECK_FALSE(send.done());
  CHECK(side.counts.settled == 1);
  CHECK(side.counts.bytes_out == 20'000);
}

TEST_CASE("a numbered message keeps its number, and one that was announced is announced again") {
  Bytes small(20), large(20'000);
  Side side(1);
  const auto sent = [&](Bytes& bytes, std::uint64_t number, bool before) {
    const Send like(bytes);
    auto marked = std::make_unique<Marked>(FrameHeader{.id = number}, like);
    if (before) marked->announced_before();
    REQUIRE(marked->post(side) == 1);
    const Said said = says_one(side);
    CHECK(said.header.id == number);
    CHECK(marked->announced() == (said.header.type == FrameType::announce));
    if (said.header.type == FrameType::announce)
      REQUIRE(hears(side, {.type = FrameType::release, .id = number}) == Errc::ok);
    CHECK(marked->done());
    return said.header.type;
  };
  CHECK(sent(small, 5, false) == FrameType::message);
  CHECK(sent(large, 6, false) == FrameType::announce);
  CHECK(sent(small, 7, true) == FrameType::announce);
}

TEST_CASE("what was asked for before a message is answered before it") {
  Bytes bytes(100'000), memory(64);
  Send send(bytes);
  Side side(1);
  const auto key = side.expose({piece(memory)});
  REQUIRE(send.post(side) == 1);
  const std::uint64_t id = says_one(side).header.id;
  const FrameHeader put{
      .type = FrameType::write, .flags = frame_flag::kLast, .length = 4, .key = key, .total = 4};
  REQUIRE(hears(side, frame_of(put, "text") +
                          frame_of({.type = FrameType::pull, .total = 100'000, .id = id})) == Errc::ok);
  const auto said = says(side);
  REQUIRE(said.size() == 3);
  CHECK(said[0].header.type == FrameType::ack);
  CHECK(said[1].payload.size() == 100'000);
}

TEST_CASE("a message of which nobody wants a byte is not asked for, and of one byte that byte") {
  Reads reads;
  for (const bool readable : {true, false})
    for (const std::size_t room : {0, 1}) {
      CAPTURE(readable);
      CAPTURE(room);
      reads.bytes = 0;
      Landing landing(room);
      Side side(1, {.reader = readable ? &reads : nullptr});
      side.receives.post(landing.receive);
      const std::string where = words({4096, 100'000});
      FrameHeader announcement = announced(1);
      announcement.length = static_cast<std::uint32_t>(where.size());
      REQUIRE(hears(side, announcement, where) == Errc::ok);
      const Said said = says_one(side);
      const bool pulls = room == 1 && !readable;
      CHECK(said.header.type == (pulls ? FrameType::pull : FrameType::release));
      CHECK(landing.operation.done() == !pulls);
      CHECK(side.counts.posted == (pulls ? 1 : 0));
      CHECK(reads.bytes == (readable ? room : 0));
    }
}

TEST_CASE("messages that are asked for wait for a place among the requests, and get it in their turn") {
  for (const bool by_data : {false, true}) {
    CAPTURE(by_data);
    Bytes local(8);
    Landing first(1), second(1), third(1);
    std::list<Probe> probes;
    Side side(1);
    const OpCode op = by_data ? OpCode::read : OpCode::write;
    while (probes.emplace_back(op, 5, 0, local.data(), 8).post(side) == 1) {
    }
    CHECK(side.session.requests().outstanding() == kMaxOutstanding);
    says(side);
    std::uint64_t number = 0;
    for (Landing* landing : {&first, &second, &third}) {
      side.receives.post(landing->receive);
      REQUIRE(hears(side, announced(++number)) == Errc::ok);
    }
    CHECK(says(side).empty());
    const auto answered = [&] {
      return by_data
                 ? hears(side, {.type = FrameType::data, .flags = frame_flag::kLast, .length = 8}, "bytes...")
                 : hears(side, {.type = FrameType::ack, .total = 1});
    };
    for (std::uint64_t i = 1; i <= 2; ++i) {
      REQUIRE(answered() == Errc::ok);
      CHECK(says_one(side).header == FrameHeader{.type = FrameType::pull, .total = 1, .id = kStreamOnly | i});
      CHECK(side.session.requests().outstanding() == kMaxOutstanding);
    }
    side.session.fail(Errc::peer_lost);
    for (const Landing* landing : {&first, &second, &third}) {
      CHECK(landing->operation.done());
      CHECK(landing->error() == Errc::peer_lost);
    }
  }
}

TEST_CASE("a message that was read while its sender gave up is lost for both") {
  struct Ledger final : AnnouncementLedger {
    std::uint64_t open() noexcept override { return 1; }
    void end(std::uint64_t) noexcept override {}
    bool revoke(std::uint64_t) noexcept override { return true; }
    bool stands(std::uint64_t) const noexcept override { return true; }
    bool take(std::uint64_t) noexcept override { return false; }  // just now
  } ledger;
  Reads reads;
  Landing landing(100'000);
  Side side(1, {.reader = &reads, .ledger = &ledger});
  side.receives.post(landing.receive);
  FrameHeader announcement = announced(1);
  announcement.length = kPieceBytes;
  REQUIRE(hears(side, announcement, words({4096, 100'000})) == Errc::ok);
  CHECK(reads.bytes == 100'000);
  CHECK(landing.error() == Errc::peer_lost);
  CHECK(says_one(side).header.data == static_cast<std::uint64_t>(Errc::peer_lost));
}

TEST_CASE(
    "what is read for a message is spent of the slice, and what has not been read is lost with the stream") {
  Reads reads;
  Slice slice;
  int more = 0, output = 0;
  Landing landing(Slice::kBytes + 100'000), next(100);
  Side side(1,
            {.reader = &reads, .slice = &slice, .on_more = [&] { ++more; }, .on_output = [&] { ++output; }});
  const auto comes = [&](std::uint64_t number, std::uint64_t total) {
    FrameHeader announcement = announced(number, total);
    announcement.length = kPieceBytes;
    REQUIRE(hears(side, announcement, words({4096, total})) == Errc::ok);
  };
  comes(1, Slice::kBytes + 100'000);
  comes(2, 100);
  REQUIRE(hears(side, {.type = FrameType::ping}) == Errc::ok);
  side.session.go_on();
  CHECK(output == 0);  // nothing but what received() tells of
  CHECK(more == 0);
  slice.begin();
  side.receives.post(landing.receive);
  CHECK(slice.spent());
  CHECK(more == 1);
  slice.begin();
  side.session.go_on();
  CHECK(slice.used() == 100'000);
  CHECK(landing.error() == Errc::ok);
  CHECK(more == 1);
  slice.spend(Slice::kBytes);
  side.receives.post(next.receive);
  CHECK_FALSE(next.operation.done());
  CHECK(more == 2);
  side.session.fail(Errc::peer_lost);
  CHECK(next.operation.done());
  CHECK(next.error() == Errc::peer_lost);
}

TEST_CASE("the frames that came are spent of the slice, those of this time alone") {
  Slice slice;
  Side side(1, {.slice = &slice});
  const std::string ping = frame_of({.type = FrameType::ping});
  for (int round = 0; round < 3; ++round) {
    slice.begin();
    REQUIRE(hears(side, ping + ping + ping) == Errc::ok);
    CHECK(slice.used() == 3 * Slice::kBytes / Slice::kTransfers);
  }
}

TEST_CASE("nothing of messages is left when a stream has ended") {
  Bytes bytes(kFitting), large(20'000);
  std::list<Send> sends;
  Side side(1);
  const std::string text(kFitting, 'x');
  for (int life = 0; life < 3; ++life) {
    CAPTURE(life);
    // The window of this side, and announcements.
    CHECK_FALSE(side.session.messages().owes());
    for (std::size_t i = 0; i < kFit; ++i) REQUIRE(sends.emplace_back(bytes).post(side) == 1);
    CHECK_FALSE(side.session.messages().announces());
    REQUIRE(sends.emplace_back(large).post(side) == 1);
    CHECK(side.session.messages().announces());
    if (life == 1) says(side);
    // The peer's window, and credit of which the peer was not told.
    for (std::size_t i = 0; i < kFit / 4 - 1; ++i) {
      REQUIRE(hears(side, small_one(kFitting), text) == Errc::ok);
      REQUIRE(side.receives.discard({}));
    }
    for (const Said& said : says(side)) CHECK(said.header.type != FrameType::credit);
    for (std::size_t i = 0; i < 3 * kFit / 4 + 1; ++i)
      REQUIRE(hears(side, small_one(kFitting), text) == Errc::ok);
    for (std::uint64_t number = 1; number <= kMaxOutstanding; ++number)
      REQUIRE(hears(side, announced(number)) == Errc::ok);
    CHECK(side.receives.sizes().unexpected == 3 * kFit / 4 + 1 + kMaxOutstanding);
    side.session.fail(Errc::peer_lost);
    CHECK_FALSE(side.session.messages().announces());
    CHECK_FALSE(side.session.awaits_peer());
    CHECK_FALSE(side.session.has_output());
    CHECK(side.session.oldest() == Initiator::kNone);
    CHECK(side.counts.settled == side.counts.posted);
    CHECK(side.receives.sizes().unexpected == 3 * kFit / 4 + 1);  // that came whole
    side.receives.drop_all();
    while (side.receives.discard({})) {
    }
  }
  for (const Send& send : sends) CHECK(send.done());
}
