#include "fabric/registration/registration_cache.h"

#include <doctest/doctest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <map>
#include <random>
#include <thread>

#include "fabric/registration/counted_ranges.h"
#include "fabric/types/error.h"

namespace fab {
namespace {

constexpr MemoryUse kReading{.rights = 16}, kWriting{.rights = 32};

// A device that knows what is enrolled with it.
struct Device {
  std::mutex mutex;
  std::map<std::uintptr_t, AddressRange> enrolled;
  std::uintptr_t last = 0;
  std::uint64_t longest = ~std::uint64_t{0};

  Enroller enroller() {
    return {.enroll = [this](AddressRange range, const MemoryUse&) -> void* {
              const std::lock_guard lock(mutex);
              if (range.length > longest) throw Error(Errc::no_memory, "too long");
              enrolled[++last] = range;
              return reinterpret_cast<void*>(last);
            },
            .withdraw =
                [this](void* handle) {
                  const std::lock_guard lock(mutex);
                  CHECK(enrolled.erase(reinterpret_cast<std::uintptr_t>(handle)) == 1);
                }};
  }
  AddressRange of(const RegistrationCache::Lease& lease) {
    const std::lock_guard lock(mutex);
    return enrolled.at(reinterpret_cast<std::uintptr_t>(lease.handle()));
  }
};

// Memory goes when the test says so.
class TestMonitor final : public MemoryMonitor {
 public:
  bool watch(AddressRange range) noexcept override {
    if (range.start == unwatchable) return false;
    const std::lock_guard lock(mutex_);
    watched_.add(range);
    ++watches;
    return true;
  }
  void unwatch(AddressRange range) noexcept override {
    const std::lock_guard lock(mutex_);
    watched_.remove(range, [](AddressRange) {});
    --watches;
  }
  const VanishLog& log() const noexcept override { return log_; }
  void vanish(AddressRange range) noexcept {
    log_.note();
    log_.publish(range);
  }
  std::uint64_t unwatchable = 1;
  std::atomic<int> watches{0};

 private:
  std::mutex mutex_;
  CountedRanges watched_;
  VanishLog log_;
};

struct Setup {
  explicit Setup(CacheLimits limits = {}) : cache(limits, device.enroller(), &monitor) {}
  RegistrationCache::Lease get(std::uint64_t start, std::uint64_t length, const MemoryUse& use = kReading) {
    return cache.acquire({.start = start, .length = length}, use);
  }
  bool hits(std::uint64_t start, std::uint64_t length, const MemoryUse& use = kReading) {
    const auto before = cache.stats().hits;
    get(start, length, use);
    return cache.stats().hits > before;
  }
  ~Setup() {
    cache.clear();
    CHECK(device.enrolled.empty());
    CHECK(monitor.watches == 0);
  }
  Device device;
  TestMonitor monitor;
  RegistrationCache cache;
};

TEST_CASE("a range inside an entry is a hit, one that sticks out is none") {
  Setup setup;
  for (const std::uint64_t start : {0x1000ull, 0xffffull, 0x7fff'ffff'0001ull})
    for (const std::uint64_t length : {1ull, 2ull, 63ull, 64ull, 65ull, 4096ull, 5000ull, 1ull << 30}) {
      if (!setup.hits(start, length)) CHECK(setup.hits(start, length));
      CHECK(setup.hits(start, 1));
      CHECK(setup.hits(start + length - 1, 1));
      CHECK(setup.hits(start + length / 2, length - length / 2));
    }
  CHECK_FALSE(setup.hits(0xfff, 1));
  CHECK_FALSE(setup.hits(0xfff, 0x2000));
}

TEST_CASE("a hit needs equal rights, interface and auth key") {
  Setup setup;
  const std::string key = "key", other = "other";
  const MemoryUse uses[] = {kReading,
                            kWriting,
                            {.rights = 48},
                            {.rights = 16, .interface = 1},
                            {.rights = 16, .auth_key = key},
                            {.rights = 16, .auth_key = other}};
  for (const MemoryUse& use : uses) CHECK_FALSE(setup.hits(0x1000, 64, use));
  for (const MemoryUse& use : uses) CHECK(setup.hits(0x1010, 16, use));
  CHECK(setup.cache.stats().cached_count == std::size(uses));
}

TEST_CASE("what is known is had without enrolling anything") {
  Setup setup;
  const AddressRange whole{.start = 0x1000, .length = 64}, part{.start = 0x1010, .length = 8};
  CHECK_FALSE(setup.cache.acquire_known(part, kReading).held());
  CHECK(setup.device.enrolled.empty());
  setup.get(whole.start, whole.length);
  const auto known = setup.cache.acquire_known(part, kReading);
  REQUIRE(known.held());
  CHECK(setup.device.of(known).start == whole.start);
  CHECK(setup.cache.stats().hits == 1);
  CHECK_FALSE(setup.cache.acquire_known(part, kWriting).held());
  setup.monitor.vanish(whole);
  CHECK_FALSE(setup.cache.acquire_known(part, kReading).held());
}

TEST_CASE("what is not kept is enrolled all the same") {
  Device device;
  TestMonitor monitor;
  monitor.unwatchable = 0x2000;
  const auto misses_twice = [&](CacheLimits limits, MemoryMonitor* watching, std::uint64_t start) {
    RegistrationCache cache(limits, device.enroller(), watching);
    for (int i = 0; i < 2; ++i) {
      const auto lease = cache.acquire({.start = start, .length = 64}, kReading);
      CHECK(device.of(lease).length == 64);
    }
    CHECK(device.enrolled.empty());
    const CacheStats stats = cache.stats();
    CHECK(stats.misses == 2);
    CHECK(stats.searches == 2);
    CHECK(stats.cached_count == 0);
  };
  misses_twice({.max_idle = 0}, &monitor, 0x1000);
  misses_twice({}, nullptr, 0x1000);
  misses_twice({}, &monitor, 0x2000);
  RegistrationCache many({}, device.enroller(), &monitor);
  for (std::uint16_t i = 0; i < 300; ++i) many.acquire({.start = 4096, .length = 1}, {.interface = i});
  CHECK(many.stats().cached_count == 256);  // more uses than it numbers
}

TEST_CASE("idle entries leave in the order of their last use, those in use stay") {
  Setup setup({.max_idle = 3});
  const auto pinned = setup.get(0x100000, 64);
  for (std::uint64_t i = 1; i <= 3; ++i) setup.get(i * 0x1000, 64);
  CHECK(setup.hits(0x1000, 64));  // now 2 is the oldest
  setup.get(0x4000, 64);
  CHECK(setup.cache.stats().evictions == 1);
  CHECK(setup.hits(0x1000, 64));
  CHECK(setup.hits(0x3000, 64));
  CHECK(setup.hits(0x4000, 64));
  CHECK_FALSE(setup.hits(0x2000, 64));  // evicts 1
  CHECK_FALSE(setup.hits(0x1000, 64));
  for (std::uint64_t i = 0; i < 10'000; ++i) setup.get(0x200000 + i * 0x1000, 64);
  CHECK(setup.hits(0x100000, 64));
  const CacheStats stats = setup.cache.stats();
  CHECK(stats.idle_count == 3);
  CHECK(stats.cached_count == 4);
  CHECK(stats.idle_bytes == 3 * 64);
  CHECK(stats.evictions == 10'003);
}

TEST_CASE("an entry that was evicted from the queue while in use comes back into it") {
  Setup setup({.max_idle = 1});
  for (int round = 0; round < 3; ++round) {
    setup.get(0x1000, 64);
    {
      const auto again = setup.get(0x1000, 64);
      setup.get(0x2000, 64);  // idle: one
      setup.get(0x3000, 64);  // evicts the one before; the entry in use is passed by
    }
    setup.get(0x4000, 64);
    CHECK(setup.cache.stats().idle_count == 1);
    CHECK(setup.hits(0x4000, 64));
  }
}

TEST_CASE("bytes are bounded, but for a single range that is larger") {
  Setup setup({.max_bytes = 1000});
  for (std::uint64_t i = 0; i < 5; ++i) setup.get(0x1000 * (i + 1), 300);
  CacheStats stats = setup.cache.stats();
  CHECK(stats.cached_bytes == 900);
  CHECK(stats.evictions == 2);
  {
    const auto large = setup.get(0x100000, 2000);
    CHECK(setup.device.of(large).length == 2000);
    stats = setup.cache.stats();
    CHECK(stats.cached_bytes == 2000);
    CHECK(stats.idle_bytes == 0);
    CHECK(setup.hits(0x100000, 2000));
  }
  stats = setup.cache.stats();
  CHECK(stats.cached_bytes == 0);
  CHECK(stats.evictions == 6);
}

TEST_CASE("neighbours merge, users of the old entries keep them, rights stay apart") {
  Setup setup({.merge = true});
  const auto first = setup.get(0x1000, 0x1000);
  auto second = setup.get(0x2000, 0x1000);
  CHECK(second.range() == AddressRange{.start = 0x1000, .length = 0x2000});
  CHECK(setup.device.of(first) == AddressRange{.start = 0x1000, .length = 0x1000});
  setup.get(0x4001, 0x1000);  // a gap of one byte at 0x4000
  setup.get(0x3000, 0x1000);
  CHECK(setup.cache.stats().cached_count == 2);
  setup.get(0x4000, 1);
  CHECK(setup.cache.stats().cached_count == 1);
  CHECK(setup.cache.stats().cached_bytes == 0x4001);
  CHECK(setup.hits(0x1800, 0x2000));
  setup.get(0x5001, 0x1000, kWriting);
  CHECK(setup.cache.stats().cached_count == 2);
  CHECK_FALSE(setup.hits(0x1000, 64, kWriting));
  CHECK(setup.device.of(second).length == 0x2000);
  second.reset();
  CHECK(setup.device.of(first).length == 0x1000);
}

TEST_CASE("a merge that cannot be enrolled, or is too large, leaves the range alone") {
  for (const bool by_device : {true, false}) {
    Setup setup({.max_bytes = by_device ? ~std::uint64_t{0} : 0x1800, .merge = true});
    if (by_device) setup.device.longest = 0x1000;
    const auto first = setup.get(0x1000, 0x1000);
    const auto second = setup.get(0x2000, 0x1000);
    CHECK(second.range() == AddressRange{.start = 0x2000, .length = 0x1000});
    CHECK(setup.cache.stats().cached_count == 2);
  }
}

TEST_CASE("nothing is kept of a registration that fails") {
  Setup setup({.merge = true});
  setup.device.longest = 100;
  CHECK_THROWS_AS(setup.get(0x1000, 101), Error);
  CHECK_THROWS_AS(setup.get(0x1000, 0), Error);
  CHECK_THROWS_AS(setup.get(~std::uint64_t{0} - 10, 11), Error);
  CHECK(setup.cache.stats().cached_count == 0);
  CHECK_FALSE(setup.hits(0x1000, 100));
}

TEST_CASE("entries of memory that vanished are found no more, their leases hold") {
  Setup setup;
  setup.get(0x1000, 0x1000);
  const auto held = setup.get(0x2800, 0x1000);
  setup.get(0x10000, 0x1000);
  setup.monitor.vanish({.start = 0x8000, .length = 0x1000});
  CHECK(setup.cache.stats().notifications == 0);
  setup.monitor.vanish({.start = 0x1fff, .length = 0x802});
  const CacheStats stats = setup.cache.stats();
  CHECK(stats.notifications == 1);
  CHECK(stats.cached_count == 1);
  CHECK(stats.idle_count == 1);
  CHECK(setup.device.enrolled.size() == 2);
  CHECK(setup.device.of(held).start == 0x2800);
  CHECK_FALSE(setup.hits(0x2800, 16));
  CHECK(setup.hits(0x10000, 0x1000));
  for (int i = 0; i < 2000; ++i) setup.monitor.vanish({});  // more than the log keeps: all counts as gone
  CHECK_FALSE(setup.hits(0x10000, 0x1000));
}

TEST_CASE("memory that vanishes while it is being enrolled is not kept") {
  TestMonitor monitor;
  const AddressRange range{.start = 0x1000, .length = 64};
  RegistrationCache cache({},
                          {.enroll = [&](AddressRange, const MemoryUse&) -> void* {
                             monitor.vanish(range);
                             return nullptr;
                           },
                           .withdraw = [](void*) {}},
                          &monitor);
  for (std::uint64_t i = 1; i <= 2; ++i) {
    cache.acquire(range, kReading);
    CHECK(cache.stats().misses == i);
    CHECK(cache.stats().notifications == i);
  }
  CHECK(monitor.watches == 0);
}

TEST_CASE("many entries come and go, and exactly the live ones are found") {
  Setup setup({.max_idle = 200});
  std::mt19937 random(1);
  for (int round = 0; round < 20'000; ++round) {
    const std::uint64_t start = 1 + random() % (1 << 20), length = 1 + random() % (1 << (random() % 16));
    setup.get(start, length);
    if (round % 500 == 0)
      setup.monitor.vanish({.start = random() % (1 << 20), .length = random() % (1 << 18)});
    if (round % 100 != 0) continue;
    const auto handle = setup.get(start, length);
    const AddressRange enrolled = setup.device.of(handle);
    CHECK(enrolled.contains({.start = start, .length = length}));
    const CacheStats stats = setup.cache.stats();
    CHECK(stats.idle_count + 1 == stats.cached_count);
    CHECK(setup.device.enrolled.size() == stats.cached_count);
  }
  CHECK(setup.cache.stats().evictions > 0);
}

TEST_CASE("entries are found while their number grows, those in use keep their place") {
  Setup setup({.max_idle = 100'000});
  constexpr std::uint64_t kCount = 20'000, kApart = 0x1800;
  std::vector<RegistrationCache::Lease> held;
  for (std::uint64_t i = 0; i < kCount; ++i) {
    auto lease = setup.get(kApart * i, 0x1234);
    if (i % 7 == 0) held.push_back(std::move(lease));
  }
  const auto all_hit = [&] {
    for (std::uint64_t i = 0; i < kCount; ++i) {
      setup.get(kApart * i, 1);
      setup.get(kApart * i + 0x1233, 1);
    }
    return setup.cache.stats().misses == kCount;
  };
  CHECK(all_hit());
  for (std::size_t i = 0; i < held.size(); ++i) CHECK(held[i].range().start == 7 * kApart * i);
  held.clear();
  CHECK(all_hit());
  CHECK(setup.cache.stats().idle_count == kCount);
}

TEST_CASE("threads hit, miss, evict and see memory vanish at once") {
  // Few entries: evictions. Many: the table grows and entries move.
  for (const std::uint64_t most : {50, 5000}) {
    CAPTURE(most);
    Setup setup({.max_bytes = 1 << 22, .max_idle = most});
    const std::uint64_t places = 4 * most;
    std::vector<std::thread> threads;
    std::atomic<std::uint64_t> searches{0};
    for (unsigned which = 0; which < 4; ++which)
      threads.emplace_back([&, which] {
        std::mt19937 random(which);
        std::vector<RegistrationCache::Lease> held(4);
        for (int i = 0; i < 5000; ++i) {
          const AddressRange range{.start = 0x10000 + 0x100 * (random() % places),
                                   .length = 1 + random() % 0x200};
          auto lease = setup.cache.acquire(range, random() % 2 ? kReading : kWriting);
          if (!setup.device.of(lease).contains(range)) FAIL_CHECK("a lease on other memory");
          ++searches;
          held[random() % held.size()] = std::move(lease);
        }
      });
    std::atomic<bool> stop{false};
    std::thread vanisher([&] {
      std::mt19937 random(9);
      while (!stop) {
        setup.monitor.vanish({.start = 0x10000 + random() % (places * 0x100), .length = 0x40});
        std::this_thread::yield();
      }
    });
    for (std::thread& thread : threads) thread.join();
    stop = true;
    vanisher.join();
    const CacheStats stats = setup.cache.stats();
    CHECK(stats.searches == searches);
    CHECK(stats.idle_count == stats.cached_count);
    CHECK(stats.idle_bytes == stats.cached_bytes);
    CHECK(stats.idle_count <= most);
    CHECK(setup.device.enrolled.size() == stats.cached_count);
  }
}

TEST_CASE("more threads than have a count of their own") {
  Setup setup;
  setup.get(0x1000, 64);
  std::vector<std::thread> threads;
  std::atomic<unsigned> waiting{100};
  for (int i = 0; i < 100; ++i)
    threads.emplace_back([&] {
      setup.get(0x1000, 64);
      for (--waiting; waiting > 0;) std::this_thread::yield();  // all live at once
      setup.get(0x1000, 64);
    });
  for (std::thread& thread : threads) thread.join();
  CHECK(setup.cache.stats().hits == 200);
  CHECK(setup.cache.stats().idle_count == 1);
}

TEST_CASE("a child of fork has no part in it") {
  Setup setup;
  auto lease = setup.get(0x1000, 64);
  const pid_t child = ::fork();
  if (child == 0) {
    const auto enrolled = setup.device.enrolled.size();
    lease.reset();
    bool refused = false;
    try {
      setup.get(0x1000, 64);
    } catch (const Error& error) {
      refused = error.code() == Errc::closed;
    }
    ::_exit(refused && setup.device.enrolled.size() == enrolled ? 0 : 1);
  }
  int status = -1;
  REQUIRE(::waitpid(child, &status, 0) == child);
  CHECK(status == 0);
  lease.reset();
  CHECK(setup.hits(0x1000, 64));
}

TEST_CASE("counted ranges are freed where nobody counts them any more") {
  CountedRanges ranges;
  std::vector<AddressRange> freed;
  const auto remove = [&](AddressRange range) {
    freed.clear();
    ranges.remove(range, [&](AddressRange part) { freed.push_back(part); });
    return freed;
  };
  ranges.add({.start = 10, .length = 20});
  ranges.add({.start = 20, .length = 20});
  ranges.add({.start = 40, .length = 10});
  using Parts = std::vector<AddressRange>;
  CHECK(remove({.start = 10, .length = 20}) == Parts{{.start = 10, .length = 10}});
  ranges.add({.start = 10, .length = 50});
  CHECK(remove({.start = 20, .length = 20}).empty());
  CHECK(remove({.start = 40, .length = 10}).empty());
  CHECK(remove({.start = 10, .length = 50}) == Parts{{.start = 10, .length = 50}});
}

}  // namespace
}  // namespace fab
