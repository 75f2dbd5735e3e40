#include "fabric/memory/local_regions.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <random>
#include <utility>
#include <vector>

#include "fabric/memory/pieces.h"

using namespace fab;
using test::address;
using test::Bytes;
using test::piece;

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
