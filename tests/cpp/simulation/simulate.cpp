// Runs many seeds: simulate [--seeds N] [--first S] [--twice]. What fails is told with its seed, and comes
// again with --first SEED --seeds 1.
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <unordered_set>

#include "simulation/world.h"

int main(int count, char** arguments) {
  std::uint64_t seeds = 1000, first = 1;
  bool twice = false;
  for (int i = 1; i < count; ++i) {
    const std::string word = arguments[i];
    if (word == "--twice") {
      twice = true;
    } else if (i + 1 < count && (word == "--seeds" || word == "--first")) {
      (word == "--seeds" ? seeds : first) = std::strtoull(arguments[++i], nullptr, 0);
    } else {
      std::fprintf(stderr, "usage: simulate [--seeds N] [--first S] [--twice]\n");
      return 2;
    }
  }
  const auto began = std::chrono::steady_clock::now();
  fab::sim::Tally all;
  std::unordered_set<std::uint64_t> states;
  std::uint64_t failed = 0;
  for (std::uint64_t seed = first; seed < first + seeds; ++seed) {
    fab::sim::Result result = fab::sim::tell(seed);
    if (twice && result.wrong.empty() && fab::sim::tell(seed).trace != result.trace)
      result.wrong = "it tells another story the second time";
    all.add(result.tally);
    states.insert(result.states.begin(), result.states.end());
    if (result.wrong.empty()) continue;
    std::printf("seed %llu: %s\n", static_cast<unsigned long long>(seed), result.wrong.c_str());
    std::fflush(stdout);
    if (++failed == 10) break;
  }
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - began;
  std::printf("%s  %zu distinct states; %llu seeds failed; %.1f s\n", all.text().c_str(), states.size(),
              static_cast<unsigned long long>(failed), took.count());
  return failed != 0;
}
