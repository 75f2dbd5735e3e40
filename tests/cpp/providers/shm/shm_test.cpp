#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <optional>
#include <random>
#include <thread>

#include "fabric/completion/counter.h"
#include "fabric/memory/dma_buf.h"
#include "providers/shm/harness.h"

// Two domains in one process: what must hold whichever way the bytes go. Other processes:
// shm_process_test.cpp.
namespace {

using namespace fab;
using test::Side;

// Each way, forced; "auto" is what users get.
const std::array<std::string, 4> kWays = {"auto", "mapped", "cma", "ring"};

std::vector<std::byte> pattern(std::size_t size, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<std::byte> bytes(size);
  for (auto& byte : bytes) byte = static_cast<std::byte>(random());
  return bytes;
}

struct Pair {
  explicit Pair(const std::string& copy) : a(copy), b() { peer = a.knows(b); }
  Side a, b;
  PeerId peer;
};

}  // namespace

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

TEST_CASE("the report names the way") {
  const std::array<std::array<std::string, 3>, 4> expected = {
      {{"auto", "mapped", "cross-memory attach"},
       {"mapped", "mapped", "ring"},
       {"cma", "cross-memory attach", "cross-memory attach"},
       {"ring", "ring", "ring"}}};
  for (const auto& [way, for_alloc, for_own] : expected) {
    CAPTURE(way);
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

TEST_CASE("refused requests store nothing, say why, and the path goes on") {
  for (const std::string& way : kWays) {
    CAPTURE(way);
    Pair pair(way);
    for (const bool shared : {true, false}) {
      const auto make = [&](std::uint32_t rights) {
        return shared ? pair.b.alloc(64, rights) : pair.b.own(64, rights);
      };
      auto both = make(access::kAll), readable = make(access::kRemoteRead),
           writable = make(access::kRemoteWrite);
      const auto canary = pattern(64, 7);
      for (auto* memory : {&both, &readable, &writable})
        std::copy(canary.begin(), canary.end(), memory->data());
      auto local = pattern(65, 8);  // a byte more than the regions
      const auto before = local;
      const auto put = [&](std::uint64_t key, std::uint64_t remote, std::size_t length) {
        return pair.a.put(pair.peer, key, remote, local.data(), length);
      };
      const auto get = [&](std::uint64_t key, std::uint64_t remote, std::size_t length) {
        return pair.a.get(pair.peer, key, remote, local.data(), length);
      };
      const std::uint64_t key = both.region->key();
      CHECK(put(key + 1, 0, 8) == Errc::key_rejected);
      CHECK(get(key + 1, 0, 8) == Errc::key_rejected);
      CHECK(put(readable.region->key(), 0, 8) == Errc::access);
      CHECK(get(writable.region->key(), 0, 8) == Errc::access);
      std::uint64_t former = 42;
      CHECK(pair.a.fetch_add(pair.peer, readable.region->key(), 0, 1, former) == Errc::access);
      CHECK(pair.a.fetch_add(pair.peer, key, 57, 1, former) == Errc::bounds);
      CHECK(pair.a.fetch_add(pair.peer, key, 4, 1, former) == Errc::invalid);
      CHECK(former == 42);
      CHECK(put(key, 57, 8) == Errc::bounds);
      CHECK(get(key, 57, 8) == Errc::bounds);
      CHECK(put(key, 65, 0) == Errc::bounds);
      CHECK(put(key, ~std::uint64_t{0} - 3, 8) == Errc::bounds);
      CHECK(get(key, ~std::uint64_t{0} - 7, 8) == Errc::bounds);
      CHECK(put(key, 0, 65) == Errc::bounds);
      for (auto* memory : {&both, &readable, &writable})
        CHECK(std::equal(canary.begin(), canary.end(), memory->data()));
      CHECK(local == before);

      const std::uint64_t closed = writable.region->key();
      CHECK(writable.region->close({}));
      CHECK(put(closed, 0, 8) == Errc::key_rejected);
      CHECK(std::equal(canary.begin(), canary.end(), writable.data()));
      CHECK(put(key, 0, 64) == Errc::ok);
      CHECK(std::equal(local.begin(), local.end() - 1, both.data()));
    }
    CHECK(pair.a.context->counts(pair.peer).posted == pair.a.context->counts(pair.peer).settled);
  }
}

TEST_CASE("a key that is used again means the new region") {
  for (const std::string& way : kWays) {
    CAPTURE(way);
    Pair pair(way);
    std::uint64_t word = 1;
    for (int round = 0; round < 100; ++round) {
      auto memory = round % 2 ? pair.b.alloc(64, access::kAll, 5) : pair.b.own(64, access::kAll, 5);
      ++word;
      REQUIRE(pair.a.put(pair.peer, 5, 8, &word, 8) == Errc::ok);
      CHECK(std::memcmp(memory.data() + 8, &word, 8) == 0);
      CHECK(memory.region->close({}));
      CHECK(pair.a.put(pair.peer, 5, 8, &word, 8) == Errc::key_rejected);
    }
  }
}

TEST_CASE("many regions at once") {
  for (const std::string& way : kWays) {
    CAPTURE(way);
    Pair pair(way);
    std::vector<Side::Memory> memories;
    for (int i = 0; i < 300; ++i) memories.push_back(i % 3 ? pair.b.own(16) : pair.b.alloc(16));
    for (std::uint64_t round = 1; round < 3; ++round) {
      for (std::uint64_t i = 0; i < memories.size(); ++i) {
        const std::uint64_t word = round << 32 | i;
        REQUIRE(pair.a.put(pair.peer, memories[i].region->key(), 8, &word, 8) == Errc::ok);
      }
      for (std::uint64_t i = 0; i < memories.size(); ++i) {
        const std::uint64_t word = round << 32 | i;
        CHECK(std::memcmp(memories[i].data() + 8, &word, 8) == 0);
      }
    }
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

TEST_CASE("memory of the target that is not there is an error of one transfer, not a crash") {
  Pair pair("cma");
  const std::size_t page = page_size();
  const OwnFd file = make_memory_file("pages", 3 * page);
  Mapping pages = Mapping::shared(file.get(), 0, 3 * page);
  auto region = pair.b.domain->register_memory(
      {.buffers = {{pages.data(), 3 * page}}, .access = access::kAll, .keep_alive = {}});
  ::munmap(pages.data() + page, page);
  std::vector<std::uint64_t> words = {1, 2, 3, 4, 5};
  std::vector<Transfer> transfers;
  const std::array<std::uint64_t, 5> where = {0, page, page + 64, 2 * page, 8};
  for (std::size_t i = 0; i < 5; ++i)
    transfers.push_back(Side::transfer(OpCode::write, region->key(), where[i], &words[i], 8));
  CHECK(pair.a.run(pair.peer, transfers).error == Errc::bounds);
  CHECK(pair.a.context->counts(pair.peer).errors == 2);
  CHECK(reinterpret_cast<std::uint64_t*>(pages.data())[0] == 1);
  CHECK(reinterpret_cast<std::uint64_t*>(pages.data())[1] == 5);
  CHECK(reinterpret_cast<std::uint64_t*>(pages.data() + 2 * page)[0] == 4);

  std::vector<std::byte> large(3 * page);
  CHECK(pair.a.put(pair.peer, region->key(), 0, large.data(), large.size()) == Errc::bounds);
  CHECK(pair.a.put(pair.peer, region->key(), 0, large.data(), page) == Errc::ok);
  CHECK(region->close({}));
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
      operations[i].begin(1, 0, 0, nullptr, nullptr, [](Operation& operation) noexcept {
        order.push_back(static_cast<Numbered&>(operation).number);
      });
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

TEST_CASE("a region closes under load: no byte arrives after close() returned") {
  for (const std::string& way : kWays) {
    CAPTURE(way);
    Pair pair(way);
    std::atomic<bool> stop{false};
    std::atomic<std::uint64_t> puts{0}, refused{0}, other{0};
    std::thread initiator([&] {
      std::vector<std::byte> bytes(8192, std::byte{0xFF});
      while (!stop) {
        const Errc outcome = pair.a.put(pair.peer, 5, 0, bytes.data(), bytes.size());
        ++(outcome == Errc::ok ? puts : outcome == Errc::key_rejected ? refused : other);
      }
    });
    std::uint64_t late = 0;
    const int rounds = 100;
    for (int round = 0; round < rounds; ++round) {
      auto memory = round % 2 ? pair.b.alloc(8192, access::kAll, 5) : pair.b.own(8192, access::kAll, 5);
      const std::uint64_t before = puts;
      const auto deadline = Deadline::in_seconds(10);
      while (puts < before + 2 && !deadline.passed()) std::this_thread::yield();
      CHECK(memory.region->close({}));
      std::fill_n(memory.data(), 8192, std::byte{0});
      const std::uint64_t tried = refused;
      while (refused < tried + 2 && !deadline.passed()) std::this_thread::yield();
      late += static_cast<std::uint64_t>(std::count(memory.data(), memory.data() + 8192, std::byte{0xFF}));
      CHECK_FALSE(deadline.passed());
    }
    stop = true;
    initiator.join();
    CHECK(late == 0);
    CHECK(other == 0);
    CHECK(puts > 0);
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

TEST_CASE(
    "memory that only devices reach is refused, here and at the peer; what is mapped goes through the ring") {
  const OwnFd file = make_memory_file("dma-buf", 1 << 20);
  const OwnFd for_devices(
      ::open(("/proc/self/fd/" + std::to_string(file.get())).c_str(), O_WRONLY | O_CLOEXEC));
  const DmaBuf mapped(file.get(), 0, std::nullopt), hidden(for_devices.get(), 0, std::nullopt);
  const auto buffer_of = [](const DmaBuf& buffer) {
    return iovec{buffer.bytes().data(), buffer.bytes().size()};
  };
  for (const std::string& way : kWays) {
    CAPTURE(way);
    Pair pair(way);
    for (auto& memory : {pair.b.alloc(1 << 20), pair.b.own(1 << 20)}) {
      const std::uint64_t key = memory.region->key();
      for (const std::size_t length : {8, 5000, 1 << 20}) {
        CAPTURE(length);
        CHECK(pair.a.put(pair.peer, key, 0, hidden.bytes().data(), length) == Errc::bounds);
        CHECK(pair.a.get(pair.peer, key, 0, hidden.bytes().data(), length) == Errc::bounds);
        CHECK(pair.a.put(pair.peer, key, 0, mapped.bytes().data(), length) == Errc::ok);
      }
    }
    CHECK_THROWS_AS(pair.b.domain->register_memory(
                        {.buffers = {buffer_of(hidden)}, .access = access::kAll, .keep_alive = {}}),
                    Error);
    const auto region = pair.b.domain->register_memory(
        {.buffers = {buffer_of(mapped)}, .access = access::kAll, .keep_alive = {}});
    CHECK((region->remote().access & access::kHidden) == 0);
    const auto bytes = pattern(1 << 20, 3);
    REQUIRE(pair.a.put(pair.peer, region->key(), 0, bytes.data(), bytes.size()) == Errc::ok);
    CHECK(std::ranges::equal(bytes, mapped.bytes()));
    CHECK(pair.a.context->report(pair.peer).how == "ring");
  }
}
