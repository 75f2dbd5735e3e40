// Nodes with real sessions, flows and rails, on a virtual clock: docs/testing.md, "Simulation".
#include <doctest/doctest.h>

#include <cstdlib>
#include <string>

#include "simulation/world.h"

using fab::sim::Result;
using fab::sim::tell;

namespace {

std::uint64_t number(const char* variable, std::uint64_t otherwise) {
  const char* const value = std::getenv(variable);
  return value ? std::strtoull(value, nullptr, 0) : otherwise;
}

}  // namespace

TEST_CASE("whatever befalls nodes and links, each operation has one outcome, and it is true") {
  const std::uint64_t first = number("FAB_FIRST_SEED", 1), seeds = number("FAB_SEEDS", 120);
  fab::sim::Tally all;
  for (std::uint64_t seed = first; seed < first + seeds; ++seed) {
    const Result result = tell(seed);
    all.add(result.tally);
    CHECK_MESSAGE(result.wrong.empty(), "seed " << seed << ": " << result.wrong);
    if (!result.wrong.empty()) break;
  }
  MESSAGE(all.text());
}

TEST_CASE("a seed tells the same story again") {
  for (const std::uint64_t seed : {3, 14, 159}) CHECK(tell(seed).trace == tell(seed).trace);
  CHECK(tell(3).trace != tell(4).trace);
}
