#include <doctest/doctest.h>

#include <list>

#include "fabric/memory/slice.h"
#include "fabric/session/by_hand.h"

using namespace fab;
using namespace fab::test;
using Bytes = std::vector<std::byte>;

namespace {

// What side `to` makes of bytes that come from `from`, whoever wrote them.
Errc hears(Pipe& pipe, Side& from, Side& to, const std::string& bytes) {
  from.wire += bytes;
  Errc error = Errc::ok;
  while (error == Errc::ok && !from.wire.empty()) error = pipe.receive(from, to);
  to.session.end_turn();
  return error;
}

// The next answer that a side has to give: Errc::ok for an ack or for data.
Errc answer(Pipe& pipe, Side& side) {
  while (side.session.has_output()) pipe.send(side);
  FrameHeader header;
  REQUIRE(side.wire.size() >= kHeaderBytes);
  REQUIRE(decode(reinterpret_cast<const std::byte*>(side.wire.data()), header));
  side.wire.clear();
  return header.type == FrameType::fail ? static_cast<Errc>(header.data) : Errc::ok;
}

}  // namespace

// What a session may ask of the other one, and what it refuses to those that ask for more.

TEST_CASE("former values have a limit of their own, which other requests know nothing of") {
  Pipe pipe(1);
  Bytes memory(kMaxAtomicBytes), former(kMaxAtomicBytes);
  std::uint64_t one = 1;
  const auto key = pipe.b.expose({piece(memory)});
  const auto fetch = [&](std::list<Probe>& probes) {
    Probe& probe = probes.emplace_back(OpCode::fetch_atomic, key, 0, nullptr, kMaxAtomicBytes);
    probe.transfer.atomic = AtomicOp::atomic_read;
    probe.transfer.type = DataType::u64;
    probe.transfer.result = former.data();
    return probe.post(pipe.a);
  };
  for (int round = 0; round < 2; ++round) {  // what was answered has room again
    std::list<Probe> probes;
    while (fetch(probes) == 1) REQUIRE(probes.size() < kMaxOutstanding);
    CHECK(probes.size() == kMaxResultBytes / kMaxAtomicBytes + 1);
    probes.pop_back();
    Probe put(OpCode::write, key, 0, memory.data(), 8), get(OpCode::read, key, 0, former.data(), 8),
        add(OpCode::atomic, key, 0, reinterpret_cast<std::byte*>(&one), 8);
    add.transfer.atomic = AtomicOp::sum;
    add.transfer.type = DataType::u64;
    for (Probe* probe : {&put, &get, &add}) CHECK(probe->post(pipe.a) == 1);
    REQUIRE(pipe.run() == Errc::ok);
    for (const Probe& probe : probes) CHECK(probe.error() == Errc::ok);
    for (const Probe* probe : {&put, &get, &add}) CHECK(probe->error() == Errc::ok);
  }
}

TEST_CASE("an answer to a request that has not been sent ends the connection") {
  for (const bool after_another : {false, true})
    for (const FrameHeader& answer :
         {FrameHeader{.type = FrameType::ack, .total = 1}, FrameHeader{.type = FrameType::fail, .data = 1},
          FrameHeader{.type = FrameType::data, .flags = frame_flag::kLast}}) {
      Bytes memory(64), local(64);
      std::list<Probe> probes;
      Pipe pipe(2);
      const auto key = pipe.b.expose({piece(memory)});
      const OpCode op = answer.type == FrameType::data ? OpCode::read : OpCode::write;
      Probe& first = probes.emplace_back(op, key, 0, local.data(), 64);
      Probe& second = probes.emplace_back(op, key, 0, local.data(), 64);
      if (after_another) {
        REQUIRE(first.post(pipe.a) == 1);
        REQUIRE(pipe.run() == Errc::ok);
        REQUIRE(first.done());
      }
      REQUIRE(second.post(pipe.a) == 1);
      CHECK(hears(pipe, pipe.b, pipe.a, frame_of(answer)) == Errc::protocol);
      CHECK_FALSE(second.done());
    }
}

TEST_CASE("ranges that are asked for together must be as many bytes as was said") {
  const auto outcome = [](std::uint64_t total, std::initializer_list<std::uint64_t> ranges) {
    Pipe pipe(3);
    Bytes memory(4096);
    const auto key = pipe.b.expose({piece(memory)});
    const std::string payload = words(ranges);
    return hears(pipe, pipe.a, pipe.b,
                 frame_of({.type = FrameType::rows,
                           .length = static_cast<std::uint32_t>(payload.size()),
                           .key = key,
                           .total = total},
                          payload));
  };
  CHECK(outcome(16, {0, 8, 64, 8}) == Errc::ok);
  CHECK(outcome(15, {0, 8, 64, 8}) == Errc::protocol);
  CHECK(outcome(17, {0, 8, 64, 8}) == Errc::protocol);
  CHECK(outcome(4, {0, 8}) == Errc::protocol);
  CHECK(outcome(8, {0, 8, 0, ~std::uint64_t{0}}) == Errc::protocol);
}

TEST_CASE("an announcement describes as many bytes as it announces, and nobody announces without end") {
  const auto outcome = [](std::uint64_t total, std::initializer_list<std::uint64_t> pieces) {
    Pipe pipe(4);
    const std::string payload = words(pieces);
    return hears(pipe, pipe.a, pipe.b,
                 frame_of({.type = FrameType::announce,
                           .length = static_cast<std::uint32_t>(payload.size()),
                           .total = total,
                           .id = kStreamOnly | 1},
                          payload));
  };
  CHECK(outcome(100, {4096, 100}) == Errc::ok);
  CHECK(outcome(100, {4096, 60, 8192, 40}) == Errc::ok);
  CHECK(outcome(100, {4096, 99}) == Errc::protocol);
  CHECK(outcome(100, {4096, 101}) == Errc::protocol);
  CHECK(outcome(100, {4096, 60, 8192, 41}) == Errc::protocol);
  CHECK(outcome(100, {4096, 60, 8192, ~std::uint64_t{0}, 4096, 41}) == Errc::protocol);

  Pipe pipe(5);
  Errc error = Errc::ok;
  std::uint64_t announced = 0;
  while (error == Errc::ok && announced < 2 * kMaxOutstanding)
    error = hears(pipe, pipe.a, pipe.b,
                  frame_of({.type = FrameType::announce, .total = 100'000, .id = kStreamOnly | ++announced}));
  CHECK(error == Errc::protocol);
  CHECK(announced == kMaxOutstanding + 1);
}

TEST_CASE("frames of one put follow each other, and agree") {
  for (const bool other : {false, true}) {
    Pipe pipe(6);
    Bytes memory(64);
    const auto key = pipe.b.expose({piece(memory)});
    const FrameHeader begun{.type = FrameType::write, .length = 8, .key = key, .total = 16};
    REQUIRE(hears(pipe, pipe.a, pipe.b, frame_of(begun, std::string(8, 'x'))) == Errc::ok);
    FrameHeader next = begun;
    next.flags = frame_flag::kLast;
    if (other)
      next = {.type = FrameType::read, .key = key, .total = 8};
    else
      next.remote = 8;
    CHECK(hears(pipe, pipe.a, pipe.b, frame_of(next, other ? "" : std::string(8, 'y'))) == Errc::protocol);
  }
}

TEST_CASE("a put to a region that is disabled in its middle fails, and stores no more") {
  Pipe pipe(7);
  Bytes memory(64);
  const auto key = pipe.b.expose({piece(memory)});
  FrameHeader frame{.type = FrameType::write, .length = 8, .key = key, .total = 16};
  REQUIRE(hears(pipe, pipe.a, pipe.b, frame_of(frame, std::string(8, 'x'))) == Errc::ok);
  pipe.b.regions.set_enabled(pipe.b.last_region, false);
  pipe.b.regions.set_enabled(pipe.b.last_region, true);
  frame.flags = frame_flag::kLast;
  REQUIRE(hears(pipe, pipe.a, pipe.b, frame_of(frame, std::string(8, 'y'))) == Errc::ok);
  CHECK(answer(pipe, pipe.b) == Errc::key_rejected);
  CHECK(memory[0] == std::byte{'x'});
  CHECK(memory[8] == std::byte{0});
}

TEST_CASE("of a peer that gave its requests up nothing is served any more, be it in the middle") {
  for (const bool begun : {false, true}) {
    Pipe pipe(8);
    Bytes memory(64);
    const auto key = pipe.b.expose({piece(memory)});
    FrameHeader frame{.type = FrameType::write, .length = 8, .key = key, .total = 16};
    if (begun) REQUIRE(hears(pipe, pipe.a, pipe.b, frame_of(frame, std::string(8, 'x'))) == Errc::ok);
    pipe.b.session.peer_gave_up();
    if (!begun) REQUIRE(hears(pipe, pipe.a, pipe.b, frame_of(frame, std::string(8, 'x'))) == Errc::ok);
    frame.flags = frame_flag::kLast;
    REQUIRE(hears(pipe, pipe.a, pipe.b, frame_of(frame, std::string(8, 'y'))) == Errc::ok);
    CHECK(answer(pipe, pipe.b) == Errc::peer_lost);
    CHECK(memory[0] == std::byte(begun ? 'x' : 0));
    CHECK(memory[8] == std::byte{0});

    // Nobody waits for the answer to a message either, and its sender has been told that it is lost.
    const FrameHeader answered{
        .type = FrameType::message, .flags = frame_flag::kAcknowledge, .length = 4, .total = 4};
    REQUIRE(hears(pipe, pipe.a, pipe.b, frame_of(answered, "lost")) == Errc::ok);
    CHECK_FALSE(pipe.b.session.has_output());
    CHECK(pipe.b.receives.sizes().unexpected == 0);
    REQUIRE(hears(pipe, pipe.a, pipe.b,
                  frame_of({.type = FrameType::message, .length = 4, .total = 4}, "sent")) == Errc::ok);
    CHECK(pipe.b.receives.sizes().unexpected == 1);
  }
}

TEST_CASE("an atomic is what its frame says, and changes nothing if it is no such operation") {
  Pipe pipe(9);
  Bytes memory(64), unaligned(63);
  const auto key = pipe.b.expose({piece(memory)});
  const auto outcome = [&](FrameType type, AtomicOp op, DataType data, std::uint64_t remote = 0) {
    const std::string payload(op == AtomicOp::atomic_read ? 0 : type == FrameType::compare ? 16 : 8, '\1');
    FrameHeader frame{.type = type,
                      .atomic_op = static_cast<std::uint8_t>(op),
                      .data_type = static_cast<std::uint8_t>(data),
                      .length = static_cast<std::uint32_t>(payload.size()),
                      .key = key,
                      .remote = remote,
                      .total = 8};
    REQUIRE(hears(pipe, pipe.a, pipe.b, frame_of(frame, payload)) == Errc::ok);
    return answer(pipe, pipe.b);
  };
  CHECK(outcome(FrameType::fetch, AtomicOp::cswap, DataType::u64) == Errc::invalid);
  CHECK(outcome(FrameType::compare, AtomicOp::sum, DataType::u64) == Errc::invalid);
  CHECK(outcome(FrameType::atomic, AtomicOp::band, DataType::f64) == Errc::not_supported);
  CHECK(outcome(FrameType::atomic, AtomicOp::sum, DataType::u64, 1) == Errc::invalid);
  CHECK(memory == Bytes(64));
  CHECK(outcome(FrameType::fetch, AtomicOp::atomic_read, DataType::u64) == Errc::ok);
  CHECK(outcome(FrameType::atomic, AtomicOp::sum, DataType::u64) == Errc::ok);
  CHECK(memory[0] == std::byte{1});
}

TEST_CASE("a counter rises once for an atomic that changes something, and once for an array of them") {
  Pipe pipe(10);
  Bytes memory(64);
  const auto key = pipe.b.expose({piece(memory)});
  pipe.b.regions.bind_counter(pipe.b.last_region, 2);
  const auto& counter = pipe.b.segment.counters()[2].value;
  std::uint64_t add[8] = {}, former = 0;
  const auto atomic = [&](OpCode op, AtomicOp what) {
    auto probe = std::make_unique<Probe>(op, key, 0, reinterpret_cast<std::byte*>(add), 8);
    probe->transfer.atomic = what;
    probe->transfer.type = DataType::u64;
    probe->transfer.result = reinterpret_cast<std::byte*>(&former);
    REQUIRE(probe->post(pipe.a) == 1);
    REQUIRE(pipe.run() == Errc::ok);
    CHECK(probe->error() == Errc::ok);
    return counter.load();
  };
  CHECK(atomic(OpCode::atomic, AtomicOp::sum) == 0);  // of nothing
  CHECK(atomic(OpCode::fetch_atomic, AtomicOp::atomic_read) == 0);
  add[0] = 1;
  CHECK(atomic(OpCode::atomic, AtomicOp::sum) == 1);
  CHECK(atomic(OpCode::fetch_atomic, AtomicOp::sum) == 2);

  for (const bool changes : {true, false}) {
    add[0] = changes;
    Operation operation;
    operation.begin({.transfers = 3, .flags = completion_flag::kRma});
    operation.begin_array();
    for (int part = 0; part < 3; ++part) {
      Transfer transfer =
          Probe(OpCode::atomic, key, part * 8u, reinterpret_cast<std::byte*>(&add[part]), 8).transfer;
      transfer.operation = &operation;
      transfer.atomic = AtomicOp::sum;
      transfer.type = DataType::u64;
      transfer.flags = transfer_flag::kPiece | (part == 2 ? transfer_flag::kLastPiece : 0);
      REQUIRE(pipe.a.session.post({&transfer, 1}) == 1);
      REQUIRE(pipe.run() == Errc::ok);
      CHECK(counter.load() == (changes && part < 2 ? 2 : 3));
    }
    CHECK(operation.done());
  }
}

TEST_CASE("what is sent and received is spent of the slice of the turn") {
  Slice sent, received;
  Pipe pipe(11, {.slice = &received}, {.slice = &sent});
  Bytes memory(100'000), local(100'000);
  const auto key = pipe.b.expose({piece(memory)});
  Probe put(OpCode::write, key, 0, local.data(), local.size());
  const std::uint64_t before = sent.left(), before_there = received.left();
  REQUIRE(put.post(pipe.a) == 1);
  REQUIRE(pipe.run() == Errc::ok);
  CHECK(before - sent.left() >= local.size());
  CHECK(before_there - received.left() >= local.size());
}

TEST_CASE("gets that are asked for anew behind a younger request are still the oldest") {
  Pipe pipe(12);
  Bytes memory(64), landing(64);
  const auto key = pipe.b.expose({piece(memory)});
  std::list<Probe> gets;
  std::vector<Transfer> rows;
  for (const std::uint64_t remote : {0, 1000, 8}) {  // the second is out of bounds
    gets.emplace_back(OpCode::read, key, remote, landing.data() + rows.size() * 8, 8);
    rows.push_back(gets.back().transfer);
  }
  REQUIRE(pipe.a.session.post(rows) == 3);
  Probe put(OpCode::write, key, 0, memory.data(), memory.size());
  REQUIRE(put.post(pipe.a) == 1);
  while (pipe.a.session.has_output()) pipe.send(pipe.a);
  while (!pipe.a.wire.empty()) REQUIRE(pipe.receive(pipe.a, pipe.b) == Errc::ok);
  pipe.b.session.end_turn();
  while (pipe.b.session.has_output()) pipe.send(pipe.b);
  const std::string later = pipe.b.wire.substr(kHeaderBytes);  // than the refusal of the three
  pipe.b.wire.resize(kHeaderBytes);
  REQUIRE(hears(pipe, pipe.b, pipe.a, "") == Errc::ok);
  CHECK_FALSE(put.done());
  CHECK(pipe.a.session.oldest() == 1);
  REQUIRE(hears(pipe, pipe.b, pipe.a, later) == Errc::ok);
  CHECK(put.done());
  CHECK(pipe.a.session.oldest() == 1);
  REQUIRE(pipe.run() == Errc::ok);
  CHECK(pipe.a.session.oldest() == Initiator::kNone);
  std::size_t refused = 0;
  for (const Probe& get : gets) {
    CHECK(get.done());
    refused += get.error() == Errc::bounds;
    CHECK(get.length() == (get.error() == Errc::ok ? 8 : 0));
  }
  CHECK(refused == 1);
}

TEST_CASE("gets that share requests make room when they are answered") {
  Pipe pipe(13);
  Bytes memory(64), landing(64);
  const auto key = pipe.b.expose({piece(memory)});
  constexpr std::size_t kEach = 200;
  for (std::size_t asked = 0; asked < 3 * kMaxOutstanding; asked += kEach) {
    std::list<Probe> gets;
    std::vector<Transfer> rows;
    for (std::size_t i = 0; i < kEach; ++i) {
      gets.emplace_back(OpCode::read, key, 8, landing.data(), 8);
      rows.push_back(gets.back().transfer);
    }
    REQUIRE(pipe.a.session.post(rows) == kEach);
    REQUIRE(pipe.run() == Errc::ok);
    for (const Probe& get : gets) REQUIRE(get.done());
  }
}

TEST_CASE("what fails has moved nothing, and says so") {
  Pipe pipe(14);
  Bytes memory(64), large(kMaxMessage + 1);
  const auto key = pipe.b.expose({piece(memory)});
  Probe refused(OpCode::write, key + 1, 0, memory.data(), 64), durable(OpCode::send, 7, 0, memory.data(), 64),
      announced(OpCode::send, 7, 0, large.data(), large.size()), small(OpCode::send, 7, 0, memory.data(), 64);
  durable.transfer.delivery = Delivery::commit;
  announced.transfer.delivery = small.transfer.delivery = Delivery::transmit;
  for (Probe* probe : {&refused, &durable, &announced}) REQUIRE(probe->post(pipe.a) == 1);
  REQUIRE(pipe.run() == Errc::ok);
  REQUIRE(small.post(pipe.a) == 1);
  pipe.a.session.fail(Errc::peer_lost);
  const std::pair<const Probe*, Errc> expected[] = {{&refused, Errc::key_rejected},
                                                    {&durable, Errc::invalid},
                                                    {&announced, Errc::peer_lost},
                                                    {&small, Errc::peer_lost}};
  for (const auto& [probe, error] : expected) {
    CHECK(probe->done());
    CHECK(probe->error() == error);
    CHECK(probe->length() == 0);
  }
}

TEST_CASE("what is injected is complete when it is posted") {
  Pipe pipe(15);
  std::uint64_t word = 0, one = 1;
  const auto key = pipe.b.expose({{&word, 8}});
  Probe put(OpCode::write, key, 0, reinterpret_cast<std::byte*>(&one), 8),
      add(OpCode::atomic, key, 0, reinterpret_cast<std::byte*>(&one), 8),
      send(OpCode::send, 7, 0, reinterpret_cast<std::byte*>(&one), 8);
  add.transfer.atomic = AtomicOp::sum;
  add.transfer.type = DataType::u64;
  for (Probe* probe : {&put, &add, &send}) {
    probe->transfer.delivery = Delivery::inject;
    REQUIRE(probe->post(pipe.a) == 1);
    CHECK(probe->done());
    CHECK(probe->length() == 8);
  }
  one = 100;  // the program's again
  REQUIRE(pipe.run() == Errc::ok);
  CHECK(word == 2);
}

TEST_CASE("messages that find their receives give their room back, so that none has to be announced") {
  for (const bool expected : {true, false}) {
    Pipe pipe(16);
    const Bytes bytes(kMaxMessage);
    Bytes place(kMaxMessage);
    for (std::uint64_t sent = 0; sent < 3 * kMessageWindow; sent += kMaxMessage) {
      Operation taken;
      taken.begin({});
      Receive receive;
      receive.operation = &taken;
      receive.local = place.data();
      receive.length = place.size();
      receive.rule = {.tag = 7, .tagged = true};
      if (expected) pipe.b.receives.post(receive);
      Probe send(OpCode::send, 7, 0, const_cast<std::byte*>(bytes.data()), bytes.size());
      send.transfer.flags = transfer_flag::kTagged;
      REQUIRE(send.post(pipe.a) == 1);
      REQUIRE_FALSE(pipe.a.session.messages().announces());
      REQUIRE(pipe.run() == Errc::ok);
      if (!expected) pipe.b.receives.post(receive);
      REQUIRE(pipe.run() == Errc::ok);
      REQUIRE(taken.done());
      REQUIRE(send.done());
    }
  }
}

TEST_CASE("credit is given for what was sent, and for no byte more") {
  for (const std::uint64_t more : {0, 1}) {
    Bytes bytes(100);
    Probe send(OpCode::send, 7, 0, bytes.data(), bytes.size());
    Pipe pipe(17);
    REQUIRE(send.post(pipe.a) == 1);
    while (pipe.a.session.has_output()) pipe.send(pipe.a);
    CHECK(hears(pipe, pipe.b, pipe.a,
                frame_of({.type = FrameType::credit, .total = bytes.size() + kMessageOverhead + more})) ==
          (more ? Errc::protocol : Errc::ok));
  }
}

TEST_CASE("a region that is not there is not described") {
  Pipe pipe(18);
  REQUIRE(hears(pipe, pipe.a, pipe.b,
                frame_of({.type = FrameType::describe, .key = 4711, .total = kDescriptionBytes})) ==
          Errc::ok);
  CHECK(answer(pipe, pipe.b) == Errc::key_rejected);
}
