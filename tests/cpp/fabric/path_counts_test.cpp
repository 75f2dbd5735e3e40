#include "fabric/path_counts.h"

#include <doctest/doctest.h>

#include <array>

namespace fab::test {

TEST_CASE("bytes count in the direction in which an operation moves them, once it has succeeded") {
  struct Case {
    OpCode op;
    bool out, in;
  };
  for (const Case& each : {Case{OpCode::write, true, false}, Case{OpCode::read, false, true},
                           Case{OpCode::atomic, true, false}, Case{OpCode::fetch_atomic, true, true},
                           Case{OpCode::compare_atomic, true, true}, Case{OpCode::send, true, false},
                           Case{OpCode::receive, false, true}, Case{OpCode::control, false, false}}) {
    CAPTURE(static_cast<int>(each.op));
    PathCounts counts;
    counts.settle(each.op, 7, Errc::bounds);
    CHECK(counts.settled == 1);
    CHECK(counts.errors == 1);
    CHECK(counts.bytes_out + counts.bytes_in == 0);
    counts.settle(each.op, 7, Errc::ok);
    CHECK(counts.settled == 2);
    CHECK(counts.errors == 1);
    CHECK(counts.bytes_out == (each.out ? 7 : 0));
    CHECK(counts.bytes_in == (each.in ? 7 : 0));
  }
}

TEST_CASE("what is posted on a path that has ended is settled with an error") {
  PathCounts counts{.posted = 5, .settled = 5};
  std::array<Transfer, 4> batch{};
  batch[2].op = OpCode::control;  // of a link: counted nowhere
  counts.refuse(batch);
  CHECK(counts.posted == 8);
  CHECK(counts.settled == 8);
  CHECK(counts.errors == 3);
}

TEST_CASE("what is handed on keeps its number and counts once") {
  PathCounts counts{.posted = 9, .settled = 4};
  std::uint64_t number = 0;
  CHECK(counts.repost(6, [&] { return (number = ++counts.posted) != 0; }));
  CHECK(number == 6);
  CHECK(counts.posted == 9);
  CHECK_FALSE(counts.repost(6, [] { return false; }));  // not taken
  CHECK(counts.posted == 9);
}

}  // namespace fab::test
