#include <doctest/doctest.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <random>
#include <string>
#include <thread>

#include "fabric/memory/local_regions.h"
#include "fabric/noncoherent/shadow_memory.h"
#include "fabric/noncoherent/sync_checker.h"
#include "providers/shm/harness.h"

using namespace fab;
using fab::test::Side;
using Bytes = std::vector<std::byte>;

namespace {

iovec piece(Bytes& bytes, std::size_t offset, std::size_t length) { return {bytes.data() + offset, length}; }
std::uint64_t address(const void* at) { return reinterpret_cast<std::uint64_t>(at); }
std::byte* view(const iovec& piece) { return static_cast<std::byte*>(piece.iov_base); }

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

TEST_CASE("contexts name open regions of one table only, and bounds do not wrap") {
  LocalRegions regions, others;
  Bytes bytes(300);
  const BufferList two = {piece(bytes, 0, 100), piece(bytes, 200, 100)};
  const std::uint32_t context = regions.insert(two), foreign = others.insert(two);
  const auto good = [&](std::uint32_t of, std::uint64_t at, std::uint64_t length) {
    const Triplet segment{of, at, length};
    return regions.first_outside({&segment, 1}) == 1;
  };
  const std::uint64_t start = address(bytes.data());
  CHECK(good(context, start, 100));
  CHECK(good(context, start + 299, 1));
  CHECK_FALSE(good(context, start - 1, 2));
  CHECK_FALSE(good(context, start + 99, 2));   // runs into the hole
  CHECK_FALSE(good(context, start + 300, 1));  // behind the end
  CHECK_FALSE(good(context, start, 300));      // across the hole
  CHECK_FALSE(good(context, ~std::uint64_t{3}, 8));
  CHECK_FALSE(good(context, start + 8, ~std::uint64_t{0}));
  CHECK_FALSE(good(foreign, start, 1));
  CHECK_FALSE(good(0, start, 1));
  CHECK(good(~0u, 0, 0));
  CHECK(regions.holding(start + 10, 90) == std::vector{context});
  CHECK(regions.holding(start + 10, 91).empty());

  const Triplet list[] = {{context, start, 1}, {~0u, 0, 0}, {0, start, 1}, {0, start, 1}};
  CHECK(regions.first_outside(list) == 2);
  regions.erase(context);
  CHECK_FALSE(good(context, start, 1));
}

TEST_CASE("each of many regions is found while it is open, in whatever order they close") {
  LocalRegions regions;
  Bytes bytes(1000);
  std::vector<BufferList> buffers(bytes.size());
  std::vector<std::pair<std::uint32_t, std::size_t>> open, closed;  // context, place
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    buffers[i].push_back(piece(bytes, i, 1));
    open.emplace_back(regions.insert(buffers[i]), i);
  }
  const auto known = [&](const std::pair<std::uint32_t, std::size_t>& region) {
    const Triplet segment{region.first, address(bytes.data() + region.second), 1};
    return regions.first_outside({&segment, 1}) == 1;
  };
  std::mt19937 random(3);
  std::ranges::shuffle(open, random);
  while (!open.empty()) {
    closed.push_back(open.back());
    regions.erase(open.back().first);
    open.pop_back();
    if (open.size() % 100 != 0) continue;
    CHECK(std::ranges::all_of(open, known));
    CHECK(std::ranges::none_of(closed, known));
  }
}

TEST_CASE("the views of shadow memory agree byte by byte on what was synchronised, and on nothing else") {
  // The model knows for each byte who changed it; the memory has to find out.
  std::mt19937 random(7);
  for (int round = 0; round < 30; ++round) {
    CAPTURE(round);
    constexpr std::size_t kGap = 13, kSize = 9000;
    Bytes cpu(2 * kSize + kGap);
    for (auto& byte : cpu) byte = std::byte(random() % 4);
    const iovec buffers[] = {piece(cpu, 0, kSize), piece(cpu, kSize + kGap, kSize)};
    ShadowMemory memory(buffers, round % 2 == 0);
    const auto device = memory.device();
    const auto at = [&](const iovec* views, std::size_t offset) -> std::byte& {
      return offset < kSize ? view(views[0])[offset] : view(views[1])[offset - kSize];
    };
    for (int i = 0; i < 2; ++i) {
      CHECK(address(device[i].iov_base) % 4096 == address(buffers[i].iov_base) % 4096);
      REQUIRE(std::memcmp(device[i].iov_base, buffers[i].iov_base, kSize) == 0);
    }
    enum class By { nobody, host, peer };
    std::vector<By> changed(2 * kSize, By::nobody);
    for (int step = 0; step < 400; ++step) {
      const std::size_t start = random() % (2 * kSize);
      const std::size_t end = std::min<std::size_t>(2 * kSize, start + 1 + random() % 200);
      if (const auto what = random() % 3; what < 2) {
        const By by = what == 0 ? By::host : By::peer;
        for (std::size_t i = start; i < end; ++i) {
          if (changed[i] != By::nobody && changed[i] != by) continue;  // both: undefined
          std::byte& byte = at(by == By::host ? buffers : device.data(), i);
          if (changed[i] == By::nobody) byte ^= std::byte(1 + random() % 255);
          changed[i] = by;
        }
        continue;
      }
      const SyncSide side = random() % 2 ? SyncSide::read : SyncSide::write;
      const auto effect = memory.synchronise(side, {start, end}, 1);
      std::uint64_t to_device = 0, to_cpu = 0;
      for (std::size_t i = start; i < end; ++i) {
        to_device += changed[i] == By::host;
        to_cpu += changed[i] == By::peer && side == SyncSide::write;
        if (side == SyncSide::write || changed[i] == By::host) changed[i] = By::nobody;
      }
      CHECK(effect.to_device == to_device);
      CHECK(effect.to_cpu == to_cpu);
      CHECK(effect.conflict.empty());
      std::size_t wrong = 0;
      for (std::size_t i = 0; i < 2 * kSize; ++i)
        wrong += (at(buffers, i) == at(device.data(), i)) != (changed[i] == By::nobody);
      REQUIRE(wrong == 0);
    }
    for (std::size_t i = 0; i < 2 * kSize; i += 97) {
      const bool dirty = changed[i] == By::host;
      CHECK(memory.stored({i, i + 1}).empty() != dirty);
    }
  }
}

TEST_CASE("SYNC-24: lines of more than a byte lose what their neighbours have not synchronised") {
  struct alignas(64) Line {
    std::byte bytes[192];
  } memory{};
  const iovec buffer{memory.bytes, sizeof memory.bytes};
  ShadowMemory shadow({&buffer, 1}, false);
  std::byte* const device = view(shadow.device()[0]);
  memory.bytes[63] = memory.bytes[65] = memory.bytes[127] = memory.bytes[128] = std::byte{1};
  device[64] = std::byte{2};

  SUBCASE("not with lines of one byte") {
    shadow.synchronise(SyncSide::write, {64, 65}, 1);
    CHECK(memory.bytes[65] == std::byte{1});
    CHECK(memory.bytes[127] == std::byte{1});
  }
  SUBCASE("of stores") {
    shadow.synchronise(SyncSide::write, {64, 65}, 64);
    CHECK(memory.bytes[65] == std::byte{0});
    CHECK(memory.bytes[127] == std::byte{0});
    CHECK(memory.bytes[63] == std::byte{1});  // in other lines
    CHECK(memory.bytes[128] == std::byte{1});
  }
  SUBCASE("of puts") {
    shadow.synchronise(SyncSide::read, {65, 66}, 64);
    CHECK(device[64] == std::byte{0});
    CHECK(device[127] == std::byte{1});  // goes along
    CHECK(device[128] == std::byte{0});
  }
  CHECK(memory.bytes[64] == device[64]);
}

TEST_CASE("shadow memory costs nothing for pages that nobody touched, and leaves read-only pages alone") {
  const std::size_t size = 1 << 30;
  const Mapping zeros = Mapping::anonymous(size);
  const iovec buffer{zeros.data(), size};
  ShadowMemory shadow({&buffer, 1}, false);
  zeros.data()[size / 2] = std::byte{1};
  CHECK(shadow.synchronise(SyncSide::read, {size / 2 - 4096, size / 2 + 4096}, 1).to_device == 1);
  std::vector<unsigned char> resident(size / page_size());
  REQUIRE(::mincore(zeros.data(), size, resident.data()) == 0);
  REQUIRE(::mprotect(zeros.data(), size, PROT_READ) == 0);
  CHECK_FALSE(shadow.synchronise(SyncSide::write, {0, 1 << 20}, 64).any());
  const iovec device = shadow.device()[0];
  REQUIRE(::mincore(device.iov_base, size, resident.data()) == 0);
  CHECK(std::ranges::count_if(resident, [](unsigned char page) { return page & 1; }) < 1000);
}

TEST_CASE("pages that are not there are passed over, and found when they have come") {
  const std::size_t page = page_size();
  const Mapping memory = Mapping::anonymous(3 * page);
  std::byte* const middle = memory.data() + page;
  REQUIRE(::mprotect(middle, page, PROT_NONE) == 0);
  const iovec buffer{memory.data(), 3 * page};
  ShadowMemory shadow({&buffer, 1}, false);
  memory.data()[page - 1] = memory.data()[2 * page] = std::byte{1};
  view(shadow.device()[0])[page + 5] = std::byte{2};
  for (const std::uint32_t line : {1u, 64u})
    for (const SyncSide side : {SyncSide::read, SyncSide::write})
      shadow.synchronise(side, {0, 3 * page}, line);
  CHECK(view(shadow.device()[0])[page - 1] == std::byte{1});
  CHECK(view(shadow.device()[0])[2 * page] == std::byte{1});
  CHECK(shadow.stored({0, 3 * page}).empty());
  REQUIRE(::mprotect(middle, page, PROT_READ | PROT_WRITE) == 0);
  CHECK(shadow.synchronise(SyncSide::write, {0, 3 * page}, 1).to_cpu == 1);
  CHECK(middle[5] == std::byte{2});
}

TEST_CASE("SYNC-30: the checker tells what was missing, late or of no use") {
  using Kind = SyncReport::Kind;
  using Event = SyncReport::Event;
  SyncChecker checker(5);
  SyncReports found;
  const ShadowMemory::Effect none, some{.to_device = 1, .to_cpu = 0, .conflict = {}};
  const auto only = [&](Kind kind, SyncSide side, std::uint64_t start, std::uint64_t end, Event event) {
    REQUIRE(found.size() == 1);
    const SyncReport report = found.front();
    found.clear();
    return report.kind == kind && report.side == side && report.region == 5 && report.start == start &&
           report.end == end && report.event == event;
  };
  SUBCASE("nothing in a program that is right") {
    CHECK(checker.called(SyncSide::read, {0, 8}, some, found));
    checker.put(Event::put, {10, 20});
    checker.put(Event::put, {20, 30});
    CHECK(checker.called(SyncSide::write, {5, 15}, none, found));
    CHECK(checker.called(SyncSide::write, {15, 30}, none, found));
    CHECK_FALSE(checker.called(SyncSide::write, {0, 100}, none, found));
    CHECK_FALSE(checker.called(SyncSide::read, {0, 100}, none, found));
    checker.finish(found);
    CHECK(found.empty());
  }
  SUBCASE("a get that came before the call, or without one") {
    checker.met(Event::get, {4, 6});
    checker.met(Event::get, {4, 6});
    CHECK(checker.called(SyncSide::read, {0, 8}, some, found));
    CHECK(only(Kind::late, SyncSide::read, 4, 6, Event::get));
    checker.met(Event::get, {4, 6});
    CHECK(checker.called(SyncSide::read, {6, 8}, some, found));
    checker.finish(found);
    CHECK(only(Kind::missing, SyncSide::read, 4, 6, Event::get));
  }
  SUBCASE("a put over stores") {
    checker.met(Event::put, {4, 6});
    checker.put(Event::put, {0, 8});
    SUBCASE("with a call after it") {
      CHECK(checker.called(SyncSide::write, {0, 8}, {1, 1, {4, 6}}, found));
      CHECK(only(Kind::late, SyncSide::write, 4, 6, Event::put));
    }
    SUBCASE("without one") {
      checker.finish(found);
      CHECK(only(Kind::missing, SyncSide::write, 4, 6, Event::put));
    }
  }
  SUBCASE("a store over what was put") {
    checker.put(Event::put, {0, 8});
    SUBCASE("before the call") {
      CHECK(checker.called(SyncSide::write, {0, 8}, {0, 8, {3, 4}}, found));
      CHECK(only(Kind::late, SyncSide::write, 3, 4, Event::put));
    }
    SUBCASE("and no call at all") {
      CHECK(checker.called(SyncSide::read, {0, 8}, {1, 0, {3, 4}}, found));
      CHECK(only(Kind::missing, SyncSide::write, 3, 4, Event::put));
    }
  }
  SUBCASE("a put that nobody looked at, but for its middle") {
    checker.put(Event::atomic, {0, 30});
    CHECK(checker.called(SyncSide::write, {10, 20}, none, found));
    checker.finish(found);
    REQUIRE(found.size() == 2);
    CHECK(found[0].end == 10);
    CHECK(found[1].start == 20);
    found.clear();
  }
  checker.finish(found);
  CHECK(found.empty());
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
