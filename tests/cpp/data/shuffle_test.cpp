#include "data/shuffle.h"

#include <doctest/doctest.h>

#include <cmath>
#include <vector>

using fab::Shuffle;

TEST_CASE("every number comes once, for any size") {
  for (const std::uint64_t size : {1, 2, 3, 4, 5, 7, 8, 9, 63, 64, 65, 1000, 4097}) {
    CAPTURE(size);
    const Shuffle shuffle(size, 42, 3);
    std::vector<bool> seen(size);
    for (std::uint64_t i = 0; i < size; ++i) {
      const std::uint64_t number = shuffle(i);
      REQUIRE(number < size);
      CHECK_FALSE(seen[number]);
      seen[number] = true;
    }
  }
}

TEST_CASE("the order depends on seed and epoch, and on nothing else") {
  constexpr std::uint64_t kSize = 10'000;
  const Shuffle shuffle(kSize, 1, 0), same(kSize, 1, 0), other_seed(kSize, 2, 0), other_epoch(kSize, 1, 1);
  int seed_equal = 0, epoch_equal = 0;
  for (std::uint64_t i = 0; i < kSize; ++i) {
    CHECK(shuffle(i) == same(i));
    seed_equal += shuffle(i) == other_seed(i);
    epoch_equal += shuffle(i) == other_epoch(i);
  }
  CHECK(seed_equal < 20);  // 1 is expected of two random orders
  CHECK(epoch_equal < 20);
}

// Of a random order: about a third of the sum of distances between neighbours, no trend, and each residue
// equally often in each part.
TEST_CASE("neighbours in the order are strangers") {
  for (const std::uint64_t size : {1000u, 50'000u, 65'536u, 1'000'003u}) {
    CAPTURE(size);
    const Shuffle shuffle(size, 7, 0);
    double distance = 0, trend = 0;
    std::vector<int> parts(64);
    for (std::uint64_t i = 0; i + 1 < size; ++i) {
      const auto here = static_cast<double>(shuffle(i)), next = static_cast<double>(shuffle(i + 1));
      distance += std::abs(here - next);
      trend += (here / static_cast<double>(size) - 0.5) *
               (static_cast<double>(i) / static_cast<double>(size) - 0.5);
      ++parts[(shuffle(i) * 8 / size) * 8 + i * 8 / size];
    }
    const auto n = static_cast<double>(size);
    CHECK(distance / n / n == doctest::Approx(1.0 / 3).epsilon(0.05));
    CHECK(std::abs(trend / n * 12) < 5 / std::sqrt(n));  // the correlation
    for (const int part : parts) CHECK(std::abs(part - n / 64) < 6 * std::sqrt(n / 64));
  }
}

TEST_CASE("a part of a huge order costs only that part") {
  constexpr std::uint64_t kSize = std::uint64_t{1} << 62;
  const Shuffle shuffle(kSize, 9, 0);
  for (std::uint64_t i = 0; i < 1000; ++i) CHECK(shuffle(kSize - 1 - i) < kSize);
}
