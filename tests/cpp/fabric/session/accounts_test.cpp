#include <doctest/doctest.h>
#include <sys/mman.h>

#include <list>
#include <numeric>

#include "base/memory/mapping.h"
#include "fabric/session/pipe.h"

using namespace fab;
using namespace fab::test;
using Bytes = std::vector<std::byte>;

namespace {

struct Landing {
  explicit Landing(std::size_t size) : bytes(size) {
    operation.begin({.flags = completion_flag::kMessage | completion_flag::kRecv});
    receive.operation = &operation;
    receive.local = bytes.data();
    receive.length = size;
  }
  Bytes bytes;
  Operation operation;
  Receive receive;
};

}  // namespace

// What a session tells those around it: who counts, who looks on, and who is asked for a sign of life.

TEST_CASE("what a path counts of each kind of operation") {
  Pipe pipe(1);
  Bytes memory(1000), local(1000);
  alignas(8) std::uint64_t word = 1, step = 2, former = 0;
  const auto key = pipe.b.expose({piece(memory)}), word_key = pipe.b.expose({{&word, 8}});
  const PathCounts& counts = pipe.a.counts;
  PathCounts before;
  const auto counted = [&](std::vector<Probe*> probes, std::uint64_t out, std::uint64_t in,
                           std::uint64_t errors = 0) {
    for (Probe* probe : probes) REQUIRE(probe->post(pipe.a) == 1);
    REQUIRE(pipe.run() == Errc::ok);
    CHECK(counts.posted - before.posted == probes.size());
    CHECK(counts.settled - before.settled == probes.size());
    CHECK(counts.bytes_out - before.bytes_out == out);
    CHECK(counts.bytes_in - before.bytes_in == in);
    CHECK(counts.errors - before.errors == errors);
    before = counts;
  };
  const auto probe_of = [&](OpCode op, std::uint64_t of, std::uint64_t length) {
    Probe probe(op, of, 0, local.data(), length);
    probe.transfer.atomic = AtomicOp::sum;
    probe.transfer.type = DataType::u64;
    if (of == word_key) probe.transfer.local = reinterpret_cast<std::byte*>(&step);
    probe.transfer.result = reinterpret_cast<std::byte*>(&former);
    return probe.transfer;
  };
  const auto count_one = [&](OpCode op, std::uint64_t of, std::uint64_t length, Delivery delivery,
                             std::uint64_t out, std::uint64_t in, std::uint64_t errors = 0) {
    Probe probe(op, of, 0, nullptr, length);
    Operation* const operation = probe.transfer.operation;
    probe.transfer = probe_of(op, of, length);
    probe.transfer.operation = operation;
    probe.transfer.delivery = delivery;
    counted({&probe}, out, in, errors);
    CHECK(probe.done());
  };
  count_one(OpCode::write, key, 100, Delivery::delivery, 100, 0);
  count_one(OpCode::write, key, 10, Delivery::inject, 10, 0);
  count_one(OpCode::write, key, 900, Delivery::transmit, 900, 0);
  count_one(OpCode::read, key, 200, Delivery::delivery, 0, 200);
  count_one(OpCode::read, key, 900, Delivery::delivery, 0, 900);
  count_one(OpCode::atomic, word_key, 8, Delivery::delivery, 8, 0);
  count_one(OpCode::atomic, word_key, 8, Delivery::inject, 8, 0);
  count_one(OpCode::fetch_atomic, word_key, 8, Delivery::delivery, 8, 8);
  count_one(OpCode::send, 7, 40, Delivery::delivery, 40, 0);
  count_one(OpCode::send, 7, 40, Delivery::inject, 40, 0);
  count_one(OpCode::write, key + 1, 100, Delivery::delivery, 0, 0, 1);
  count_one(OpCode::write, key + 1, 10, Delivery::inject, 0, 0, 1);
  count_one(OpCode::read, key, 2000, Delivery::delivery, 0, 0, 1);
  count_one(OpCode::send, 7, 40, Delivery::commit, 0, 0, 1);
  CHECK(word == 7);
}

TEST_CASE("the oldest that has not settled is told, whatever settles behind it") {
  Pipe pipe(4);
  Bytes memory(64), large(kMaxMessage + 1);
  const auto key = pipe.b.expose({piece(memory)});
  const auto numbered = [&](OpCode op, std::uint64_t number, Bytes& bytes, std::uint64_t of) {
    auto probe = std::make_unique<Probe>(op, of, 0, bytes.data(), bytes.size());
    if (op == OpCode::send) probe->transfer.flags |= transfer_flag::kTagged;
    REQUIRE(probe->post(pipe.a) == 1);
    REQUIRE(pipe.run() == Errc::ok);
    CHECK(pipe.a.counts.posted == number);
    return probe;
  };
  const auto take = [&](std::uint64_t tag) {
    auto landing = std::make_unique<Landing>(large.size());
    landing->receive.rule = {.tag = tag, .tagged = true};
    pipe.b.receives.post(landing->receive);
    REQUIRE(pipe.run() == Errc::ok);
    CHECK(landing->operation.done());
  };
  CHECK(pipe.a.session.oldest() == Initiator::kNone);
  const auto put = numbered(OpCode::write, 1, memory, key);
  CHECK(pipe.a.session.oldest() == Initiator::kNone);
  const auto first = numbered(OpCode::send, 2, large, 1), second = numbered(OpCode::send, 3, large, 2);
  const auto later_put = numbered(OpCode::write, 4, memory, key);
  const auto third = numbered(OpCode::send, 5, large, 3);
  CHECK(later_put->done());
  CHECK(pipe.a.counts.settled == 2);
  CHECK(pipe.a.session.oldest() == 2);
  CHECK(pipe.a.session.requests().oldest() == Initiator::kNone);
  take(2);
  CHECK(second->done());
  CHECK(pipe.a.session.oldest() == 2);
  take(1);
  CHECK(pipe.a.session.oldest() == 5);
  const auto fourth = numbered(OpCode::send, 6, large, 4);  // in the memory of one that has ended
  take(3);
  CHECK(pipe.a.session.oldest() == 6);
  Probe waiting(OpCode::write, key, 0, memory.data(), memory.size());
  REQUIRE(waiting.post(pipe.a) == 1);
  CHECK(pipe.a.session.oldest() == 6);
  take(4);
  CHECK(pipe.a.session.oldest() == Initiator::kNone);
  CHECK(waiting.done());
}

TEST_CASE("gets that are asked for anew, one by one, are as old as they were") {
  Pipe pipe(5);
  Bytes memory(64), landing(64);
  const auto key = pipe.b.expose({piece(memory)});
  std::list<Probe> gets;
  std::vector<Transfer> rows;
  for (const std::uint64_t remote : {0, 1000, 8}) {  // the second is out of bounds
    gets.emplace_back(OpCode::read, key, remote, landing.data() + remote % 64, 8);
    rows.push_back(gets.back().transfer);
  }
  REQUIRE(pipe.a.session.post(rows) == 3);
  Probe put(OpCode::write, key, 0, memory.data(), memory.size());
  REQUIRE(put.post(pipe.a) == 1);
  CHECK(pipe.a.session.oldest() == 1);
  bool seen = false;
  while (!gets.back().done()) {
    pipe.send(pipe.a);
    REQUIRE(pipe.receive(pipe.a, pipe.b) == Errc::ok);
    pipe.b.session.end_turn();
    pipe.send(pipe.b);
    REQUIRE(pipe.receive(pipe.b, pipe.a) == Errc::ok);
    const bool first = gets.front().done();
    if (!gets.back().done()) CHECK(pipe.a.session.oldest() <= 3);
    if (!first) CHECK(pipe.a.session.oldest() == 1);
    seen |= put.done() && !gets.back().done();
  }
  CHECK(seen);  // the put came before the last of those that were asked for anew
  REQUIRE(pipe.run() == Errc::ok);
  CHECK(pipe.a.session.oldest() == Initiator::kNone);
}

TEST_CASE("probes go and come as long as they say") {
  Pipe pipe(2);
  for (const std::uint64_t there : {0, 1, 9'000, 65'536})
    for (const std::uint64_t back : {0, 1, 500, 65'536}) {
      CAPTURE(there);
      CAPTURE(back);
      Control probe({.type = FrameType::probe, .length = static_cast<std::uint32_t>(there), .total = back},
                    nullptr, back),
          after({.type = FrameType::probe});
      REQUIRE(probe.post(pipe.a) == 1);
      REQUIRE(after.post(pipe.a) == 1);
      std::uint64_t sent = 0, received = 0;
      while (!after.done()) {
        const std::size_t before = pipe.a.wire.size();
        pipe.send(pipe.a);
        sent += pipe.a.wire.size() - before;
        REQUIRE(pipe.receive(pipe.a, pipe.b) == Errc::ok);
        pipe.b.session.end_turn();
        const std::size_t of_b = pipe.b.wire.size();
        pipe.send(pipe.b);
        received += pipe.b.wire.size() - of_b;
        REQUIRE(pipe.receive(pipe.b, pipe.a) == Errc::ok);
      }
      CHECK(probe.done());
      CHECK(probe.error() == Errc::ok);
      CHECK(sent == there + 2 * kHeaderBytes);
      CHECK(received >= back + kHeaderBytes);
      CHECK(received <= back + 2 * kHeaderBytes);
      CHECK(pipe.a.counts.bytes_in == 0);
    }
}

TEST_CASE("who asks for a sign of life gets one, and that is all") {
  Pipe pipe(3);
  CHECK_FALSE(pipe.a.session.awaits_peer());
  pipe.a.session.ping();
  REQUIRE(pipe.a.session.has_output());
  while (pipe.a.session.has_output()) pipe.send(pipe.a);
  CHECK(pipe.a.wire.size() == kHeaderBytes);
  while (!pipe.a.wire.empty()) REQUIRE(pipe.receive(pipe.a, pipe.b) == Errc::ok);
  REQUIRE(pipe.b.session.has_output());
  while (pipe.b.session.has_output()) pipe.send(pipe.b);
  CHECK(pipe.b.wire.size() == kHeaderBytes);
  while (!pipe.b.wire.empty()) REQUIRE(pipe.receive(pipe.b, pipe.a) == Errc::ok);
  CHECK_FALSE(pipe.a.session.has_output());
  CHECK(pipe.b.counts.posted == 0);
}

TEST_CASE("an observer is told of what comes to its regions, and of what was stored there") {
  struct Observer final : AccessObserver {
    using Seen = std::tuple<std::uint32_t, OpCode, std::uint64_t, std::uint64_t>;
    void admitted(std::uint32_t index, OpCode op, std::uint64_t offset,
                  std::uint64_t length) noexcept override {
      let_in.emplace_back(index, op, offset, length);
    }
    void stored(std::uint32_t index, OpCode op, std::uint64_t offset,
                std::uint64_t length) noexcept override {
      stays.emplace_back(index, op, offset, length);
    }
    std::vector<Seen> let_in, stays;
  } observer;
  Pipe pipe(4, {.observer = &observer});
  alignas(8) std::uint64_t words[4] = {}, step = 1, former = 0;
  const auto plain = pipe.b.expose({{words, 32}});
  const auto observed = pipe.b.expose({{words, 32}}, access::kAll, region_flag::kObserved);
  const std::uint32_t region = pipe.b.last_region;
  const auto post = [&](OpCode op, std::uint64_t key, std::uint64_t at, AtomicOp atomic = AtomicOp::sum) {
    Probe probe(op, key, at, reinterpret_cast<std::byte*>(&step), 8);
    probe.transfer.atomic = atomic;
    probe.transfer.type = DataType::u64;
    probe.transfer.result = reinterpret_cast<std::byte*>(&former);
    REQUIRE(probe.post(pipe.a) == 1);
    REQUIRE(pipe.run() == Errc::ok);
    return probe.error();
  };
  CHECK(post(OpCode::write, plain, 0) == Errc::ok);
  CHECK(post(OpCode::fetch_atomic, plain, 0) == Errc::ok);
  CHECK(post(OpCode::write, observed, 30) == Errc::bounds);
  CHECK(observer.let_in.empty());
  CHECK(post(OpCode::write, observed, 8) == Errc::ok);
  CHECK(post(OpCode::read, observed, 16) == Errc::ok);
  CHECK(post(OpCode::fetch_atomic, observed, 0) == Errc::ok);
  CHECK(post(OpCode::fetch_atomic, observed, 24, AtomicOp::atomic_read) == Errc::ok);
  using Seen = Observer::Seen;
  CHECK(observer.let_in == std::vector<Seen>{{region, OpCode::write, 8, 8},
                                             {region, OpCode::read, 16, 8},
                                             {region, OpCode::fetch_atomic, 0, 8},
                                             {region, OpCode::fetch_atomic, 24, 8}});
  CHECK(observer.stays == std::vector<Seen>{{region, OpCode::write, 8, 8}, {region, OpCode::atomic, 0, 8}});
}

TEST_CASE("a link counts the messages that it took, by their form") {
  LinkCounters counters;
  Bytes bytes(20'000);
  const iovec whole = piece(bytes, 0, 30);
  std::list<Probe> probes;  // some are told of their end by that of the pipe
  Pipe pipe(5, {}, {.counters = &counters});
  for (const std::uint64_t length : {30, 20'000})
    for (unsigned form = 0; form < send_form::kForms; ++form) {
      Probe& probe = probes.emplace_back(OpCode::send, 7, 0, bytes.data(), length);
      Transfer& transfer = probe.transfer;
      const iovec* pieces = length == 30 ? &whole : nullptr;
      transfer.delivery = form & send_form::kInject ? Delivery::inject : Delivery::transmit;
      if (form & send_form::kTagged) transfer.flags |= transfer_flag::kTagged;
      if (form & send_form::kRemoteData) transfer.flags |= transfer_flag::kRemoteData;
      if ((form & send_form::kVector) && pieces) transfer.local_pieces = pieces, transfer.piece_count = 1;
      const std::uint64_t before = counters.sends[pieces ? form : form & ~send_form::kVector];
      REQUIRE(probe.post(pipe.a) == 1);
      CHECK(counters.sends[pieces ? form : form & ~send_form::kVector] == before + 1);
    }
  Probe refused(OpCode::send, 7, 0, bytes.data(), 30);
  refused.transfer.delivery = Delivery::commit;
  REQUIRE(refused.post(pipe.a) == 1);
  CHECK(refused.error() == Errc::invalid);
  CHECK(std::accumulate(counters.sends.begin(), counters.sends.end(), std::uint64_t{0}) ==
        2 * send_form::kForms);
  REQUIRE(pipe.run() == Errc::ok);
}

TEST_CASE("what the peer shall have is complete at once, when it is held, or when it is answered") {
  for (const Handover handover : {Handover::at_once, Handover::when_held, Handover::when_answered}) {
    CAPTURE(static_cast<int>(handover));
    Pipe pipe(6, {}, {.handover = handover});
    Bytes memory(1000), local(1000);
    const auto key = pipe.b.expose({piece(memory)});
    Probe put(OpCode::write, key, 0, local.data(), 1000), message(OpCode::send, 7, 0, local.data(), 1000);
    Probe injected(OpCode::write, key, 0, local.data(), 1000),
        refused(OpCode::write, key, 1, local.data(), 1000);
    Probe reading(OpCode::read, key, 0, local.data(), 1000);
    put.transfer.delivery = message.transfer.delivery = refused.transfer.delivery = Delivery::transmit;
    reading.transfer.delivery = Delivery::transmit;
    injected.transfer.delivery = Delivery::inject;
    for (Probe* probe : {&put, &message, &injected, &refused, &reading}) REQUIRE(probe->post(pipe.a) == 1);
    CHECK(injected.done());
    while (pipe.a.session.has_output()) pipe.send(pipe.a);
    CHECK(pipe.a.session.awaits_peer());
    const auto are_done = [&](bool expected) {
      CHECK(put.done() == expected);
      CHECK(message.done() == expected);
    };
    are_done(handover == Handover::at_once);
    CHECK_FALSE(reading.done());
    if (handover != Handover::when_answered) {
      pipe.a.session.held();
      are_done(true);
      CHECK(refused.done());
      Probe next(OpCode::send, 7, 0, local.data(), 500);
      next.transfer.delivery = Delivery::transmit;
      REQUIRE(next.post(pipe.a) == 1);
      while (pipe.a.session.has_output()) pipe.send(pipe.a);
      CHECK(next.done());
    }
    REQUIRE(pipe.run() == Errc::ok);
    are_done(true);
    CHECK(reading.done());
    Completion late[2];
    CHECK(pipe.a.completions.read(late) == (handover == Handover::when_answered ? 0 : 1));
    CHECK(pipe.a.counts.errors == 1);
  }
}

TEST_CASE("memory that has gone fails the requests that reach for it, and no others") {
  Pipe pipe(7);
  const Mapping memory = Mapping::anonymous(40'000);
  Bytes there(40'000), local(40'000, std::byte{1});
  alignas(8) std::uint64_t step = 1, former = 0;
  const auto key = pipe.b.expose({{memory.data(), 40'000}}), kept = pipe.b.expose({piece(there)});
  REQUIRE(::mprotect(memory.data(), 40'000, PROT_NONE) == 0);
  std::list<Probe> probes;
  const auto post = [&](OpCode op, std::uint64_t of, std::uint64_t length) -> Probe& {
    Probe& probe = probes.emplace_back(op, of, 0, local.data(), length);
    probe.transfer.atomic = AtomicOp::sum;
    probe.transfer.type = DataType::u64;
    if (length == 8) probe.transfer.local = reinterpret_cast<std::byte*>(&step);
    if (op == OpCode::fetch_atomic) probe.transfer.result = reinterpret_cast<std::byte*>(&former);
    REQUIRE(probe.post(pipe.a) == 1);
    return probe;
  };
  for (const std::uint64_t length : {100, 5'000})
    for (const OpCode op : {OpCode::write, OpCode::read}) {
      if (op == OpCode::read && length > kMaxCopiedAnswer) continue;  // sent from the region itself
      const Probe& gone = post(op, key, length);
      const Probe& good = post(op, kept, length);
      REQUIRE(pipe.run() == Errc::ok);
      CHECK(gone.error() == Errc::bounds);
      CHECK(good.error() == Errc::ok);
    }
  const Probe& atomic = post(OpCode::fetch_atomic, key, 8);
  REQUIRE(pipe.run() == Errc::ok);
  CHECK(atomic.error() == Errc::bounds);

  Landing landing(100);
  landing.receive.local = memory.data();
  pipe.b.receives.post(landing.receive);
  const Probe& message = post(OpCode::send, 0, 100);
  REQUIRE(pipe.run() == Errc::ok);
  CHECK(landing.operation.completion().error == Errc::bounds);
  CHECK(message.error() == Errc::ok);
}

TEST_CASE("a session that goes settles what it has, and a failed one sends nothing") {
  Bytes memory(1000), local(1000);
  Probe put(OpCode::write, 5, 0, local.data(), 1000);
  {
    Side side(1);
    REQUIRE(put.post(side) == 1);
    CHECK(side.session.has_output());
  }
  REQUIRE(put.done());
  CHECK(put.error() == Errc::peer_lost);
}
