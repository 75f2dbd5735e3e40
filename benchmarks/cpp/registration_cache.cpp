// What a hit in the registration cache costs: a lease on a registered range, chosen at random, and its end;
// in ns, at 1 k and 1 M entries, and how much more two threads do than one, each with entries of its own and
// both with the same. Beside it what the machine does at the same time: one locked access in 64 MiB of far
// memory, how much more two threads with such memory of their own do, and two threads with a cache each,
// which share nothing. Built against the library:
//   g++ -std=c++20 -O3 -Isrc/cpp benchmarks/cpp/registration_cache.cpp libfab.a
#include "fabric/registration/registration_cache.h"

#include <algorithm>
#include <atomic>
#include <barrier>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <thread>
#include <vector>

namespace {

using namespace fab;

// The cost of looking up is measured, not that of being watched.
class NothingVanishes final : public MemoryMonitor {
 public:
  bool watch(AddressRange) noexcept override { return true; }
  void unwatch(AddressRange) noexcept override {}
  const VanishLog& log() const noexcept override { return log_; }

 private:
  VanishLog log_;
};

constexpr MemoryUse kUse{.rights = 63};
const Enroller kNoDevice{.enroll = [](AddressRange, const MemoryUse&) -> void* { return nullptr; },
                         .withdraw = [](void*) {}};
constexpr int kHits = 1 << 18, kRounds = 9;

// `count` (a power of two) ranges apart from each other, computed instead of kept, so that the caches are the
// registration cache's alone.
struct Ranges {
  std::uint64_t count;
  bool sizes_differ, inside;
  AddressRange operator[](std::uint64_t i) const {
    const std::uint64_t mixed = i * 0x9e37'79b9'7f4a'7c15 >> 40;
    AddressRange range{.start = (std::uint64_t{1} << 40) + (i << 21) + (mixed % 256 << 12),
                       .length = sizes_differ ? 4096 + mixed % 1'000'000 : 4096};
    if (inside) range = {.start = range.start + range.length / 2, .length = 64};
    return range;
  }
};

// ns per call of `hit(thread, random)`: the median of some rounds, with `threads` at work at once.
template <class Hit>
double measure(unsigned threads, const Hit& hit) {
  std::vector<double> rounds;
  std::barrier together(threads);
  const auto work = [&](unsigned which) {
    std::uint64_t random = which;
    for (int round = 0; round < kRounds; ++round) {
      together.arrive_and_wait();
      const auto start = std::chrono::steady_clock::now();
      for (int i = 0; i < kHits; ++i) {
        random = random * 0xd134'2543'de82'ef95 + 2 * which + 1;
        hit(which, random >> 32);
      }
      together.arrive_and_wait();
      const std::chrono::duration<double, std::nano> took = std::chrono::steady_clock::now() - start;
      if (which == 0) rounds.push_back(took.count() / kHits);
    }
  };
  std::vector<std::thread> others;
  for (unsigned i = 1; i < threads; ++i) others.emplace_back(work, i);
  work(0);
  for (std::thread& other : others) other.join();
  std::ranges::nth_element(rounds, rounds.begin() + kRounds / 2);
  return rounds[kRounds / 2];
}

// One locked access after the other, by each thread in 64 MiB of its own.
double far_memory(unsigned threads) {
  struct alignas(64) Line {
    std::atomic<std::uint64_t> word{0};
  };
  struct alignas(64) Own {
    std::vector<Line> lines{(std::size_t{64} << 20) / sizeof(Line)};
    std::uint64_t former = 0;  // always 0, but each access has to wait for the one before
  };
  std::vector<Own> memory(threads);
  return measure(threads, [&](unsigned which, std::uint64_t random) {
    Own& own = memory[which];
    own.former = own.lines[(random + own.former) % own.lines.size()].word.fetch_add(0);
  });
}

struct FullCache {
  FullCache(std::uint64_t count, bool sizes_differ)
      : whole{.count = count, .sizes_differ = sizes_differ, .inside = false},
        cache({.max_idle = 2 * count}, kNoDevice, &monitor) {
    for (std::uint64_t i = 0; i < count; ++i) cache.acquire(whole[i * 0x9e37'79b9 % count], kUse);
  }
  ~FullCache() {
    if (cache.stats().misses != whole.count) std::abort();
  }
  NothingVanishes monitor;
  const Ranges whole;
  RegistrationCache cache;
};

void measure_cache(std::uint64_t count, bool sizes_differ) {
  FullCache full(count, sizes_differ), other(count, sizes_differ);
  const Ranges& whole = full.whole;
  const Ranges inside{.count = count, .sizes_differ = sizes_differ, .inside = true};
  RegistrationCache& cache = full.cache;
  const auto same = [&](unsigned, std::uint64_t random) { cache.acquire(whole[random % count], kUse); };
  const auto within = [&](unsigned, std::uint64_t random) { cache.acquire(inside[random % count], kUse); };
  const auto half = [&](unsigned which, std::uint64_t random) {
    cache.acquire(whole[which * (count / 2) + random % (count / 2)], kUse);
  };
  const auto own = [&](unsigned which, std::uint64_t random) {
    (which ? other.cache : cache).acquire(whole[random % count], kUse);
  };
  const double one = measure(1, same), far = far_memory(1);
  std::printf(
      "%8llu entries of %-13s: %6.1f ns a hit, %6.1f ns inside (far memory %5.1f ns); two threads on the "
      "same entries "
      "%.2fx, on their own %.2fx, on two caches %.2fx, in far memory of their own %.2fx\n",
      static_cast<unsigned long long>(count), sizes_differ ? "4 KiB to 1 MB" : "4 KiB", one,
      measure(1, within), far, 2 * one / measure(2, same), 2 * one / measure(2, half),
      2 * one / measure(2, own), 2 * far / far_memory(2));
}

}  // namespace

int main() {
  for (const std::uint64_t count : {std::uint64_t{1} << 10, std::uint64_t{1} << 20})
    for (const bool sizes_differ : {false, true}) measure_cache(count, sizes_differ);
}
