#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <fstream>
#include <iterator>
#include <string>
#include <thread>

#include "fabric/completion/counter.h"
#include "providers/shm/harness.h"
#include "providers/shm/ways.h"

using namespace fab;
using test::kWays;
using test::Pair;
using test::pattern;
using test::Side;

// What two domains in one process tell of each other and of what has arrived, whichever way the bytes go.

TEST_CASE("shared memory alone needs no libcrypto") {
  const Pair pair("auto");
  std::ifstream maps("/proc/self/maps");
  const std::string all{std::istreambuf_iterator<char>(maps), {}};
  CHECK(all.find("libc.so") != std::string::npos);
  CHECK(all.find("libcrypto") == std::string::npos);
}

TEST_CASE("the report names the way") {
  const std::array<std::array<std::string, 3>, 4> expected = {
      {{"auto", "mapped", "cross-memory attach"},
       {"mapped", "mapped", "ring"},
       {"cma", "cross-memory attach", "cross-memory attach"},
       {"ring", "ring", "ring"}}};
  for (const auto& row : expected) {
    const auto& [way, for_alloc, for_own] = row;
    CAPTURE(row[0]);
    Pair pair(way);
    auto alloc = pair.b.alloc(64), own = pair.b.own(64);
    std::uint64_t word = 1;
    REQUIRE(pair.a.put(pair.peer, alloc.region->key(), 0, &word, 8) == Errc::ok);
    CHECK(pair.a.context->report(pair.peer).how == for_alloc);
    CHECK(pair.a.context->report(pair.peer).link == "shm.0");
    REQUIRE(pair.a.put(pair.peer, own.region->key(), 0, &word, 8) == Errc::ok);
    CHECK(pair.a.context->report(pair.peer).how == for_own);
  }
  CHECK_THROWS_AS(Side("pigeon"), Error);
}

TEST_CASE("remote data and counters come after the bytes, once per operation") {
  for (const std::string& way : kWays) {
    CAPTURE(way);
    Pair pair(way);
    const PeerId source = pair.b.knows(pair.a);
    for (const bool shared : {true, false}) {
      auto memory = shared ? pair.b.alloc(8 << 20) : pair.b.own(8 << 20);
      auto counter = pair.b.domain->open_counter();
      memory.region->bind(counter);
      const auto bytes = pattern(5 << 20, 3);
      Transfer put = Side::transfer(OpCode::write, memory.region->key(), 1,
                                    const_cast<std::byte*>(bytes.data()), bytes.size());
      put.flags |= transfer_flag::kRemoteData;
      put.data = 77;
      REQUIRE(pair.a.run(pair.peer, {put}).error == Errc::ok);
      Completion arrived;
      REQUIRE(pair.b.context->wait([&] { return !pair.b.completions->empty(); }, Deadline::in_seconds(30)));
      REQUIRE(pair.b.completions->read({&arrived, 1}) == 1);
      CHECK(arrived.data == 77);
      CHECK(arrived.length == bytes.size());
      CHECK(arrived.source == source);
      CHECK(arrived.flags ==
            (completion_flag::kRma | completion_flag::kRemoteWrite | completion_flag::kRemoteData));
      CHECK(std::equal(bytes.begin(), bytes.end(), memory.data() + 1));
      CHECK(counter->value() == 1);

      put.length = 0;
      put.data = 78;
      REQUIRE(pair.a.run(pair.peer, {put}).error == Errc::ok);
      REQUIRE(pair.b.context->wait([&] { return !pair.b.completions->empty(); }, Deadline::in_seconds(30)));
      REQUIRE(pair.b.completions->read({&arrived, 1}) == 1);
      CHECK(arrived.data == 78);
      CHECK(arrived.length == 0);
      CHECK(counter->value() == 2);

      put.remote = 9 << 20;
      CHECK(pair.a.run(pair.peer, {put}).error == Errc::bounds);
      std::uint64_t former, word;
      REQUIRE(pair.a.fetch_add(pair.peer, memory.region->key(), 0, 1, former) == Errc::ok);
      CHECK(pair.a.get(pair.peer, memory.region->key(), 0, &word, 8) == Errc::ok);
      CHECK(counter->value() == 3);  // neither refused ones nor reads
      CHECK(pair.b.completions->empty());
    }
  }
}

TEST_CASE("whoever reads a counter finds the entries of the puts that it counts") {
  DomainOptions manual;  // the target moves only where it is told to
  manual.manual_progress = true;
  for (const std::string& way : kWays)
    for (const bool shared : {true, false}) {
      CAPTURE(way);
      CAPTURE(shared);
      Side a(way), b("auto", manual);
      const PeerId peer = a.knows(b);
      auto memory = shared ? b.alloc(64) : b.own(64);
      auto counter = b.domain->open_counter(), also = b.domain->open_counter();
      memory.region->bind(counter);
      memory.region->bind(also);
      for (std::uint64_t puts = 1; puts <= 3; ++puts) {
        Operation operation;
        operation.begin({.transfers = 1});
        Transfer put = Side::transfer(OpCode::write, memory.region->key(), 0, &puts, sizeof puts);
        put.flags |= transfer_flag::kRemoteData;
        put.data = puts;
        put.operation = &operation;
        REQUIRE(a.context->post(peer, {&put, 1}) == 1);
        // The first one needs the target, which has to open the channel.
        const bool served = puts == 1 || a.context->report(peer).how == "ring";
        for (const auto deadline = Deadline::in_seconds(30); !operation.done() && !deadline.passed();) {
          a.context->progress();
          if (served) b.context->progress();
        }
        REQUIRE(operation.done());
        CHECK(counter->read() == puts);
        Completion arrived;
        REQUIRE(b.completions->read({&arrived, 1}) == 1);
        CHECK(arrived.data == puts);
        CHECK(*reinterpret_cast<std::uint64_t*>(memory.data()) == puts);
        CHECK_FALSE(counter->noticed());
        CHECK(also->read() == puts);
        CHECK(b.completions->empty());
      }
      const std::uint64_t word = 9;
      std::thread target;  // drives the target where it has to store the bytes
      const bool served = a.context->report(peer).how == "ring";
      if (served) target = std::thread([&] { b.context->wait([&] { return counter->value() == 4; }, {}); });
      CHECK(a.put(peer, memory.region->key(), 0, &word, sizeof word) == Errc::ok);
      if (served) target.join();
      CHECK(counter->value() == 4);
      CHECK_FALSE(counter->noticed());  // to read what counts puts without data takes no lock
    }
}

TEST_CASE("who waits for a counter is woken by a put that needs nothing else of it") {
  Pair pair("auto");
  auto memory = pair.b.alloc(64);
  auto counter = pair.b.domain->open_counter();
  memory.region->bind(counter);
  for (std::uint64_t round = 1; round <= 200; ++round) {
    std::thread waiter([&] {
      counter->add_waiter();
      CHECK(pair.b.domain->wait([&] { return counter->value() >= round; }, Deadline::in_seconds(30)));
      counter->remove_waiter();
    });
    REQUIRE(pair.a.put(pair.peer, memory.region->key(), 0, &round, 8) == Errc::ok);
    waiter.join();
  }
}

TEST_CASE("both sides reach each other, and a domain reaches itself") {
  for (const std::string& way : kWays) {
    CAPTURE(way);
    Side a(way), b(way);
    auto of_a = a.own(64), of_b = b.own(64);
    const PeerId to_b = a.knows(b), to_a = b.knows(a), to_self = a.knows(a);
    std::thread other([&] {
      for (std::uint64_t i = 1; i <= 200; ++i) CHECK(b.put(to_a, of_a.region->key(), 0, &i, 8) == Errc::ok);
    });
    for (std::uint64_t i = 1; i <= 200; ++i) CHECK(a.put(to_b, of_b.region->key(), 0, &i, 8) == Errc::ok);
    other.join();
    CHECK(*reinterpret_cast<std::uint64_t*>(of_a.data()) == 200);
    CHECK(*reinterpret_cast<std::uint64_t*>(of_b.data()) == 200);
    std::uint64_t former = 0;
    CHECK(a.fetch_add(to_self, of_a.region->key(), 0, 1, former) == Errc::ok);
    CHECK(former == 200);
  }
}
