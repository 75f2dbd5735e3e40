#include "fabric/segment/region_spans.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <bitset>
#include <random>

namespace fab {
namespace {

constexpr std::size_t kBytes = 64;
using Set = std::bitset<kBytes>;

Set bytes_of(const RegionSpans& spans) {
  Set set;
  for (const RegionSpan& span : spans.view())
    for (std::uint64_t i = 0; i < span.length; ++i) set.set(span.offset + i);
  return set;
}

bool in_order(const RegionSpans& spans) {
  return std::ranges::adjacent_find(spans.view(), [](const RegionSpan& left, const RegionSpan& right) {
           return left.offset + left.length >= right.offset;
         }) == spans.view().end();
}

TEST_CASE("spans that overlap or touch become one, empty ones nothing") {
  const RegionSpans spans({{20, 4}, {0, 0}, {8, 4}, {10, 6}, {16, 2}, {40, 0}});
  REQUIRE(spans.view().size() == 2);
  CHECK(spans.view()[0].offset == 8);
  CHECK(spans.view()[0].length == 10);
  CHECK(spans.view()[1].offset == 20);
  CHECK(spans.view()[1].length == 4);
}

TEST_CASE("sums, differences and intersections are those of the bytes") {
  std::mt19937 random(1);
  const auto any = [&] {
    std::vector<RegionSpan> list(random() % 6);
    for (RegionSpan& span : list) {
      span.offset = random() % kBytes;
      span.length = random() % std::min<std::uint64_t>(kBytes - span.offset, 12);
    }
    return RegionSpans(std::move(list));
  };
  for (int round = 0; round < 20'000; ++round) {
    const RegionSpans left = any(), right = any();
    const Set l = bytes_of(left), r = bytes_of(right);
    const RegionSpans sum = left | right, common = left & right, rest = left - right;
    REQUIRE((bytes_of(sum) == (l | r)));
    REQUIRE((bytes_of(common) == (l & r)));
    REQUIRE((bytes_of(rest) == (l & ~r)));
    REQUIRE((in_order(sum) && in_order(common) && in_order(rest)));
  }
}

TEST_CASE("spans reach to the end of what 64 bits name") {
  const RegionSpans all({{0, ~0ull}}), end({{~0ull - 1, 1}});
  CHECK((all & end).view()[0].offset == ~0ull - 1);
  CHECK((all - end).view()[0].length == ~0ull - 1);
  CHECK((end - all).view().empty());
}

}  // namespace
}  // namespace fab
