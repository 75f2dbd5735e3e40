#include "base/queues/room.h"

#include <doctest/doctest.h>

namespace fab {
namespace {

// How often the items have moved to other memory.
template <class Make>
int moves_of(std::vector<int>& items, int count, const Make& make) {
  int moves = 0;
  for (int i = 0; i < count; ++i) {
    const std::size_t before = items.capacity();
    make(i);
    REQUIRE(items.capacity() > items.size());
    moves += items.capacity() != before;
    items.push_back(i);
  }
  return moves;
}

TEST_CASE("room grows with the number of items") {
  std::vector<int> items;
  CHECK(moves_of(items, 100'000, [&](int) { make_room(items); }) <= 17);
  CHECK(items.back() == 99'999);
}

TEST_CASE("what has gone gives its room to others, and is looked for rarely") {
  std::vector<int> items;
  std::size_t looks = 0;
  const auto moves = moves_of(items, 100'000, [&](int now) {
    make_room(items, [&](int item) {
      ++looks;
      return item + 50 < now;
    });
  });
  CHECK(moves <= 7);
  CHECK(items.capacity() <= 128);
  CHECK(looks <= 400'000);
}

TEST_CASE("what stays is looked at rarely as well") {
  std::vector<int> items;
  std::size_t looks = 0;
  moves_of(items, 100'000, [&](int) {
    make_room(items, [&](int item) {
      ++looks;
      return item % 10'000 == 9'999;
    });
  });
  CHECK(looks <= 300'000);
  CHECK(items.size() >= 99'990);
}

}  // namespace
}  // namespace fab
