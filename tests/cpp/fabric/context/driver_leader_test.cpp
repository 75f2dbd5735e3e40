#include <doctest/doctest.h>

#include <atomic>
#include <chrono>
#include <thread>
#include <utility>
#include <vector>

#include "fabric/context/driven.h"
#include "fabric/context/driver.h"

using namespace fab;
using std::chrono::seconds;
using test::Arrival;
using test::Sleeper;
using test::soon;
using test::until;
using test::Work;

TEST_CASE("a leader stops for a notice, which may wait itself, and goes on afterwards") {
  Work work;
  Driver driver(work);
  driver.open(work);
  bool inner = false, outer = false;
  int asked = 0;
  driver.on_callbacks = [&] {
    inner = driver.wait([] { return true; }, soon());
    CHECK(driver.who() == Driver::Who::spinning_caller);  // somebody came and went
    CHECK(driver.who() == Driver::Who::nobody);           // and the leader counts as gone
    outer = true;
  };
  work.on_advance = [&] {
    if (asked++ == 0) driver.request_callbacks();
    return true;
  };
  CHECK(driver.wait([&] { return outer; }, soon()));
  CHECK(inner);
}

TEST_CASE("the first caller leads, the others follow, and each hears when something moved") {
  Work work;
  Driver driver(work);
  driver.open(work);
  constexpr int kCallers = 4;
  std::atomic<int> ready{0}, leading{0}, finished{0};
  std::atomic<bool> go{false}, overlap{false};
  work.on_advance = [&] {
    if (++leading != 1) overlap = true;
    const bool moved = go.load();
    --leading;
    return moved;
  };
  std::vector<std::thread> threads;
  for (int i = 0; i < kCallers; ++i)
    threads.emplace_back([&] {
      bool counted = false;
      const bool done = driver.wait(
          [&] {
            if (!std::exchange(counted, true)) ++ready;
            return go.load();
          },
          soon());
      finished += done;
    });
  until([&] { return ready == kCallers; });
  go = true;
  driver.wake();
  for (std::thread& thread : threads) thread.join();
  CHECK(finished == kCallers);
  CHECK(!overlap);
}

TEST_CASE("a follower leads when the leader has what it waited for") {
  Work work;
  Driver driver(work);
  driver.open(work);
  std::atomic<int> followed{0};
  std::atomic<std::thread::id> leader;
  work.on_advance = [&] {
    leader = std::this_thread::get_id();
    return false;
  };
  Sleeper first(driver);
  const std::thread::id before = leader;
  std::atomic<bool> done{false};
  std::thread second([&] {
    CHECK(driver.wait(
        [&] {
          ++followed;
          return done.load();
        },
        soon()));
  });
  until([&] { return followed > 0; });
  CHECK(first.join());
  until([&] { return leader.load() != before && leader.load() == second.get_id(); });
  done = true;
  driver.wake();
  second.join();
}

TEST_CASE("nobody sleeps while there is work") {
  Work work;
  Driver driver(work);
  driver.open(work);
  int left = 3;
  work.on_arm = [&] { return left-- == 0; };
  // Each refusal to sleep is followed by another round of the leader, which looks again.
  CHECK(driver.wait([&] { return left <= 0; }, Deadline()));
  CHECK(work.arms == 3);
}

TEST_CASE("a leader sleeps until it is woken: by a descriptor, a wake(), or a turn that settles something") {
  for (const int how : {0, 1, 2}) {
    CAPTURE(how);
    Work work;
    Driver driver(work);
    driver.open(work);
    Arrival arrival(driver);
    Sleeper sleeper(driver);
    until([&] { return work.arms > 0; });
    if (how == 0) {
      arrival.arrive();
      until([&] { return arrival.taken == 1; });
    } else if (how == 1) {
      const int moves = work.advances;
      driver.wake();
      until([&] { return work.advances > moves; });
    } else {
      const int moves = work.advances;
      {
        const Driver::Turn turn(driver);
      }
      until([&] { return work.advances > moves; });
    }
    CHECK(sleeper.join());
  }
}

TEST_CASE("a caller without patience makes one turn, and none beside a leader") {
  Work work;
  Driver driver(work);
  driver.open(work);
  CHECK(!driver.wait([] { return false; }, Deadline::in(seconds(0))));
  CHECK(work.advances == 1);
  CHECK(driver.wait([] { return true; }, Deadline::in(seconds(0))));
  CHECK(work.advances == 1);
  Sleeper sleeper(driver);
  const int moves = work.advances;
  CHECK(!driver.wait([] { return false; }, Deadline::in(seconds(0))));
  CHECK(work.advances == moves);
  CHECK(sleeper.join());
}

TEST_CASE("a turn is one turn; beside a leader it waits until that one moved something") {
  Work work;
  Driver driver(work);
  driver.open(work);
  driver.turn();
  CHECK(work.advances == 1);
  CHECK(driver.who() == Driver::Who::spinning_caller);
  CHECK(driver.who() == Driver::Who::nobody);
  std::atomic<int> turned{0};
  Sleeper sleeper(driver);
  std::thread other([&] {
    driver.turn();
    ++turned;
  });
  CHECK(!driver.progress());  // somebody leads
  CHECK(sleeper.join());
  other.join();
  CHECK(turned == 1);
}

TEST_CASE("nothing is driven and nobody waits once the driver is closed") {
  Work work;
  Driver driver(work);
  driver.open(work);
  Sleeper sleeper(driver);
  std::atomic<int> followed{0};
  std::thread follower([&] {
    CHECK(!driver.wait(
        [&] {
          ++followed;
          return false;
        },
        soon()));
  });
  until([&] { return followed > 0; });
  {
    const Driver::Turn turn(driver);
    driver.close();
  }
  follower.join();
  sleeper.join();
  const int moves = work.advances, arms = work.arms;
  while (driver.progress()) {  // takes what has woken the leader
  }
  driver.turn();
  CHECK(driver.arm() == Driver::Rest::allowed);
  CHECK(!driver.wait([] { return false; }, soon()));
  CHECK(work.advances == moves);
  CHECK(work.arms == arms);
}

TEST_CASE("a turn wakes those who follow: what settled in place may be what one waits for") {
  Work work;
  Driver driver(work);
  driver.open(work);
  // The leader is held inside its turn, so that only the other turn can have woken the follower.
  Sleeper leader(driver);
  std::atomic<int> asked{0};
  std::atomic<bool> done{false};
  std::thread follower([&] {
    CHECK(driver.wait(
        [&] {
          ++asked;
          return done.load();
        },
        soon()));
  });
  until([&] { return asked > 0; });
  done = true;
  {
    const Driver::Turn turn(driver);
  }
  follower.join();
  CHECK(leader.join());
}
