// What a hit in the registration cache costs: a lease on a registered range, chosen at random, and its end; in ns,
// at 1 k and 1 M entries, and how much more two threads do than one, each with entries of its own and both with the
// same. Built against the library:
//   g++ -std=c++20 -O3 -Isrc/cpp benchmarks/cpp/registration_cache.cpp libfab.a
#include <algorithm>
#include <barrier>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <numeric>
#include <random>
#include <thread>
#include <vector>

#include "fabric/registration_cache.h"

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
constexpr int kHits = 1 << 20, kRounds = 15;

std::vector<AddressRange> ranges(std::size_t count, bool sizes_differ) {
  std::mt19937_64 random(1);
  std::vector<AddressRange> all;
  std::uint64_t address = std::uint64_t{1} << 40;
  for (std::size_t i = 0; i < count; ++i) {
    const std::uint64_t length = sizes_differ ? 4096 + random() % 1'000'000 : 4096;
    all.push_back({.start = address, .length = length});
    address += length + 4096 * (random() % 2);
  }
  return all;
}

// ns per hit of each round, of which the median, with `threads` of them at work at once.
double measure(RegistrationCache& cache, const std::vector<std::vector<AddressRange>>& of_thread) {
  std::vector<double> rounds;
  std::barrier together(static_cast<std::ptrdiff_t>(of_thread.size()));
  const auto work = [&](std::size_t which) {
    const auto& asked = of_thread[which];
    for (int round = 0; round < kRounds; ++round) {
      together.arrive_and_wait();
      const auto start = std::chrono::steady_clock::now();
      for (int i = 0; i < kHits; ++i) cache.acquire(asked[static_cast<std::size_t>(i) % asked.size()], kUse);
      together.arrive_and_wait();
      const std::chrono::duration<double, std::nano> took = std::chrono::steady_clock::now() - start;
      if (which == 0) rounds.push_back(took.count() / kHits);
    }
  };
  std::vector<std::thread> others;
  for (std::size_t i = 1; i < of_thread.size(); ++i) others.emplace_back(work, i);
  work(0);
  for (std::thread& other : others) other.join();
  std::ranges::nth_element(rounds, rounds.begin() + kRounds / 2);
  return rounds[kRounds / 2];
}

void measure(std::size_t count, bool sizes_differ) {
  NothingVanishes monitor;
  const Enroller enroller{.enroll = [](AddressRange, const MemoryUse&) -> void* { return nullptr; },
                          .withdraw = [](void*) {}};
  RegistrationCache cache({.max_idle = 2 * count}, enroller, &monitor);
  auto all = ranges(count, sizes_differ);
  for (const AddressRange& range : all) cache.acquire(range, kUse);
  std::ranges::shuffle(all, std::mt19937_64(2));
  const auto middle = all.begin() + static_cast<std::ptrdiff_t>(count / 2);
  std::vector<AddressRange> backwards(all.rbegin(), all.rend());
  auto inner = all;
  for (AddressRange& range : inner) range = {.start = range.start + range.length / 2, .length = 64};

  const double one = measure(cache, {all});
  const double inside = measure(cache, {inner});
  const double own = measure(cache, {{all.begin(), middle}, {middle, all.end()}});
  const double same = measure(cache, {all, backwards});
  std::printf("%8zu entries of %s: %6.1f ns a hit, %6.1f ns inside; two threads: own entries %.2fx, the same %.2fx\n",
              count, sizes_differ ? "4 KiB to 1 MB" : "4 KiB        ", one, inside, 2 * one / own, 2 * one / same);
  if (cache.stats().misses != count) std::abort();
}

}  // namespace

int main() {
  for (const std::size_t count : {std::size_t{1000}, std::size_t{1'000'000}})
    for (const bool sizes_differ : {false, true}) measure(count, sizes_differ);
}
