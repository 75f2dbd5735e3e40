#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "providers/shm/harness.h"
#include "providers/shm/ways.h"

using namespace fab;
using test::kWays;
using test::Pair;
using test::pattern;
using test::Side;

// Transfers between two domains in one process: each holds whichever way the bytes go. process_test.cpp has
// other processes.

TEST_CASE("put and get of all sizes, to memory of each kind, leave everything else alone") {
  for (const std::string& way : kWays) {
    CAPTURE(way);
    Pair pair(way);
    constexpr std::size_t kSize = (3 << 20) + 4096;
    std::array memories = {pair.b.alloc(kSize), pair.b.own(kSize)};
    for (auto& memory : memories) {
      auto expected = std::vector<std::byte>(memory.data(), memory.data() + kSize);
      unsigned seed = 1;
      for (const std::size_t size :
           {0, 1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 4095, 4096, 65537, 3 << 20})
        for (const std::size_t offset : {0, 1, 8, 4093}) {
          CAPTURE(size);
          CAPTURE(offset);
          const auto bytes = pattern(size, ++seed);
          REQUIRE(pair.a.put(pair.peer, memory.region->key(), offset, bytes.data(), size) == Errc::ok);
          std::copy(bytes.begin(), bytes.end(), expected.begin() + static_cast<std::ptrdiff_t>(offset));
          std::vector<std::byte> got(size + 2, std::byte{0x5A});
          REQUIRE(pair.a.get(pair.peer, memory.region->key(), offset, got.data() + 1, size) == Errc::ok);
          CHECK(std::equal(bytes.begin(), bytes.end(), got.begin() + 1));
          CHECK(got.front() == std::byte{0x5A});
          CHECK(got.back() == std::byte{0x5A});
        }
      CHECK(std::equal(expected.begin(), expected.end(), memory.data()));
    }
    const PathCounts counts = pair.a.context->counts(pair.peer);
    CHECK(counts.posted == counts.settled);
    CHECK(counts.errors == 0);
    CHECK(counts.bytes_in == counts.bytes_out);
  }
}

TEST_CASE("local memory in pieces, and regions of several buffers") {
  for (const std::string& way : kWays) {
    CAPTURE(way);
    Pair pair(way);
    std::array<std::vector<std::byte>, 3> parts = {pattern(100, 1), pattern(8, 2), pattern(5000, 3)};
    auto vector = pair.b.domain->register_memory(
        {.buffers = {{parts[0].data(), 100}, {parts[1].data(), 8}, {parts[2].data(), 5000}},
         .access = access::kAll,
         .keep_alive = {}});
    auto single = pair.b.alloc(5108);
    for (const std::uint64_t key : {vector->key(), single.region->key()}) {
      auto bytes = pattern(3000, 4);
      std::array<iovec, 4> pieces = {{{bytes.data(), 1},
                                      {bytes.data() + 1, 1500},
                                      {bytes.data() + 1501, 0},
                                      {bytes.data() + 1501, 1499}}};
      Transfer put = Side::transfer(OpCode::write, key, 90, nullptr, 3000);
      put.local_pieces = pieces.data();
      put.piece_count = 4;
      REQUIRE(pair.a.run(pair.peer, {put}).error == Errc::ok);
      std::vector<std::byte> got(3000);
      REQUIRE(pair.a.get(pair.peer, key, 90, got.data(), got.size()) == Errc::ok);
      CHECK(got == bytes);
      std::vector<std::byte> scattered(3000);
      for (auto& piece : pieces)
        piece.iov_base = scattered.data() + (static_cast<std::byte*>(piece.iov_base) - bytes.data());
      put.op = OpCode::read;
      REQUIRE(pair.a.run(pair.peer, {put}).error == Errc::ok);
      CHECK(scattered == bytes);
      put.length = 2999;
      CHECK(pair.a.run(pair.peer, {put}).error == Errc::invalid);  // the pieces hold more
    }
    CHECK(std::equal(parts[1].begin(), parts[1].end(), single.data() + 100));
    std::uint64_t former;
    CHECK(pair.a.fetch_add(pair.peer, vector->key(), 96, 1, former) ==
          Errc::invalid);  // straddles two buffers
    CHECK(vector->close({}));
  }
}

TEST_CASE("as many pieces of local memory as a transfer may have") {
  for (const std::string& way : kWays) {
    CAPTURE(way);
    Pair pair(way);
    auto memory = pair.b.own(8 * kMaxPieces);
    auto bytes = pattern(8 * kMaxPieces, 5);
    std::vector<iovec> pieces;
    for (std::size_t i = 0; i < kMaxPieces; ++i) pieces.push_back({bytes.data() + 8 * i, 8});
    Transfer put = Side::transfer(OpCode::write, memory.region->key(), 0, nullptr, bytes.size());
    put.local_pieces = pieces.data();
    put.piece_count = static_cast<std::uint16_t>(pieces.size());
    REQUIRE(pair.a.run(pair.peer, {put}).error == Errc::ok);
    CHECK(std::equal(bytes.begin(), bytes.end(), memory.data()));
    std::ranges::fill(bytes, std::byte{0});
    put.op = OpCode::read;
    REQUIRE(pair.a.run(pair.peer, {put}).error == Errc::ok);
    CHECK(std::equal(bytes.begin(), bytes.end(), memory.data()));
    CHECK(bytes == pattern(8 * kMaxPieces, 5));
    if (way == "auto" || way == "cma") CHECK(pair.a.context->report(pair.peer).how != "ring");
  }
}

TEST_CASE("atomics: fetched values and results are the same each way") {
  for (const std::string& way : kWays) {
    CAPTURE(way);
    Pair pair(way);
    std::array memories = {pair.b.alloc(64), pair.b.own(64)};
    for (auto& memory : memories) {
      auto* word = reinterpret_cast<std::uint64_t*>(memory.data());
      const std::uint64_t key = memory.region->key();
      word[1] = 40;
      std::uint64_t former = 0;
      REQUIRE(pair.a.fetch_add(pair.peer, key, 8, 2, former) == Errc::ok);
      CHECK(former == 40);
      CHECK(word[1] == 42);

      std::uint64_t operand = 7, compare = 42, result = 0;
      Transfer swap = Side::transfer(OpCode::compare_atomic, key, 8, &operand, 8);
      swap.atomic = AtomicOp::cswap;
      swap.type = DataType::u64;
      swap.compare = reinterpret_cast<std::byte*>(&compare);
      swap.result = reinterpret_cast<std::byte*>(&result);
      REQUIRE(pair.a.run(pair.peer, {swap}).error == Errc::ok);
      CHECK(result == 42);
      CHECK(word[1] == 7);
      REQUIRE(pair.a.run(pair.peer, {swap}).error == Errc::ok);  // 42 is no longer there
      CHECK(result == 7);
      CHECK(word[1] == 7);

      std::array<float, 3> floats = {1.5f, 2.5f, -1.0f};
      Transfer sum = Side::transfer(OpCode::atomic, key, 16, floats.data(), sizeof floats);
      sum.atomic = AtomicOp::sum;
      sum.type = DataType::f32;
      REQUIRE(pair.a.run(pair.peer, {sum, sum}).error == Errc::ok);
      CHECK(reinterpret_cast<float*>(memory.data())[5] == 5.0f);
      CHECK(reinterpret_cast<float*>(memory.data())[7] == 0.0f);

      sum.atomic = AtomicOp::bxor;
      CHECK(pair.a.run(pair.peer, {sum}).error == Errc::not_supported);
      sum.atomic = AtomicOp::atomic_read;
      CHECK(pair.a.run(pair.peer, {sum}).error == Errc::invalid);
      sum.atomic = AtomicOp::sum;
      sum.length = 6;
      CHECK(pair.a.run(pair.peer, {sum}).error == Errc::invalid);
    }
  }
}

TEST_CASE("sums from several threads and all ways at once are exact") {
  Side target;
  std::array memories = {target.alloc(64), target.own(64)};
  constexpr std::uint64_t kEach = 2000;
  std::vector<std::thread> threads;
  std::atomic<int> failures{0};
  for (const std::string& way : kWays)
    threads.emplace_back([&] {
      Side side(way);
      const PeerId peer = side.knows(target);
      std::uint64_t former;
      for (std::uint64_t i = 0; i < kEach; ++i)
        for (auto& memory : memories)
          failures += side.fetch_add(peer, memory.region->key(), 8, 1, former) != Errc::ok;
    });
  for (auto& thread : threads) thread.join();
  CHECK(failures == 0);
  for (auto& memory : memories)
    CHECK(reinterpret_cast<std::uint64_t*>(memory.data())[1] == kEach * kWays.size());
}

TEST_CASE("a batch settles as one, in order, with the first error") {
  for (const std::string& way : kWays) {
    CAPTURE(way);
    Pair pair(way);
    auto memory = pair.b.own(4096 * 8);
    std::vector<std::uint64_t> words(4096);
    std::vector<Transfer> transfers;
    for (std::size_t i = 0; i < words.size(); ++i) {
      words[i] = i;
      transfers.push_back(Side::transfer(OpCode::write, memory.region->key(), 8 * i, &words[i], 8));
    }
    Completion done = pair.a.run(pair.peer, transfers);
    CHECK(done.error == Errc::ok);
    CHECK(done.length == 4096 * 8);
    CHECK(std::memcmp(memory.data(), words.data(), 4096 * 8) == 0);

    std::fill_n(memory.data(), 4096 * 8, std::byte{0});
    transfers[1000].remote = 4096 * 8;  // refused; the others are not
    transfers[2000].key += 1;
    done = pair.a.run(pair.peer, transfers);
    CHECK(done.error == Errc::bounds);
    std::uint64_t wrong = 0;
    for (std::size_t i = 0; i < words.size(); ++i) {
      const std::uint64_t expected = i == 1000 || i == 2000 ? 0 : i;
      wrong += reinterpret_cast<std::uint64_t*>(memory.data())[i] != expected;
    }
    CHECK(wrong == 0);
  }
}

TEST_CASE("large puts are moved by progress, and what comes later waits its turn") {
  for (const std::string& way : kWays) {
    CAPTURE(way);
    Pair pair(way);
    constexpr std::size_t kSize = 5 << 20;
    for (const bool shared : {true, false}) {
      auto memory = shared ? pair.b.alloc(kSize + 8) : pair.b.own(kSize + 8);
      const auto bytes = pattern(kSize, 5);
      const std::uint64_t word = 99;
      Transfer large =
          Side::transfer(OpCode::write, memory.region->key(), 0, const_cast<std::byte*>(bytes.data()), kSize);
      large.flags = 0;
      Transfer small = Side::transfer(OpCode::write, memory.region->key(), kSize - 8,
                                      const_cast<std::uint64_t*>(&word), 8);
      small.flags = 0;
      REQUIRE(pair.a.run(pair.peer, {large, small}).error == Errc::ok);
      CHECK(std::equal(bytes.begin(), bytes.end() - 8, memory.data()));
      CHECK(std::memcmp(memory.data() + kSize - 8, &word, 8) == 0);
      std::vector<std::byte> got(kSize);
      large.op = OpCode::read;
      large.local = got.data();
      REQUIRE(pair.a.run(pair.peer, {large}).error == Errc::ok);
      CHECK(std::equal(bytes.begin(), bytes.end() - 8, got.begin()));
    }
  }
}

TEST_CASE("operations of all kinds, posted without waiting, end exactly once and in order") {
  for (const std::string& way : kWays) {
    CAPTURE(way);
    Pair pair(way);
    auto shared = pair.b.alloc(1 << 20), own = pair.b.own(1 << 20);
    std::mt19937 random(11);
    constexpr std::size_t kCount = 2000;
    static std::vector<std::size_t> order;
    order.clear();
    struct Numbered : Operation {
      std::size_t number;
    };
    std::vector<Numbered> operations(kCount);
    std::vector<std::byte> local(1 << 20);
    std::vector<std::uint64_t> results(kCount);
    std::size_t done = 0;
    for (std::size_t i = 0; i < kCount; ++i) {
      operations[i].number = i;
      operations[i].begin({.hook = [](Operation& operation) noexcept {
        order.push_back(static_cast<Numbered&>(operation).number);
      }});
      const std::uint64_t key = random() % 2 ? shared.region->key() : own.region->key();
      const std::size_t length = random() % 50 ? random() % 64 : random() % (1 << 19);
      Transfer transfer = Side::transfer(random() % 2 ? OpCode::write : OpCode::read, key, random() % 1024,
                                         local.data(), length);
      transfer.flags = random() % 8 ? 0 : transfer_flag::kRemoteData;
      if (random() % 4 == 0) {
        transfer = Side::transfer(OpCode::fetch_atomic, key, 8 * (random() % 64), local.data(), 8);
        transfer.type = DataType::u64;
        transfer.atomic = AtomicOp::sum;
        transfer.result = reinterpret_cast<std::byte*>(&results[i]);
        transfer.flags = 0;
      }
      if (transfer.op == OpCode::read) transfer.flags = 0;
      transfer.operation = &operations[i];
      while (pair.a.context->post(pair.peer, {&transfer, 1}) == 0) pair.a.context->progress();
    }
    const auto all = [&] {
      while (done < kCount && operations[done].done()) ++done;
      return done == kCount;
    };
    REQUIRE(pair.a.context->wait(all, Deadline::in_seconds(60)));
    std::size_t wrong = 0;
    for (std::size_t i = 0; i < kCount; ++i)
      wrong += order[i] != i || operations[i].completion().error != Errc::ok;
    CHECK(order.size() == kCount);
    CHECK(wrong == 0);
  }
}
