// Whatever allocation fails, every operation has one outcome that is true, and nothing ends the process.
#include <doctest/doctest.h>

#include <list>

#include "base/bytes/wire.h"
#include "fabric/memory/local_memory.h"
#include "fabric/session/pipe.h"
#include "failing_memory.h"
#include "once.h"

using namespace fab;
using namespace fab::test;
using Bytes = std::vector<std::byte>;

namespace {

// Two sessions without a wire between them, which would need memory itself. Ends both once one has to end, as
// their owners do.
struct Link {
  Pipe pipe{1, {.notices = true}};
  bool up = true;

  bool move(Session& from, Session& to) {
    iovec out[16], in[2];
    const std::size_t outs = from.output(out, 16), ins = to.input(in);
    std::size_t bytes = 0;
    PieceCursor landing(in, ins);
    std::size_t room = 0;
    for (std::size_t i = 0; i < ins; ++i) room += in[i].iov_len;
    for (std::size_t i = 0; i < outs && room; ++i) {
      const std::size_t part = std::min(room, out[i].iov_len);
      REQUIRE(scatter(static_cast<const std::byte*>(out[i].iov_base), landing, part));
      landing.skip(part);
      room -= part;
      bytes += part;
    }
    if (bytes == 0) return false;
    from.sent(bytes);
    if (to.received(bytes) != Errc::ok) end();
    return true;
  }
  void end() {
    up = false;
    pipe.a.session.fail(Errc::no_memory);
    pipe.b.session.fail(Errc::no_memory);
  }
  // Until nothing moves any more.
  void run() {
    Session &a = pipe.a.session, &b = pipe.b.session;
    for (bool moved = true; up && moved;) {
      moved = move(a, b);
      if (up) moved |= move(b, a);
      if (!up) return;
      a.end_turn();
      b.end_turn();
      moved |= a.has_output() || b.has_output();
      if (a.broken() || b.broken()) return end();
    }
  }
};

struct Do : Once {
  Do(OpCode op, std::uint64_t key, std::uint64_t remote, std::size_t length,
     Delivery delivery = Delivery::delivery, std::byte fill = std::byte{7})
      : bytes(length, fill), result(length) {
    transfer.operation = &operation;
    transfer.op = op;
    transfer.key = key;
    transfer.remote = remote;
    transfer.local = bytes.data();
    transfer.length = length;
    transfer.delivery = delivery;
    transfer.result = result.data();
    transfer.compare = bytes.data();
    transfer.type = DataType::u64;
  }
  // From, or to, three pieces.
  Do& scattered() {
    const std::size_t third = bytes.size() / 3;
    pieces = {piece(bytes, 0, third), piece(bytes, third, third),
              piece(bytes, 2 * third, bytes.size() - 2 * third)};
    transfer.local_pieces = pieces.data();
    transfer.piece_count = 3;
    return *this;
  }
  Bytes bytes, result;
  std::vector<iovec> pieces;
  Transfer transfer{};
};

// All that sessions do for each other, in the order in which it is made.
struct Course {
  static constexpr std::size_t kArea = 1 << 20;
  Link link;
  Side &a = link.pipe.a, &b = link.pipe.b;
  Bytes area = Bytes(kArea, std::byte{3});
  const std::uint64_t key = b.expose({piece(area)});
  std::list<Do> puts, gets, atomics, sends;
  std::list<Take> takes;
  std::vector<Transfer> rows;
  Do unwanted{OpCode::send, 99, 0, 50'000};

  void post(std::span<const Transfer> batch) {
    while (!batch.empty()) {
      const std::size_t taken = link.up ? a.session.post(batch) : 0;
      batch = batch.subspan(taken);
      if (taken != 0) continue;
      link.run();
      if (link.up) continue;
      for (const Transfer& rest : batch) rest.operation->settle(Errc::no_memory, 0);
      return;
    }
  }
  void post(const Do& one) { post({&one.transfer, 1}); }
  void take(Take& one) {
    try {
      b.receives.post(one.receive);
    } catch (const std::bad_alloc&) {
      one.posted = false;
    }
  }

  Course() {
    unwanted.transfer.flags = transfer_flag::kTagged;
    for (const std::size_t length : {8u, 250u, 300u, 20'000u, 300'000u})
      for (const Delivery level : {Delivery::inject, Delivery::transmit, Delivery::delivery})
        puts.emplace_back(OpCode::write, key, 0, length, level);
    puts.emplace_back(OpCode::write, key, 0, 9000).scattered();
    puts.emplace_back(OpCode::write, key + 1, 0, 64);  // unknown key
    for (const std::size_t length : {8u, 300u, 300'000u})
      gets.emplace_back(OpCode::read, key, kArea / 2, length);
    gets.emplace_back(OpCode::read, key, kArea / 2, 9000).scattered();
    for (int i = 0; i < 20; ++i) gets.emplace_back(OpCode::read, key, i == 7 ? kArea : kArea / 2, 64);
    for (auto get = std::prev(gets.end(), 20); get != gets.end(); ++get) rows.push_back(get->transfer);
    for (const OpCode op : {OpCode::atomic, OpCode::fetch_atomic, OpCode::compare_atomic}) {
      Do& one = atomics.emplace_back(op, key, kArea - 64, 16);
      one.transfer.atomic = op == OpCode::compare_atomic ? AtomicOp::cswap : AtomicOp::sum;
    }
    for (const std::size_t length : {8u, 5000u, 40'000u, 200'000u})
      for (const Delivery level : {Delivery::inject, Delivery::transmit, Delivery::delivery}) {
        Do& send =
            sends.emplace_back(OpCode::send, sends.size(), 0, length, level, static_cast<std::byte>(length));
        send.transfer.flags = transfer_flag::kTagged;
        takes.emplace_back(sends.size() - 1, length);
      }
  }

  void go() {
    for (const Do& put : puts) post(put);
    for (auto get = gets.begin(); get != std::prev(gets.end(), 20); ++get) post(*get);
    post(rows);
    for (const Do& atomic : atomics) post(atomic);
    if (link.up) a.session.post_notify({});
    link.run();
    // Every second message meets a receive that waits; the others are waited for.
    std::size_t number = 0;
    for (Take& one : takes)
      if (number++ % 2) take(one);
    for (const Do& send : sends) post(send);
    link.run();
    number = 0;
    for (Take& one : takes)
      if (number++ % 2 == 0) take(one);
    link.run();
    post(unwanted);
    link.run();
    b.receives.discard({.tag = 99, .tagged = true});
    if (link.up) a.session.ping();
    link.run();
    if (link.up) link.end();
    for (Take& one : takes) b.receives.cancel(one.operation);
  }

  void check(bool failed) {
    for (Do& put : puts) {
      const Errc outcome = put.outcome();
      CHECK(outcome != Errc::again);
      if (!failed) CHECK(outcome == (put.transfer.key == key ? Errc::ok : Errc::key_rejected));
    }
    for (Do& get : gets) {
      const Errc outcome = get.outcome();
      CHECK(outcome != Errc::again);
      if (!failed) CHECK(outcome == (get.transfer.remote == kArea ? Errc::bounds : Errc::ok));
      if (outcome == Errc::ok) CHECK(get.bytes == Bytes(get.bytes.size(), std::byte{3}));
    }
    for (Do& atomic : atomics) {
      const Errc outcome = atomic.outcome();
      CHECK(outcome != Errc::again);
      if (!failed) CHECK(outcome == Errc::ok);
    }
    const Errc dropped = unwanted.outcome();
    CHECK(dropped == (failed && dropped != Errc::again ? dropped : Errc::ok));
    auto one = takes.begin();
    for (Do& send : sends) {
      const Errc sent = send.outcome(), taken = one->outcome();
      CHECK(sent != Errc::again);
      CHECK(taken != Errc::again);
      if (!failed) CHECK(sent == Errc::ok);
      if (!failed) CHECK(taken == Errc::ok);
      if (taken == Errc::ok) CHECK(one->bytes == send.bytes);
      ++one;
    }
    CHECK(a.counts.posted == a.counts.settled);
    CHECK(b.counts.posted == b.counts.settled);
  }
};

}  // namespace

TEST_CASE("sessions survive the failure of each allocation") {
  for (const auto lack : {FailingMemory::Lack::once, FailingMemory::Lack::lasting}) {
    const auto made = with_each_failing(
        [&](FailingMemory& memory) {
          Course course;
          {
            const FailingMemory::Scope scope(memory);
            course.go();
          }
          CAPTURE(memory.made());
          course.check(memory.failed());
        },
        FailingMemory::Of::thread, lack);
    CHECK(made > 40);
  }
}

TEST_CASE("an announced message that meets its receive needs no memory that the one before has not left") {
  Link link;
  FailingMemory memory(0);
  for (int round = 0; round < 10; ++round) {
    Do send(OpCode::send, 7, 0, 50'000);
    send.transfer.flags = transfer_flag::kTagged;
    Take taken(7, send.bytes.size());
    link.pipe.b.receives.post(taken.receive);
    if (round < 3) {  // the first ones make what all need
      REQUIRE(link.pipe.a.session.post({&send.transfer, 1}) == 1);
      link.run();
    } else {
      const FailingMemory::Scope scope(memory);
      link.pipe.a.session.post({&send.transfer, 1});
      link.run();
    }
    CHECK(taken.outcome() == Errc::ok);
    CHECK(taken.bytes == send.bytes);
    CHECK(send.outcome() == Errc::ok);
  }
  CHECK(memory.made() == 0);
}

TEST_CASE("a stream ends when memory is lacking to keep what it owes from a region that goes") {
  Side side(1);
  Bytes memory(50'000);
  const std::uint64_t key = side.expose({piece(memory)});
  std::byte frame[kHeaderBytes];
  encode({.type = FrameType::read, .key = key, .total = memory.size()}, frame);
  iovec place[2], out[4];
  REQUIRE(side.session.input(place) == 1);
  std::memcpy(place[0].iov_base, frame, sizeof frame);
  REQUIRE(side.session.received(sizeof frame) == Errc::ok);
  REQUIRE(side.session.output(out, 4) >= 2);
  side.session.sent(kHeaderBytes + 1);  // the rest has to come from a copy
  FailingMemory memory_lacks(1, FailingMemory::Of::thread, FailingMemory::Lack::lasting);
  {
    const FailingMemory::Scope scope(memory_lacks);
    side.session.forget(side.last_region);
  }
  CHECK(memory_lacks.failed());
  CHECK(side.session.broken());
  CHECK_FALSE(side.session.has_output());
}

TEST_CASE("a stream ends when memory is lacking to show what it owes") {
  Side side(1);
  Bytes memory(1000);
  const std::uint64_t key = side.expose({piece(memory)});
  std::byte frame[kHeaderBytes];
  encode({.type = FrameType::read, .key = key, .total = memory.size()}, frame);
  for (int i = 0; i < 100; ++i) {
    iovec place[2];
    REQUIRE(side.session.input(place) == 1);
    std::memcpy(place[0].iov_base, frame, sizeof frame);
    REQUIRE(side.session.received(sizeof frame) == Errc::ok);
  }
  FailingMemory memory_lacks(1, FailingMemory::Of::thread, FailingMemory::Lack::lasting);
  iovec out[200];
  {
    const FailingMemory::Scope scope(memory_lacks);
    CHECK(side.session.output(out, 200) == 0);
  }
  CHECK(memory_lacks.failed());
  CHECK(side.session.broken());
}

TEST_CASE("a message is lost for both when memory is lacking to read it, and its sender is told") {
  struct Reader final : MemoryReader {
    void read(std::span<Read> reads) noexcept override { most = std::max(most, reads.size()); }
    std::size_t most = 0;
  } reader;
  std::byte frame[kHeaderBytes + kPieceBytes] = {};
  encode({.type = FrameType::announce,
          .flags = frame_flag::kTagged,
          .length = kPieceBytes,
          .key = 7,
          .total = 100'000,
          .id = kStreamOnly | 1},
         frame);
  const std::uint64_t length = to_little(std::uint64_t{100'000});
  std::memcpy(frame + kHeaderBytes + 8, &length, sizeof length);
  int lost = 0;
  with_each_failing([&](FailingMemory& lacking) {
    int output = 0;
    Take taken(7, 100'000);
    Side side(1, {.reader = &reader, .on_output = [&] { ++output; }});
    iovec place[2], out[4];
    REQUIRE(side.session.input(place) == 1);
    std::memcpy(place[0].iov_base, frame, sizeof frame);
    REQUIRE(side.session.received(sizeof frame) == Errc::ok);
    reader.most = 0;
    try {
      const FailingMemory::Scope scope(lacking);
      side.receives.post(taken.receive);
    } catch (const std::bad_alloc&) {
      return;  // there is no such receive
    }
    if (reader.most != 0) return;
    ++lost;
    CHECK(taken.outcome() == Errc::no_memory);
    CHECK(output == 1);
    REQUIRE(side.session.output(out, 4) == 1);
    FrameHeader release;
    REQUIRE(decode(static_cast<const std::byte*>(out[0].iov_base), release));
    CHECK(release.type == FrameType::release);
    CHECK(release.data == static_cast<std::uint64_t>(Errc::no_memory));
  });
  CHECK(lost >= 1);
}
