#include "fabric/session/session.h"

#include <doctest/doctest.h>
#include <sys/mman.h>

#include <list>

#include "fabric/session/pipe.h"

using namespace fab;
using namespace fab::test;
using Bytes = std::vector<std::byte>;

TEST_CASE("random puts and gets in both directions move exactly their bytes") {
  for (unsigned seed = 1; seed <= 24; ++seed) {
    CAPTURE(seed);
    Pipe pipe(seed);
    constexpr std::size_t kSlots = 12, kSlot = 6'000'000;  // longer than a frame
    // Each side exposes one region that runs through three buffers, with canaries around them.
    struct Owner {
      Side& side;
      Side& other;
      Bytes first, second, third;
      std::uint64_t key;
      Bytes expected;
    };
    const std::size_t total = seed % 8 ? kSlots * 9000 : kSlots * kSlot;
    const std::size_t slot = total / kSlots;
    const auto owner = [&](Side& side, Side& other) {
      Owner o{side,
              other,
              random_bytes(pipe.random, 5001),
              random_bytes(pipe.random, 40'003),
              random_bytes(pipe.random, total - 5001 - 40'003 + 16),
              0,
              {}};
      o.key = side.expose({piece(o.first), piece(o.second), piece(o.third, 8, o.third.size() - 16)});
      for (const Bytes* part : {&o.first, &o.second})
        o.expected.insert(o.expected.end(), part->begin(), part->end());
      o.expected.insert(o.expected.end(), o.third.begin() + 8, o.third.end() - 8);
      return o;
    };
    Owner owners[2] = {owner(pipe.a, pipe.b), owner(pipe.b, pipe.a)};
    const Bytes before[2] = {owners[0].third, owners[1].third};

    for (int round = 0; round < 3; ++round) {
      std::list<Probe> probes;
      std::list<Bytes> buffers;
      std::list<std::vector<iovec>> lists;
      std::list<std::pair<const Bytes*, Bytes>> reads;  // landing place, what must be there
      for (Owner& o : owners) {
        for (std::size_t i = 0; i < kSlots; ++i) {
          const std::size_t length = pipe.some_length(slot);
          const std::size_t at = i * slot + pipe.random() % (slot - length + 1);
          const bool write = pipe.random() % 2;
          Bytes& local = buffers.emplace_back(random_bytes(pipe.random, length + 1));
          Probe& probe =
              probes.emplace_back(write ? OpCode::write : OpCode::read, o.key, at, local.data(), length);
          constexpr Delivery kLevels[] = {Delivery::inject, Delivery::transmit, Delivery::delivery};
          probe.transfer.delivery = kLevels[pipe.random() % 3];
          if (pipe.random() % 3 == 0) {  // the local side in pieces
            auto& list = lists.emplace_back();
            for (std::size_t done = 0; done < length;) {
              const std::size_t part = std::min(length - done, pipe.some_length(length) + length / 500 + 1);
              list.push_back(piece(local, done, part));
              done += part;
            }
            if (!list.empty()) {
              probe.transfer.local_pieces = list.data();
              probe.transfer.piece_count = static_cast<std::uint16_t>(list.size());
            }
          }
          if (write) {
            std::copy_n(local.begin(), length, o.expected.begin() + static_cast<std::ptrdiff_t>(at));
          } else {
            Bytes want(o.expected.begin() + static_cast<std::ptrdiff_t>(at),
                       o.expected.begin() + static_cast<std::ptrdiff_t>(at + length));
            want.push_back(local.back());
            reads.emplace_back(&local, std::move(want));
          }
          REQUIRE(probe.post(o.other) == 1);
          if (pipe.random() % 3 == 0) REQUIRE(pipe.turn() == Errc::ok);
        }
      }
      REQUIRE(pipe.run() == Errc::ok);
      for (const Probe& probe : probes) {
        CHECK(probe.done());
        CHECK(probe.error() == Errc::ok);
        CHECK(probe.length() == probe.transfer.length);
      }
      for (const auto& [got, want] : reads) CHECK(*got == want);
      for (Owner& o : owners) {
        Bytes now = o.first;
        now.insert(now.end(), o.second.begin(), o.second.end());
        now.insert(now.end(), o.third.begin() + 8, o.third.end() - 8);
        CHECK(now == o.expected);
        CHECK(o.side.session.requests().outstanding() == 0);
        CHECK(o.side.counts.posted == o.side.counts.settled);
        CHECK(o.side.counts.errors == 0);
      }
    }
    for (int i = 0; i < 2; ++i) {
      CHECK(std::equal(before[i].begin(), before[i].begin() + 8, owners[i].third.begin()));
      CHECK(std::equal(before[i].end() - 8, before[i].end(), owners[i].third.end() - 8));
    }
  }
}

TEST_CASE("a refused request fails alone, with the reason, and stores nothing") {
  Pipe pipe(7);
  Bytes memory(5'000'000, std::byte{1}), guarded(64, std::byte{1}), local(9'000'000, std::byte{9});
  const auto key = pipe.b.expose({piece(memory)});
  const auto read_only = pipe.b.expose({piece(guarded)}, access::kRemoteRead);
  const auto write_only = pipe.b.expose({piece(guarded)}, access::kRemoteWrite);
  const Bytes memory_before = memory, guarded_before = guarded;

  const auto outcome = [&](OpCode op, std::uint64_t which, std::uint64_t remote, std::uint64_t length) {
    Probe probe(op, which, remote, local.data(), length);
    Bytes result(std::min<std::uint64_t>(length, kMaxAtomicBytes));
    probe.transfer.atomic = AtomicOp::sum;
    probe.transfer.type = DataType::u64;
    if (op == OpCode::fetch_atomic) probe.transfer.result = result.data();
    REQUIRE(probe.post(pipe.a) == 1);
    REQUIRE(pipe.run() == Errc::ok);
    REQUIRE(probe.done());
    CHECK(probe.length() == (probe.error() == Errc::ok ? length : 0));
    return probe.error();
  };
  for (const OpCode op : {OpCode::write, OpCode::read, OpCode::atomic, OpCode::fetch_atomic}) {
    CAPTURE(static_cast<int>(op));
    const bool read = op == OpCode::read;
    CHECK(outcome(op, key + 1, 0, 8) == Errc::key_rejected);
    CHECK(outcome(op, read ? write_only : read_only, 0, 8) == Errc::access);
    CHECK(outcome(op, key, memory.size() - 7, 8) == Errc::bounds);
    CHECK(outcome(op, key, memory.size() + 1, 0) == Errc::bounds);
    CHECK(outcome(op, key, ~std::uint64_t{7}, 8) == Errc::bounds);
    if (op <= OpCode::read) {
      CHECK(outcome(op, key + 1, 0, 8'500'000) == Errc::key_rejected);
      CHECK(outcome(op, key, 8, memory.size()) == Errc::bounds);
    }
  }
  CHECK(memory == memory_before);
  CHECK(guarded == guarded_before);
  CHECK(outcome(OpCode::write, key, 0, 100) == Errc::ok);  // the stream goes on
  CHECK(memory[99] == std::byte{9});
  CHECK(pipe.a.counts.errors == 24);
}

TEST_CASE("gets that follow each other share requests, and each keeps its own outcome") {
  for (unsigned seed = 1; seed <= 60; ++seed) {
    CAPTURE(seed);
    Pipe pipe(seed);
    Bytes first = random_bytes(pipe.random, 70'001), second = random_bytes(pipe.random, 300'000), other(100);
    const auto key = pipe.b.expose({piece(first), piece(second)});
    const auto small_key = pipe.b.expose({piece(other)});
    Bytes whole = first;
    whole.insert(whole.end(), second.begin(), second.end());
    // Rows of one size class each time: copied answers, answers in place, landing places of their own.
    constexpr std::size_t kMost[] = {1, 16, 300, 4000, 70'000};
    const std::size_t most = kMost[seed % 5];
    const std::size_t count = 1 + pipe.random() % 600;
    Bytes landing(count * (most + 1), std::byte{7});
    std::list<Operation> operations;
    std::vector<Transfer> batch;
    std::vector<Errc> expected;
    for (std::size_t i = 0; i < count; ++i) {
      const std::size_t length = pipe.random() % (most + 1);
      std::uint64_t remote = pipe.random() % (whole.size() - length + 1);
      Errc outcome = Errc::ok;
      Probe row(OpCode::read, key, remote, landing.data() + i * (most + 1), length);
      if (seed % 3 == 0 && pipe.random() % 40 == 0) {
        row.transfer.remote = whole.size() - length + 1;
        outcome = Errc::bounds;
      } else if (seed % 3 == 1 && pipe.random() % 40 == 0) {
        row.transfer.key = small_key;  // another region
        row.transfer.remote = 0;
        outcome = length <= other.size() ? Errc::ok : Errc::bounds;
      } else if (seed % 3 == 2 && pipe.random() % 40 == 0) {
        row.transfer.key = 12345;
        outcome = Errc::key_rejected;
      }
      Operation& operation = operations.emplace_back();
      operation.begin({});
      row.transfer.operation = &operation;
      batch.push_back(row.transfer);
      expected.push_back(outcome);
    }
    for (std::span<const Transfer> rest(batch); !rest.empty();) {
      rest = rest.subspan(pipe.a.session.post(rest));
      REQUIRE(pipe.turn() == Errc::ok);
    }
    REQUIRE(pipe.run() == Errc::ok);
    auto operation = operations.begin();
    for (std::size_t i = 0; i < count; ++i, ++operation) {
      CAPTURE(i);
      const Transfer& row = batch[i];
      REQUIRE(operation->done());
      CHECK(operation->completion().error == expected[i]);
      CHECK(landing[i * (most + 1) + row.length] == std::byte{7});
      if (expected[i] != Errc::ok) continue;
      CHECK(operation->completion().length == row.length);
      const std::byte* want = row.key == key ? whole.data() + row.remote : other.data();
      CHECK(std::memcmp(row.local, want, row.length) == 0);
    }
    CHECK(pipe.a.session.requests().outstanding() == 0);
    CHECK(pipe.a.counts.posted == count);
    CHECK(pipe.a.counts.settled == count);
  }
}

TEST_CASE("what this side can tell to be wrong is the transfer's outcome, in its turn") {
  Pipe pipe(3);
  Bytes memory(4096), local(4096);
  const auto key = pipe.b.expose({piece(memory)});
  Probe good(OpCode::write, key, 0, local.data(), 2000);
  Probe too_long(OpCode::atomic, key, 0, local.data(), kMaxAtomicBytes + 8);
  Probe ragged(OpCode::atomic, key, 0, local.data(), 9);
  Probe unsupported(OpCode::atomic, key, 0, local.data(), 8);
  Probe compare(OpCode::compare_atomic, key, 0, local.data(), 8);
  Probe last(OpCode::write, key, 0, local.data(), 10);
  too_long.transfer.type = ragged.transfer.type = compare.transfer.type = DataType::u64;
  unsupported.transfer.type = DataType::f64;
  unsupported.transfer.atomic = AtomicOp::bxor;
  compare.transfer.atomic = AtomicOp::sum;
  for (Probe* probe : {&good, &too_long, &ragged, &unsupported, &compare, &last})
    REQUIRE(probe->post(pipe.a) == 1);
  CHECK_FALSE(too_long.done());
  REQUIRE(pipe.run() == Errc::ok);
  CHECK(good.error() == Errc::ok);
  CHECK(too_long.error() == Errc::message_size);
  CHECK(ragged.error() == Errc::invalid);
  CHECK(unsupported.error() == Errc::not_supported);
  CHECK(compare.error() == Errc::invalid);
  CHECK(last.done());
  CHECK(last.error() == Errc::ok);
  CHECK(pipe.a.counts.settled == 6);
}

TEST_CASE("atomics work across buffers of a region, and return former values") {
  Pipe pipe(11);
  alignas(8) std::uint64_t low[3] = {1, 2, 3}, high[3] = {4, 5, 6};
  const auto key = pipe.b.expose({{low, sizeof low}, {high, sizeof high}});
  std::uint64_t operand[6] = {10, 20, 30, 40, 50, 60}, former[6] = {}, compare[6] = {11, 0, 33, 44, 0, 66};
  Probe add(OpCode::fetch_atomic, key, 0, reinterpret_cast<std::byte*>(operand), sizeof operand);
  add.transfer.atomic = AtomicOp::sum;
  add.transfer.type = DataType::u64;
  add.transfer.result = reinterpret_cast<std::byte*>(former);
  REQUIRE(add.post(pipe.a) == 1);
  REQUIRE(pipe.run() == Errc::ok);
  CHECK(add.error() == Errc::ok);
  for (std::uint64_t i = 0; i < 6; ++i) {
    CHECK(former[i] == i + 1);
    CHECK((i < 3 ? low[i] : high[i - 3]) == (i + 1) * 11);
  }
  Probe swap(OpCode::compare_atomic, key, 0, reinterpret_cast<std::byte*>(operand), sizeof operand);
  swap.transfer.atomic = AtomicOp::cswap;
  swap.transfer.type = DataType::u64;
  swap.transfer.result = reinterpret_cast<std::byte*>(former);
  swap.transfer.compare = reinterpret_cast<std::byte*>(compare);
  REQUIRE(swap.post(pipe.a) == 1);
  REQUIRE(pipe.run() == Errc::ok);
  CHECK(low[0] == 10);
  CHECK(low[1] == 22);
  CHECK(high[2] == 60);
  CHECK(former[4] == 55);
  Probe look(OpCode::fetch_atomic, key, 8, nullptr, 8);  // reads need no operand
  look.transfer.atomic = AtomicOp::atomic_read;
  look.transfer.type = DataType::u64;
  look.transfer.result = reinterpret_cast<std::byte*>(former);
  REQUIRE(look.post(pipe.a) == 1);
  REQUIRE(pipe.run() == Errc::ok);
  CHECK(former[0] == 22);
}

TEST_CASE("a region is described to those who may reach it, and the CPU takes it before it updates it") {
  struct Device final : DeviceAccess {
    Errc describe(std::uint32_t region, std::byte* out) noexcept override {
      std::memset(out, static_cast<int>(region + 1), kDescriptionBytes);
      return outcome;
    }
    void claim_atomics(std::uint32_t region) noexcept override {
      claimed = region;
      seen = *word;
    }
    Errc outcome = Errc::ok;
    std::uint32_t claimed = ~0u;
    const std::uint64_t* word = nullptr;
    std::uint64_t seen = 0;
  } device;
  alignas(8) std::uint64_t word = 5, step = 2, former = 0;
  device.word = &word;
  Pipe pipe(12, {.device = &device});
  const auto key = pipe.b.expose({{&word, 8}}, access::kRemoteWrite);
  std::vector<std::byte> told(kDescriptionBytes);
  const auto ask = [&](std::uint64_t of) {
    Control probe({.type = FrameType::describe, .key = of, .total = kDescriptionBytes}, told.data(),
                  told.size());
    REQUIRE(probe.post(pipe.a) == 1);
    REQUIRE(pipe.run() == Errc::ok);
    return probe.error();
  };
  CHECK(ask(key) == Errc::ok);
  for (const std::byte byte : told) CHECK(byte == static_cast<std::byte>(pipe.b.last_region + 1));
  CHECK(pipe.a.counts.bytes_in == 0);
  CHECK(ask(key + 1) == Errc::key_rejected);
  for (const Errc outcome : {Errc::again, Errc::not_supported}) {
    device.outcome = outcome;
    CHECK(ask(key) == outcome);
  }
  const auto none = pipe.b.expose({{&word, 8}}, access::kLocal);
  CHECK(ask(none) == Errc::access);

  CHECK(device.claimed == ~0u);
  Probe add(OpCode::fetch_atomic, key, 0, reinterpret_cast<std::byte*>(&step), 8);
  add.transfer.atomic = AtomicOp::sum;
  add.transfer.type = DataType::u64;
  add.transfer.result = reinterpret_cast<std::byte*>(&former);
  REQUIRE(add.post(pipe.a) == 1);
  REQUIRE(pipe.run() == Errc::ok);
  CHECK(device.claimed == pipe.b.regions.find(key));
  CHECK(device.seen == 5);
  CHECK(word == 7);
}

TEST_CASE("an atomic element that straddles buffers, or is misaligned, is refused untouched") {
  Pipe pipe(12);
  alignas(8) std::byte low[12] = {}, high[20] = {};
  const auto key = pipe.b.expose({{low, sizeof low}, {high, sizeof high}});
  std::uint64_t operand[4] = {~0ull, ~0ull, ~0ull, ~0ull};
  for (const std::uint64_t at : {0, 4, 8}) {
    Probe probe(OpCode::atomic, key, at, reinterpret_cast<std::byte*>(operand), 16);
    probe.transfer.atomic = AtomicOp::sum;
    probe.transfer.type = DataType::u64;
    REQUIRE(probe.post(pipe.a) == 1);
    REQUIRE(pipe.run() == Errc::ok);
    CHECK(probe.error() == Errc::invalid);
  }
  const auto half = pipe.b.expose({{low, 8}, {high + 4, 16}});  // what comes first is well aligned
  Probe probe(OpCode::atomic, half, 0, reinterpret_cast<std::byte*>(operand), 16);
  probe.transfer.atomic = AtomicOp::sum;
  probe.transfer.type = DataType::u64;
  REQUIRE(probe.post(pipe.a) == 1);
  REQUIRE(pipe.run() == Errc::ok);
  CHECK(probe.error() == Errc::invalid);
  for (const std::byte value : low) CHECK(value == std::byte{0});
  for (const std::byte value : high) CHECK(value == std::byte{0});
}

TEST_CASE("remote data and counters come once per request, whatever its length, and not for refused ones") {
  Pipe pipe(13, {.notices = true});
  Bytes memory(9'000'000), local(9'000'001, std::byte{5});
  const auto key = pipe.b.expose({piece(memory)});
  pipe.b.regions.bind_counter(pipe.b.last_region, 3);
  CounterSlot& slot = pipe.b.segment.counters()[3];
  slot.waiters.store(1);
  const PeerId source = pipe.b.peers.insert(Name{{{"test.0", 0, "peer"}}}.encode());
  std::list<Probe> probes;
  for (const std::uint64_t length : {0u, 1u, 4096u, 70'000u, 9'000'000u, 9'000'001u}) {
    Probe& probe = probes.emplace_back(OpCode::write, key, 0, local.data(), length);
    probe.transfer.flags = transfer_flag::kRemoteData;
    probe.transfer.data = 1000 + length;
    REQUIRE(probe.post(pipe.a) == 1);
  }
  Transfer moved{};
  moved.key = key;
  moved.remote = 100;
  moved.length = 12;
  moved.data = 7;
  REQUIRE(pipe.a.session.post_notify(moved));
  REQUIRE(pipe.run() == Errc::ok);
  CHECK(slot.value.load() == 5);
  CHECK(pipe.b.wakes == 5);
  Completion got[16];
  REQUIRE(pipe.b.completions.read(got) == 6);
  const std::uint64_t lengths[] = {0, 1, 4096, 70'000, 9'000'000};
  for (std::size_t i = 0; i < 5; ++i) {
    CHECK(got[i].length == lengths[i]);
    CHECK(got[i].data == 1000 + lengths[i]);
    CHECK(got[i].source == source);
    CHECK(got[i].flags ==
          (completion_flag::kRma | completion_flag::kRemoteWrite | completion_flag::kRemoteData));
  }
  CHECK(got[5].data == 7);
  CHECK(got[5].length == 12);
  CHECK(probes.back().error() == Errc::bounds);
}

TEST_CASE("a notice needs what the put that it tells of needs, and a link on which peers move bytes") {
  Pipe pipe(15, {.notices = true});
  Bytes memory(64);
  const auto readable = pipe.b.expose({piece(memory)}, access::kRemoteRead);
  const auto closed = pipe.b.expose({piece(memory)});
  pipe.b.close(pipe.b.last_region);
  const auto key = pipe.b.expose({piece(memory)});
  const auto notice = [&](std::uint64_t region, std::uint64_t remote, std::uint64_t length) {
    Transfer moved{};
    moved.key = region;
    moved.remote = remote;
    moved.length = length;
    moved.data = 7;
    REQUIRE(pipe.a.session.post_notify(moved));
    CHECK(pipe.run() == Errc::ok);
    Completion got[2];
    return pipe.b.completions.read(got);
  };
  CHECK(notice(key, 0, 64) == 1);
  CHECK(notice(key, 1, 64) == 0);
  CHECK(notice(key + 1, 0, 8) == 0);
  CHECK(notice(readable, 0, 8) == 0);
  CHECK(notice(closed, 0, 8) == 0);
  CHECK(notice(0, 0, 0) == 0);
  // The put may be done, and the notice on its way, when the region is disabled or begins to close.
  const auto disabled = pipe.b.expose({piece(memory)});
  pipe.b.regions.set_enabled(pipe.b.last_region, false);
  CHECK(notice(disabled, 0, 64) == 1);
  CHECK(notice(disabled, 1, 64) == 0);
  pipe.b.regions.start_close(pipe.b.last_region);
  CHECK(notice(disabled, 0, 64) == 1);
  pipe.b.regions.finish_close(pipe.b.last_region);
  CHECK(notice(disabled, 0, 64) == 0);
  // A region that no put could reach has no notices.
  const auto never = pipe.b.expose({piece(memory)}, access::kAll, 0, false);
  CHECK(notice(never, 0, 8) == 0);
  pipe.b.regions.set_enabled(pipe.b.last_region, true);
  pipe.b.regions.set_enabled(pipe.b.last_region, false);
  CHECK(notice(never, 0, 8) == 1);
  pipe.b.expose({piece(memory)}, access::kRemoteRead);
  pipe.b.regions.start_close(pipe.b.last_region);
  CHECK(notice(pipe.b.regions.entry(pipe.b.last_region).key, 0, 8) == 0);

  Pipe other(16);
  const auto there = other.b.expose({piece(memory)});
  Transfer moved{};
  moved.key = there;
  moved.length = 8;
  REQUIRE(other.a.session.post_notify(moved));
  CHECK(other.run() == Errc::protocol);
}

TEST_CASE("a durable write needs a persistent region") {
  Pipe pipe(14);
  void* mapped = ::mmap(nullptr, 8192, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  REQUIRE(mapped != MAP_FAILED);
  const auto plain = pipe.b.expose({{mapped, 8192}});
  const auto durable = pipe.b.expose({{mapped, 8192}}, access::kAll, region_flag::kPersistent);
  Bytes local(100, std::byte{3});
  Probe refused(OpCode::write, plain, 50, local.data(), 100),
      good(OpCode::write, durable, 4050, local.data(), 100);
  refused.transfer.delivery = good.transfer.delivery = Delivery::commit;
  REQUIRE(refused.post(pipe.a) == 1);
  REQUIRE(good.post(pipe.a) == 1);
  REQUIRE(pipe.run() == Errc::ok);
  CHECK(refused.error() == Errc::invalid);
  CHECK(static_cast<std::byte*>(mapped)[50] == std::byte{0});
  CHECK(good.error() == Errc::ok);
  CHECK(static_cast<std::byte*>(mapped)[4149] == std::byte{3});
  ::munmap(mapped, 8192);
}

TEST_CASE("injected and transmitted operations settle early; a later refusal is an entry of the queue") {
  Pipe pipe(15);
  Bytes memory(100'000), local(100'000, std::byte{8});
  const auto key = pipe.b.expose({piece(memory)});
  Probe small(OpCode::write, key, 0, local.data(), 4000), large(OpCode::write, key, 0, local.data(), 100'000);
  Probe transmit(OpCode::write, key, 0, local.data(), 50'000),
      refused(OpCode::write, key + 1, 0, local.data(), 10);
  small.transfer.delivery = large.transfer.delivery = refused.transfer.delivery = Delivery::inject;
  transmit.transfer.delivery = Delivery::transmit;
  for (Probe* probe : {&small, &large, &transmit, &refused}) REQUIRE(probe->post(pipe.a) == 1);
  CHECK(small.done());
  CHECK(refused.done());
  CHECK_FALSE(large.done());
  CHECK_FALSE(transmit.done());
  std::fill_n(local.begin(), 10, std::byte{0});  // free for reuse: `small` was copied
  while (pipe.a.session.has_output()) pipe.send(pipe.a);
  CHECK(large.done());
  CHECK(transmit.done());
  CHECK(pipe.a.counts.settled == 0);  // counts follow the answers
  REQUIRE(pipe.run() == Errc::ok);
  CHECK(pipe.a.counts.settled == 4);
  Completion late[2];
  REQUIRE(pipe.a.completions.read(late) == 1);
  CHECK(late[0].error == Errc::key_rejected);
  CHECK(late[0].context == 77);
  CHECK(late[0].flags == completion_flag::kRma);
}

TEST_CASE("post takes no more than the limits, and goes on after answers") {
  Pipe pipe(21);
  Bytes memory(64), local(64);
  const auto key = pipe.b.expose({piece(memory)});
  std::list<Probe> probes;
  while (probes.emplace_back(OpCode::write, key, 0, local.data(), 8).post(pipe.a) == 1)
    REQUIRE(probes.size() < 100'000);
  CHECK(probes.size() == kMaxOutstanding + 1);
  REQUIRE(pipe.run() == Errc::ok);
  CHECK(probes.back().post(pipe.a) == 1);
  REQUIRE(pipe.run() == Errc::ok);
  for (const Probe& probe : probes) CHECK(probe.done());
}
