#include "fabric/session/array_counts.h"

#include <doctest/doctest.h>

using fab::ArrayCounts;

TEST_CASE("an array counts once, with its last piece, if any piece has changed an element") {
  ArrayCounts arrays;
  for (const int changing : {0, 1, 2}) {
    CHECK_FALSE(arrays.applied(7, false, changing == 0));
    CHECK_FALSE(arrays.applied(7, false, changing == 1));
    CHECK(arrays.applied(7, true, changing == 2));
  }
  CHECK_FALSE(arrays.applied(7, false, false));
  CHECK_FALSE(arrays.applied(7, true, false));
}

TEST_CASE("the pieces of several arrays may mix") {
  ArrayCounts arrays;
  for (std::uint32_t array = 1; array <= 16; ++array)
    CHECK_FALSE(arrays.applied(array, false, array % 2 == 0));
  for (std::uint32_t array = 16; array >= 1; --array)
    CHECK(arrays.applied(array, true, false) == (array % 2 == 0));
}

TEST_CASE("whatever number a peer gives to an array, others know nothing of it") {
  for (const std::uint64_t odd : {std::uint64_t{0}, std::uint64_t{1} << 32, (std::uint64_t{1} << 32) + 7}) {
    CAPTURE(odd);
    ArrayCounts arrays;
    CHECK_FALSE(arrays.applied(odd, false, true));
    CHECK_FALSE(arrays.applied(7, false, false));
    CHECK_FALSE(arrays.applied(7, true, false));
    CHECK(arrays.applied(odd, true, false));
  }
}

TEST_CASE("arrays that broke off give way") {
  ArrayCounts arrays;
  for (std::uint32_t array = 1; array <= 1000; ++array) CHECK_FALSE(arrays.applied(array, false, true));
  CHECK_FALSE(arrays.applied(1001, false, true));
  CHECK(arrays.applied(1001, true, false));
  CHECK_FALSE(arrays.applied(1, true, false));
}
