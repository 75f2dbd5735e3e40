#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "fabric/memory/dma_buf.h"
#include "providers/shm/harness.h"
#include "providers/shm/ways.h"

using namespace fab;
using test::kWays;
using test::Pair;
using test::pattern;
using test::Side;

// Regions of one of two domains in a process: what must hold whichever way the bytes of the other one go.

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
      const auto deadline = Deadline::in_seconds(100);
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
