#include <doctest/doctest.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "fabric/memory/local_regions.h"
#include "fabric/memory/pieces.h"
#include "providers/shm/harness.h"

using namespace fab;
using test::address;
using test::Bytes;
using test::Side;

namespace {

DomainOptions non_coherent(CacheModel model = {}) {
  DomainOptions options;
  options.non_coherent = model;
  return options;
}

// Threads that take turns on one processor see each other's stores in any case.
class OnProcessors {
 public:
  OnProcessors() {
    ::sched_getaffinity(0, sizeof former_, &former_);
    for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu)
      if (CPU_ISSET(cpu, &former_)) there_.push_back(cpu);
  }
  ~OnProcessors() { ::sched_setaffinity(0, sizeof former_, &former_); }
  OnProcessors(const OnProcessors&) = delete;
  OnProcessors& operator=(const OnProcessors&) = delete;
  // Binds the calling thread to one of those that the process may use.
  void take(std::size_t number) const {
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(there_[number % there_.size()], &one);
    ::sched_setaffinity(0, sizeof one, &one);
  }

 private:
  cpu_set_t former_{};
  std::vector<int> there_;
};

}  // namespace

TEST_CASE("SYNC-2: triplets go through the 16-byte form and back, and what does not fit is refused") {
  const Triplet triplet{0x01020304, 0x1122334455667788, 0xfffffff0};
  CHECK(Triplet::unpack(triplet.pack()) == triplet);
  // Address, length, context.
  CHECK(std::memcmp(triplet.pack().data(), &triplet.virtual_address, 8) == 0);
  CHECK(std::memcmp(triplet.pack().data() + 12, &triplet.lmr_context, 4) == 0);
  for (const std::uint64_t length : {std::uint64_t{1} << 32, ~std::uint64_t{0}})
    CHECK_THROWS_AS((Triplet{1, 2, length}.pack()), Error);
}

TEST_CASE("SYNC-5, SYNC-8 ... SYNC-14: arguments are checked first, in every kind of domain") {
  const bool emulated = [] {
    bool second = false;
    SUBCASE("coherent") {}
    SUBCASE("emulated") { second = true; }
    return second;
  }();
  Side side("auto", emulated ? non_coherent() : DomainOptions{});
  Side other("auto", emulated ? non_coherent() : DomainOptions{});
  auto memory = side.own(64);
  CHECK((side.domain->emulation() != nullptr) == emulated);
  const std::uint64_t start = address(memory.data());
  const auto refused = [&](const std::vector<Triplet>& segments) -> std::size_t {
    std::size_t indices[2];
    for (const bool write : {false, true}) try {
        write ? side.domain->sync_rdma_write(segments) : side.domain->sync_rdma_read(segments);
        return ~std::size_t{0};
      } catch (const SegmentError& error) {
        CHECK(error.code() == Errc::invalid);
        indices[write] = error.index();
      }
    CHECK(indices[0] == indices[1]);
    return indices[0];
  };
  const std::uint32_t context = memory.region->id();
  side.domain->sync_rdma_read({});
  side.domain->sync_rdma_write({});
  const Triplet* const null = nullptr;
  CHECK_THROWS_AS(side.domain->sync_rdma_read({null, 1}), Error);
  CHECK(refused({{context, start, 64}, {context, start + 1, 64}}) == 1);
  CHECK(refused({{context, start - 1, 1}}) == 0);
  CHECK(refused({{context, ~std::uint64_t{3}, 8}}) == 0);
  const auto there = other.domain->register_memory(
      {.buffers = {{memory.data(), 64}}, .access = access::kAll, .keep_alive = {}});
  CHECK(refused({{there->id(), start, 64}}) == 0);

  std::vector<Triplet> many(1000, Triplet{context, start, 64});
  many.push_back({context, start + 64, 1});
  memory.data()[3] = std::byte{1};
  CHECK(refused(many) == 1000);
  const PeerId self = side.knows(side);
  std::byte seen[64];
  CHECK(side.get(self, memory.region->key(), 0, seen, 64) == Errc::ok);
  CHECK(seen[3] == (emulated ? std::byte{0} : std::byte{1}));
  side.domain->sync_rdma_read({many.data(), 1000});
  CHECK(side.get(self, memory.region->key(), 0, seen, 64) == Errc::ok);
  CHECK(seen[3] == std::byte{1});

  memory.region->close({});
  CHECK(refused({{context, start, 64}}) == 0);
  side.domain->close(true);
  try {
    side.domain->sync_rdma_write(many);
    FAIL("the domain is closed");
  } catch (const Error& error) {
    CHECK(error.code() == Errc::closed);
  }
}

TEST_CASE("SYNC-23: flushes and invalidations are counted by where the cache is") {
  const auto counts = [](CacheModel::Place place) {
    Side side("auto", non_coherent({.place = place}));
    auto memory = side.own(64);
    const Triplet segment{memory.region->id(), address(memory.data()), 64};
    side.domain->sync_rdma_write({&segment, 1});
    const SyncStats write = side.domain->emulation()->stats();
    side.domain->sync_rdma_read({&segment, 1});
    const SyncStats both = side.domain->emulation()->stats();
    CHECK(both.flushes == 1);
    CHECK(both.invalidations == 1);
    return std::pair(write.flushes, write.invalidations);
  };
  CHECK(counts(CacheModel::Place::device) == std::pair<std::uint64_t, std::uint64_t>(1, 0));
  CHECK(counts(CacheModel::Place::cpu) == std::pair<std::uint64_t, std::uint64_t>(0, 1));
  for (const std::uint32_t line : {0u, 3u, 8192u})
    CHECK_THROWS_AS(Side("auto", non_coherent({.line = line})), Error);
}

#ifndef __SANITIZE_THREAD__
TEST_CASE("SYNC-29: on a coherent domain the calls make no system call") {
  const pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    DomainOptions options;
    options.manual_progress = true;  // no other thread that would outlive this one
    Side side("auto", options);
    auto memory = side.own(640);
    std::vector<Triplet> segments;
    for (int i = 0; i < 10; ++i)
      segments.push_back({memory.region->id(), address(memory.data() + 64 * i), 64});
    if (::prctl(PR_SET_SECCOMP, SECCOMP_MODE_STRICT) != 0) ::_exit(2);
    // From here on the kernel kills whoever asks it for more than read, write or exit.
    for (int i = 0; i < 100; ++i) {
      side.domain->sync_rdma_read(segments);
      side.domain->sync_rdma_write(segments);
    }
    ::syscall(SYS_exit, 0);
  }
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  if (WIFEXITED(status) && WEXITSTATUS(status) == 2) {
    MESSAGE("not tested: this kernel has no strict seccomp mode");
    return;
  }
  REQUIRE(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == 0);
}
#endif

TEST_CASE("SYNC-34: calls on some ranges, transfers on others, and a region that closes meanwhile") {
  constexpr std::size_t kThreads = 4, kRange = 4096;
  Side side("auto", non_coherent());
  const PeerId self = side.knows(side);
  auto memory = side.own(2 * kThreads * kRange);
  std::vector<std::thread> threads;
  std::atomic<int> wrong{0};
  std::atomic<bool> done{false};
  for (std::size_t t = 0; t < kThreads; ++t)
    threads.emplace_back([&, t] {
      std::byte* const own = memory.data() + t * kRange;
      const Triplet segment{memory.region->id(), address(own), kRange};
      for (int i = 1; i <= 300; ++i) {
        std::memset(own, i & 0xff, kRange);
        side.domain->sync_rdma_read({&segment, 1});
        side.domain->sync_rdma_write({&segment, 1});
        wrong += own[0] != std::byte(i & 0xff) || own[kRange - 1] != own[0];
      }
    });
  threads.emplace_back([&] {
    while (!done) {
      auto short_lived = side.own(100);
      const Triplet segment{short_lived.region->id(), address(short_lived.data()), 100};
      std::thread closes([&] { short_lived.region->close({}); });
      try {
        side.domain->sync_rdma_write({&segment, 1});
      } catch (const SegmentError&) {
        CHECK(short_lived.region->closed());
      }
      closes.join();
    }
  });
  Bytes sent(kThreads * kRange, std::byte{7});
  for (int i = 0; i < 100; ++i)
    CHECK(side.put(self, memory.region->key(), kThreads * kRange, sent.data(), sent.size()) == Errc::ok);
  for (std::size_t t = 0; t < kThreads; ++t) threads[t].join();
  done = true;
  threads.back().join();
  CHECK(wrong == 0);
  Bytes seen(2 * kThreads * kRange);
  CHECK(side.get(self, memory.region->key(), 0, seen.data(), seen.size()) == Errc::ok);
  for (std::size_t i = 0; i < seen.size(); ++i)
    if (seen[i] != (i < kThreads * kRange ? std::byte(300 & 0xff) : std::byte{7})) FAIL("byte " << i);
}

// SYNC-26. The first is what programs rely on: data before a flag. On a processor that keeps stores in order
// only the second needs the fence: without it both threads can miss each other's store. There the calls are
// of no segment, because looking one up takes a lock, which such a processor cannot do without a fence
// either.
TEST_CASE("SYNC-26: on a coherent domain both calls are fences") {
  Side side;
  const bool crossing = [] {
    bool second = false;
    SUBCASE("data, then a flag") {}
    SUBCASE("stores that cross") { second = true; }
    return second;
  }();
#ifdef __SANITIZE_THREAD__
  constexpr std::uint32_t kUsual = 2'000;
#else
  constexpr std::uint32_t kUsual = 50'000;
#endif
  const char* const asked = std::getenv("FAB_ROUNDS");  // see tests/litmus.py
  const std::uint32_t rounds = asked ? static_cast<std::uint32_t>(std::stoul(asked)) : kUsual;
  auto memory = side.own(64);
  const Triplet segment{memory.region->id(), address(memory.data()), 64};
  const std::span<const Triplet> segments(&segment, crossing ? 0 : 1);
  // Every round on cells of its own, so that the threads meet only where the test wants it.
  struct alignas(64) Cell {
    std::atomic<std::uint32_t> value{0};
  };
  std::vector<Cell> first(rounds), second(rounds);
  std::vector<std::uint32_t> seen_by_first(rounds), seen_by_second(rounds);
  constexpr auto kRelaxed = std::memory_order_relaxed;
  Cell here, there;  // the rounds that each has come to
  const auto meet = [](Cell& mine, const Cell& other, std::uint32_t round, std::uint32_t skew) {
    mine.value.store(round);
    for (int spins = 0; other.value.load() < round; ++spins)
      if (spins > 2000) std::this_thread::yield();
    // Who comes second starts at once: differing delays bring the stores together now and then.
    for (std::uint32_t i = 0; i < round * skew % 64; ++i) std::atomic_signal_fence(std::memory_order_seq_cst);
  };
  const OnProcessors processors;
  std::thread peer([&] {
    processors.take(1);
    for (std::uint32_t i = 0; i < rounds; ++i) {
      if (crossing) {
        meet(there, here, i + 1, 7);
        second[i].value.store(1, kRelaxed);
        side.domain->sync_rdma_write(segments);
        seen_by_second[i] = first[i].value.load(kRelaxed);
      } else {
        for (int spins = 0; second[i].value.load(kRelaxed) == 0; ++spins)
          if (spins > 2000) std::this_thread::yield();
        side.domain->sync_rdma_write(segments);
        seen_by_second[i] = first[i].value.load(kRelaxed);
      }
    }
  });
  processors.take(0);
  for (std::uint32_t i = 0; i < rounds; ++i) {
    if (crossing) meet(here, there, i + 1, 13);
    first[i].value.store(i + 1, kRelaxed);
    side.domain->sync_rdma_read(segments);
    if (crossing)
      seen_by_first[i] = second[i].value.load(kRelaxed);
    else
      second[i].value.store(1, kRelaxed);
  }
  peer.join();
  std::size_t wrong = 0;
  for (std::uint32_t i = 0; i < rounds; ++i)
    wrong += crossing ? seen_by_first[i] == 0 && seen_by_second[i] == 0 : seen_by_second[i] != i + 1;
  CHECK(wrong == 0);
}
