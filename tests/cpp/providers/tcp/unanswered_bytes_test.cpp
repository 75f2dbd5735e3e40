#include "providers/tcp/unanswered_bytes.h"

#include <doctest/doctest.h>

using namespace fab::tcp;

TEST_CASE("bytes that a peer has to read first move while its kernel takes them") {
  UnansweredBytes bytes;
  const auto start = bytes.look({.handed = 1000, .waiting = 1000, .all_handed = false, .received = 0});
  CHECK(bytes.look({.handed = 1000, .waiting = 1000, .all_handed = false, .received = 0}) == start);
  const auto moved = bytes.look({.handed = 3000, .waiting = 1000, .all_handed = false, .received = 0});
  CHECK(moved != start);
  // What is handed over and lies there is no progress of the peer.
  CHECK(bytes.look({.handed = 5000, .waiting = 3000, .all_handed = false, .received = 0}) == moved);
  // Nor is an empty socket, which says nothing of when that was.
  CHECK(bytes.look({.handed = 9000, .waiting = 0, .all_handed = true, .received = 0}) == moved);
}

TEST_CASE("nothing behind the first question moves them, until the peer answers") {
  for (const bool behind_others : {false, true}) {
    CAPTURE(behind_others);
    UnansweredBytes bytes;
    std::uint64_t handed = 1000;
    const auto look = [&](std::size_t waiting, std::uint64_t received = 0) {
      return bytes.look({.handed = handed, .waiting = waiting, .all_handed = true, .received = received});
    };
    auto last = look(100);
    bytes.asked(handed, !behind_others);
    handed += behind_others ? 5000 : 50;  // the question, and what is before it
    if (behind_others) CHECK(look(40) != last);
    last = look(20);
    // The kernel of a stopped process acknowledges one question after the other.
    for (int i = 0; i < 10; ++i) {
      bytes.asked(handed, true);
      handed += 50;
      last = i == 0 ? look(50) : last;  // the end of the first one
      CHECK(look(50) == last);
      CHECK(look(10) == last);
    }
    CHECK(look(10, 1) != last);  // it has answered
    last = look(10, 1);
    handed += 1000;
    CHECK(look(900, 1) != last);
  }
}
