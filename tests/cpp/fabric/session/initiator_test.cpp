#include <sys/mman.h>

#include <list>

#include "fabric/session/by_hand.h"
#include "fabric/session/link_requests.h"

using namespace fab;
using namespace fab::test;
using Bytes = std::vector<std::byte>;

// The initiator's side of a session, against a peer that the test plays: what it asks for, word for word, and
// what it makes of answers.
namespace {

constexpr std::uint64_t kKey = 0x1234;

struct Put : Probe {
  explicit Put(const Bytes& bytes)
      : Probe(OpCode::write, kKey, 40, const_cast<std::byte*>(bytes.data()), bytes.size()) {}
};

}  // namespace

TEST_CASE("a request's frame says what its transfer says, and nothing else") {
  using enum FrameType;
  Side side(1);
  const Bytes local(16, std::byte{'x'}), comparand(16, std::byte{'y'});
  Bytes result(16);
  const auto asks = [&](
                        OpCode op, FrameHeader expected, const std::string& payload,
                        const std::function<void(Transfer&)>& change = [](Transfer&) {}) {
    CAPTURE(static_cast<int>(expected.type));
    Probe probe(op, kKey, 40, const_cast<std::byte*>(local.data()), 16);
    probe.transfer.atomic = AtomicOp::sum;
    probe.transfer.type = DataType::u32;
    if (op != OpCode::write) probe.transfer.result = result.data();
    probe.transfer.compare = comparand.data();
    change(probe.transfer);
    REQUIRE(probe.post(side) == 1);
    const Said said = says_one(side);
    expected.length = static_cast<std::uint32_t>(payload.size());
    expected.key = kKey;
    expected.remote = 40;
    expected.total = 16;
    if (is_atomic(op)) {
      expected.atomic_op = static_cast<std::uint8_t>(probe.transfer.atomic);
      expected.data_type = static_cast<std::uint8_t>(DataType::u32);
    }
    CHECK(said.header == expected);
    CHECK(said.payload == payload);
    side.session.fail(Errc::peer_lost);
  };
  const std::string x(16, 'x'), y(16, 'y');
  constexpr std::uint8_t kData = frame_flag::kRemoteData, kCommit = frame_flag::kCommit,
                         kLast = frame_flag::kLast;
  asks(OpCode::write, {.type = write, .flags = kLast}, x);
  asks(OpCode::write, {.type = write, .flags = kLast}, x, [](Transfer& put) { put.data = 9; });
  asks(OpCode::write, {.type = write, .flags = kLast | kData, .data = 9}, x, [](Transfer& put) {
    put.flags = transfer_flag::kRemoteData;
    put.data = 9;
  });
  asks(OpCode::write, {.type = write, .flags = kLast | kCommit}, x,
       [](Transfer& put) { put.delivery = Delivery::commit; });
  asks(OpCode::read, {.type = read}, "");
  asks(OpCode::atomic, {.type = atomic}, x);
  asks(OpCode::atomic, {.type = atomic, .flags = kCommit}, x,
       [](Transfer& update) { update.delivery = Delivery::commit; });
  asks(OpCode::fetch_atomic, {.type = fetch}, x);
  asks(OpCode::fetch_atomic, {.type = fetch}, "",
       [](Transfer& update) { update.atomic = AtomicOp::atomic_read; });
  asks(OpCode::compare_atomic, {.type = compare}, x + y,
       [](Transfer& update) { update.atomic = AtomicOp::cswap; });
  Transfer moved{};
  moved.key = 5;
  moved.remote = 6;
  moved.length = 12;
  moved.data = 7;
  CHECK(side.session.post_notify(moved));
  CHECK(says_one(side).header == FrameHeader{.type = notify, .key = 5, .remote = 6, .total = 12, .data = 7});
}

TEST_CASE("the pieces of an array are known by its number, and the last of them says so") {
  Side side(1);
  const Bytes local(8);
  for (const bool last : {false, true}) {
    Probe piece(OpCode::atomic, kKey, 0, const_cast<std::byte*>(local.data()), 8);
    piece.transfer.atomic = AtomicOp::sum;
    piece.transfer.type = DataType::u64;
    piece.transfer.flags = transfer_flag::kPiece | (last ? transfer_flag::kLastPiece : 0);
    piece.operation.begin_array();
    REQUIRE(piece.post(side) == 1);
    const Said said = says_one(side);
    CHECK(said.header.data == piece.operation.array());
    CHECK(said.header.flags == (last ? frame_flag::kLast : 0));
    REQUIRE(hears(side, {.type = FrameType::ack, .total = 1}) == Errc::ok);
  }
}

namespace {

// What is said of a marked transfer of 16 bytes, which is then answered.
Said said_of(Side& side, const FrameHeader& marks, OpCode op) {
  Bytes local(16, std::byte{'x'});
  Probe like(op, kKey, 40, local.data(), 16);
  like.transfer.atomic = AtomicOp::sum;
  like.transfer.type = DataType::u64;
  Marked marked(marks, like);
  REQUIRE(marked.post(side) == 1);
  Said said = says_one(side);
  const auto before = side.counts.bytes_out;
  const FrameHeader data{.type = FrameType::data, .flags = frame_flag::kLast, .length = 16};
  const FrameHeader ack{.type = FrameType::ack, .total = 1};
  REQUIRE((op == OpCode::read ? hears(side, data, std::string(16, 'y')) : hears(side, ack)) == Errc::ok);
  CHECK(marked.done());
  CHECK(side.counts.bytes_out - before == said.payload.size());
  return said;
}

}  // namespace

TEST_CASE("the number of a request is in its frame, and bytes that went as stripes are not sent again") {
  Side side(1);
  FrameHeader expected{.type = FrameType::write,
                       .flags = frame_flag::kLast,
                       .length = 16,
                       .key = kKey,
                       .remote = 40,
                       .total = 16,
                       .id = 5};
  Said said = said_of(side, {.id = 5}, OpCode::write);
  CHECK(said.header == expected);
  CHECK(said.payload == std::string(16, 'x'));
  said = said_of(side, {.flags = frame_flag::kStriped, .id = 5}, OpCode::write);
  expected.flags |= frame_flag::kStriped;
  expected.length = 0;
  CHECK(said.header == expected);
  said = said_of(side, {.id = 6}, OpCode::atomic);
  expected = {.type = FrameType::atomic,
              .atomic_op = static_cast<std::uint8_t>(AtomicOp::sum),
              .data_type = static_cast<std::uint8_t>(DataType::u64),
              .length = 16,
              .key = kKey,
              .remote = 40,
              .total = 16,
              .id = 6};
  CHECK(said.header == expected);
}

TEST_CASE("a stripe's frame says where it lies in the whole, and how long that is") {
  Side side(1);
  const FrameHeader stripe{.flags = frame_flag::kStripe, .data = 30, .id = 100};
  FrameHeader expected{.type = FrameType::write,
                       .flags = frame_flag::kStripe | frame_flag::kLast,
                       .length = 16,
                       .key = kKey,
                       .remote = 40,
                       .total = 16,
                       .data = 30,
                       .id = 100};
  const Said said = said_of(side, stripe, OpCode::write);
  CHECK(said.header == expected);
  CHECK(said.payload == std::string(16, 'x'));
  expected.type = FrameType::read;
  expected.flags = frame_flag::kStripe;
  expected.length = 0;
  CHECK(said_of(side, stripe, OpCode::read).header == expected);
}

TEST_CASE("a link's own requests are frames of their own, and one that joins is a rail from then on") {
  using enum FrameType;
  RailSide side;
  const auto asks = [&](const FrameHeader& frame) {
    Control control(frame);
    REQUIRE(control.post(side) == 1);
    CHECK(says_one(side).header == frame);
    REQUIRE(hears(side, {.type = ack, .total = 1}) == Errc::ok);
    CHECK(control.error() == Errc::ok);
  };
  asks({.type = settled, .total = 8, .id = 3});
  asks({.type = fence, .data = rail_number(1, 2)});
  CHECK_FALSE(side.session.one_of_several());
  asks({.type = join, .key = 7, .remote = 2, .data = rail_number(3, 1)});
  CHECK(side.session.one_of_several());
  asks({.type = join, .flags = frame_flag::kRejoin, .key = 7, .remote = 2, .data = rail_number(3, 1)});
  side.session.fail(Errc::peer_lost);
  CHECK_FALSE(side.session.one_of_several());
}

TEST_CASE("gets that follow each other share a request, up to its limits") {
  Side side(1);
  Bytes landing(65'537);
  const auto requests_of = [&](std::size_t count, std::uint64_t length) {
    std::list<Probe> gets;
    std::vector<Transfer> batch;
    for (std::size_t i = 0; i < count; ++i)
      batch.push_back(gets.emplace_back(OpCode::read, kKey, i, landing.data(), length).transfer);
    REQUIRE(side.session.post(batch) == count);
    std::vector<std::size_t> rows;  // of each request; one: it is a plain get
    for (const Said& said : says(side)) {
      const bool shared = said.header.type == FrameType::rows;
      CHECK((shared || said.header.type == FrameType::read));
      rows.push_back(shared ? said.header.length / kRowBytes : 1);
      CHECK(said.header.total == rows.back() * length);
    }
    side.session.fail(Errc::peer_lost);
    return rows;
  };
  using Rows = std::vector<std::size_t>;
  CHECK(requests_of(1, 8) == Rows{1});
  CHECK(requests_of(2, 8) == Rows{2});
  CHECK(requests_of(kMaxRows, 8) == Rows{kMaxRows});
  CHECK(requests_of(kMaxRows + 1, 8) == Rows{kMaxRows, 1});
  CHECK(requests_of(2 * kMaxRows + 3, 0) == Rows{kMaxRows, kMaxRows, 3});
  CHECK(requests_of(16, 65'536) == Rows{16});  // kMaxRowsBytes, to the byte
  CHECK(requests_of(17, 65'536) == Rows{16, 1});
  CHECK(requests_of(2, 65'537) == Rows{1, 1});  // long enough to be worth a request
}

TEST_CASE("what is copied has a limit, which is reached to the byte") {
  const Bytes local(256 - kHeaderBytes);
  std::list<Put> puts;  // are told of their end by that of the session
  Side side(1);
  std::size_t posted = 0;
  while (puts.emplace_back(local).post(side) == 1) ++posted;
  CHECK(posted == (1 << 20) / 256);
  CHECK_FALSE(side.session.post_notify({}));
  iovec out[1];
  REQUIRE(side.session.output(out, 1) == 1);
  side.session.sent(256);
  CHECK(side.session.post_notify({}));
  CHECK(puts.back().post(side) == 1);
  CHECK_FALSE(side.session.post_notify({}));
  says(side);
  CHECK(side.session.post_notify({}));
}

TEST_CASE("what is wrong on this side has its outcome at once, if nothing is before it") {
  Side side(1);
  const Bytes local(9);
  std::list<Probe> updates;
  std::vector<Transfer> batch;
  for (const std::uint64_t length : {9, 8, 9}) {
    Probe& update =
        updates.emplace_back(OpCode::atomic, kKey, 0, const_cast<std::byte*>(local.data()), length);
    update.transfer.atomic = AtomicOp::sum;
    update.transfer.type = DataType::u64;
    batch.push_back(update.transfer);
  }
  CHECK(side.session.post(batch) == 3);
  CHECK(side.counts.posted == 3);
  CHECK(side.counts.settled == 1);
  CHECK(side.counts.errors == 1);
  CHECK(updates.front().error() == Errc::invalid);
  CHECK(updates.front().length() == 0);
  CHECK_FALSE(updates.back().done());
  CHECK(side.session.requests().outstanding() == 2);
  CHECK(says(side).size() == 1);
  REQUIRE(hears(side, {.type = FrameType::ack, .total = 1}) == Errc::ok);
  CHECK(updates.back().error() == Errc::invalid);
  CHECK(side.session.requests().outstanding() == 0);
}

TEST_CASE("a refusal that comes after a put was done is an entry of the queue, whose put it was") {
  Side side(1);
  const Bytes local(64);
  for (const Delivery level : {Delivery::inject, Delivery::transmit}) {
    Put put(local);
    put.operation.begin({.context = 41, .flags = completion_flag::kRma | completion_flag::kWrite});
    put.transfer.delivery = level;
    REQUIRE(put.post(side) == 1);
    says(side);
    CHECK(put.done());
    const auto refused = static_cast<std::uint64_t>(Errc::access);
    REQUIRE(hears(side, {.type = FrameType::fail, .data = refused}) == Errc::ok);
    Completion late[2];
    REQUIRE(side.completions.read(late) == 1);
    CHECK(late[0].context == 41);
    CHECK(late[0].error == Errc::access);
    CHECK(late[0].flags == (completion_flag::kRma | completion_flag::kWrite));
    CHECK(put.error() == Errc::ok);
  }
  CHECK(side.counts.errors == 2);
}

TEST_CASE("an answer may come in parts, which land one behind the other") {
  Side side(1);
  Bytes landing(10);
  const iovec pieces[] = {piece(landing, 0, 3), piece(landing, 3, 7)};
  for (const bool scattered : {false, true}) {
    Probe get(OpCode::read, kKey, 0, landing.data(), 10);
    if (scattered) {
      get.transfer.local_pieces = pieces;
      get.transfer.piece_count = 2;
    }
    REQUIRE(get.post(side) == 1);
    says(side);
    REQUIRE(hears(side, {.type = FrameType::data, .length = 4}, "abcd") == Errc::ok);
    REQUIRE(hears(side, {.type = FrameType::data, .length = 0}) == Errc::ok);
    REQUIRE(hears(side, {.type = FrameType::data, .length = 6}, "efghij") == Errc::ok);
    CHECK_FALSE(get.done());
    REQUIRE(hears(side, {.type = FrameType::data, .flags = frame_flag::kLast}) == Errc::ok);
    CHECK(get.done());
    CHECK(get.length() == 10);
    CHECK(text_of(landing.data(), 10) == "abcdefghij");
    std::ranges::fill(landing, std::byte{0});
  }
}

TEST_CASE("what was not sent is not with the peer when it holds what was") {
  Side side(1, {.handover = Handover::when_held});
  const Bytes local(64);
  Put first(local), second(local);
  first.transfer.delivery = second.transfer.delivery = Delivery::transmit;
  REQUIRE(first.post(side) == 1);
  says(side);
  REQUIRE(second.post(side) == 1);
  side.session.held();
  CHECK(first.done());
  CHECK_FALSE(second.done());
  says(side);
  CHECK(second.done());
}

TEST_CASE("each request is as old as it was posted, a message that is answered as well") {
  Side side(1);
  const Bytes local(64);
  Put put(local);
  Probe message(OpCode::send, 7, 0, const_cast<std::byte*>(local.data()), 64);
  REQUIRE(put.post(side) == 1);
  REQUIRE(message.post(side) == 1);
  says(side);
  CHECK(side.session.requests().oldest() == 1);
  REQUIRE(hears(side, {.type = FrameType::ack, .total = 1}) == Errc::ok);
  CHECK(side.session.requests().oldest() == 2);
  CHECK(side.session.oldest() == 2);
  REQUIRE(hears(side, {.type = FrameType::ack, .total = 1}) == Errc::ok);
  CHECK(side.session.oldest() == Initiator::kNone);
}

TEST_CASE("gets that are asked for anew wait for room, and are as old as they were") {
  Side side(1);
  Bytes landing(8), there(8);
  std::list<Probe> probes;
  const auto post_gets = [&](std::size_t count) {
    std::vector<Transfer> batch;
    for (std::size_t i = 0; i < count; ++i)
      batch.push_back(probes.emplace_back(OpCode::read, kKey, i, landing.data(), 8).transfer);
    REQUIRE(side.session.post(batch) == count);
  };
  constexpr std::size_t kRefused = 100, kShared = 16;
  post_gets(kRefused);
  std::size_t puts = 0;
  const auto post_put = [&] {
    return probes.emplace_back(OpCode::write, kKey, 0, there.data(), 8).post(side) == 1;
  };
  while (puts < kMaxOutstanding - kRefused - kShared - 2 && post_put()) ++puts;
  post_gets(kShared);
  CHECK_FALSE(post_put());
  says(side);
  // Messages that this side asks for are requests as well, and have the places that gets in one request
  // leave.
  Operation taken[200];
  Receive receives[200];
  std::size_t pulls = 0;
  for (; pulls < kRefused + kShared; ++pulls) {
    taken[pulls].begin({});
    receives[pulls].operation = &taken[pulls];
    receives[pulls].local = landing.data();
    receives[pulls].length = 1;
    side.receives.post(receives[pulls]);
    REQUIRE(hears(side, {.type = FrameType::announce, .total = 100'000, .id = kStreamOnly | (pulls + 1)}) ==
            Errc::ok);
  }
  CHECK(says(side).size() == pulls);
  const auto out_of_bounds = static_cast<std::uint64_t>(Errc::bounds);
  REQUIRE(hears(side, {.type = FrameType::fail, .data = out_of_bounds}) == Errc::ok);
  CHECK(says(side).empty());
  CHECK(side.session.oldest() == 1);
  REQUIRE(hears(side, {.type = FrameType::ack, .total = kShared - 1}) == Errc::ok);
  CHECK(says(side).empty());
  REQUIRE(hears(side, {.type = FrameType::ack, .total = 1}) == Errc::ok);
  const Said again = says_one(side);
  CHECK(again.header == FrameHeader{.type = FrameType::read, .key = kKey, .total = 8});
  CHECK(side.session.oldest() == 1);  // though younger ones are before it
  REQUIRE(hears(side, {.type = FrameType::ack, .total = 2}) == Errc::ok);
  const auto next = says(side);
  REQUIRE(next.size() == 2);
  CHECK(next[0].header.remote == 1);
  CHECK(next[1].header.remote == 2);
  side.session.fail(Errc::peer_lost);
  CHECK(side.session.requests().outstanding() == 0);
  CHECK(side.session.oldest() == Initiator::kNone);
  std::size_t done = 0;
  for (const Probe& probe : probes) done += probe.done();
  CHECK(done == kRefused + kShared + puts);
  CHECK(side.counts.settled == side.counts.posted);
}

TEST_CASE("a session whose stream has ended begins as a new one") {
  Bytes local(64), former(kMaxAtomicBytes);
  std::list<Probe> probes;
  Put put(local);
  Side side(1);
  const auto fetch = [&] {
    Probe& probe = probes.emplace_back(OpCode::fetch_atomic, kKey, 0, nullptr, kMaxAtomicBytes);
    probe.transfer.atomic = AtomicOp::atomic_read;
    probe.transfer.type = DataType::u64;
    probe.transfer.result = former.data();
    return probe.post(side) == 1;
  };
  for (int life = 0; life < 3; ++life) {
    std::size_t fetches = 0;
    while (fetch()) ++fetches;
    CHECK(fetches == kMaxResultBytes / kMaxAtomicBytes);
    says(side);
    side.session.fail(Errc::peer_lost);
    CHECK(side.session.requests().outstanding() == 0);
    CHECK(side.session.oldest() == Initiator::kNone);
    CHECK(side.counts.settled == side.counts.posted);
  }
  REQUIRE(put.post(side) == 1);
  CHECK(hears(side, {.type = FrameType::ack, .total = 1}) == Errc::protocol);  // of one that is not sent
}

namespace {

// Memory that faults when it is read.
struct Gone {
  Mapping memory = Mapping::anonymous(4096);
  Gone() { REQUIRE(::mprotect(memory.data(), memory.size(), PROT_NONE) == 0); }
  std::byte* data() const { return memory.data(); }
};

}  // namespace

TEST_CASE("bytes that are not there go in no frame") {
  Side side(1);
  const Gone gone;
  const Bytes there(16, std::byte{'x'});
  Bytes result(16);
  std::list<Probe> probes;
  const auto post = [&](OpCode op, std::byte* local, Delivery delivery) {
    Probe& probe = probes.emplace_back(op, kKey, 40, local, 16);
    probe.transfer.delivery = delivery;
    probe.transfer.atomic = op == OpCode::compare_atomic ? AtomicOp::cswap : AtomicOp::sum;
    probe.transfer.type = DataType::u64;
    probe.transfer.compare = there.data();
    probe.transfer.result = result.data();
    REQUIRE(probe.post(side) == 1);
  };
  for (const OpCode op : {OpCode::write, OpCode::atomic, OpCode::send})
    for (const Delivery delivery : {Delivery::delivery, Delivery::inject}) post(op, gone.data(), delivery);
  for (const OpCode op : {OpCode::fetch_atomic, OpCode::compare_atomic})
    post(op, gone.data(), Delivery::delivery);
  for (const Probe& probe : probes) {
    REQUIRE(probe.done());
    CHECK(probe.error() == Errc::bounds);
  }
  CHECK(says(side).empty());
}

TEST_CASE("a request whose bytes are not there changes nothing for its neighbours") {
  Pipe pipe(7);
  const Gone gone;
  Bytes there(48), local(16, std::byte{'x'});
  const auto key = pipe.b.expose({piece(there)});
  std::list<Probe> probes;
  for (const std::uint64_t at : {0, 16, 32}) {
    probes.emplace_back(OpCode::write, key, at, at == 16 ? gone.data() : local.data(), 16);
    REQUIRE(probes.back().post(pipe.a) == 1);
  }
  REQUIRE(pipe.run() == Errc::ok);
  std::vector<Errc> errors;
  for (const Probe& probe : probes) errors.push_back(probe.error());
  CHECK(errors == std::vector{Errc::ok, Errc::bounds, Errc::ok});
  const std::string bytes(reinterpret_cast<const char*>(there.data()), there.size());
  CHECK(bytes == std::string(16, 'x') + std::string(16, '\0') + std::string(16, 'x'));
}
