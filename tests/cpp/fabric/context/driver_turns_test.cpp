#include <doctest/doctest.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "fabric/context/driven.h"

using namespace fab;
using namespace fab::test;
using std::chrono::milliseconds;
using std::chrono::seconds;

// What one turn of a driver is, and who is told of it.

TEST_CASE("a turn that pauses lets others have the lock for as long as it says, and begins anew") {
  Work work;
  Driver driver(work);
  driver.open(work);
  std::atomic<bool> had{false};
  Driver::Turn turn(driver);
  driver.slice().spend(1000);
  std::thread other([&] {
    const Driver::Turn between(driver);
    had = true;
  });
  const auto start = std::chrono::steady_clock::now();
  while (!had) driver.pause(milliseconds(20));
  CHECK(std::chrono::steady_clock::now() - start >= milliseconds(20));
  CHECK(driver.slice().used() == 0);
  other.join();
}

TEST_CASE("the poller has its turn after so many in which nothing else was looked at, and that is a move") {
  Work work;
  Driver driver(work);
  driver.open(work);
  Arrival arrival(driver);
  for (int round = 0; round < 2; ++round) {
    const int taken = arrival.taken, tidied = work.tidied_moves;
    arrival.arrive();
    int turns = 0;
    while (!driver.progress(false) && turns < 100'000) ++turns;
    CHECK(arrival.taken == taken + 1);
    CHECK(work.tidied_moves == tidied + 1);
    CHECK(turns >= 2000);  // one that moved nothing counts once
    CHECK(turns <= 2100);
    CHECK(!driver.progress(false));  // the poller was looked at, and is not for a while
  }
}

TEST_CASE("a caller that has led counts as gone, whether it slept or stayed") {
  for (const bool sleeps : {false, true}) {
    CAPTURE(sleeps);
    Work work;
    Driver driver(work);
    driver.open(work);
    if (!sleeps) work.on_advance = [] { return true; };
    std::atomic<bool> done{false};
    std::thread caller([&] { CHECK(driver.wait([&] { return done.load(); }, soon())); });
    until([&] { return driver.who() == Driver::Who::staying_caller; });
    done = true;
    driver.wake();
    caller.join();
    driver.who();
    CHECK(driver.who() == Driver::Who::nobody);
    // The next one begins as any other.
    bool seen = false;
    CHECK(driver.wait(
        [&] {
          seen = driver.who() == Driver::Who::spinning_caller;
          return true;
        },
        soon()));
    CHECK(seen);
    CHECK(driver.arm() == Driver::Rest::allowed);
  }
}

TEST_CASE("what woke a leader is moved before anybody is asked whether that was it") {
  Work work;
  Driver driver(work);
  driver.open(work);
  Arrival arrival(driver);
  std::atomic<int> asked_before{0};
  std::thread caller([&] {
    CHECK(driver.wait(
        [&] {
          if (arrival.taken == 0) ++asked_before;
          return arrival.taken != 0;
        },
        soon()));
  });
  until([&] { return work.arms > 0 && driver.who() == Driver::Who::staying_caller; });
  {
    const Driver::Lock held(driver);  // it sleeps, and is not about to
  }
  const int asked = asked_before, arms = work.arms;
  arrival.arrive();
  caller.join();
  CHECK(arrival.taken == 1);
  CHECK(asked_before == asked);
  CHECK(work.arms == arms);
}

TEST_CASE("a notice that is due when a wait ends is given, whatever became of the wait") {
  Work work;
  Driver driver(work);
  driver.open(work);
  int notices = 0;
  bool told = false;
  driver.on_callbacks = [&] {
    ++notices;
    told = true;
  };
  CHECK(driver.wait(
      [&] {
        driver.request_callbacks();
        return true;
      },
      soon()));
  CHECK(notices == 1);
  // What the notice brought about is what was waited for, though there is no patience for more.
  told = false;
  work.on_advance = [&] {
    driver.request_callbacks();
    return false;
  };
  CHECK(driver.wait([&] { return told; }, Deadline::in(seconds(0))));
  CHECK(notices == 2);
  CHECK(work.advances == 1);
  driver.who();
  CHECK(driver.who() == Driver::Who::nobody);  // who waited has gone
}

TEST_CASE("a turn beside a leader that sleeps waits for it, but not for ever") {
  Work work;
  Driver driver(work);
  driver.open(work);
  std::atomic<bool> done{false};
  std::thread leader([&] { CHECK(driver.wait([&] { return done.load(); }, soon())); });
  until([&] { return work.arms > 0 && driver.who() == Driver::Who::staying_caller; });
  const auto start = std::chrono::steady_clock::now();
  driver.turn();
  CHECK(std::chrono::steady_clock::now() - start >= milliseconds(500));
  done = true;
  driver.wake();
  leader.join();
}

TEST_CASE("who follows hears at once when something moved") {
  bool at_once = false;  // by itself a follower looks after a second; on a busy machine that may be sooner
  for (int round = 0; round < 5 && !at_once; ++round) {
    Work work;
    Driver driver(work);
    driver.open(work);
    Arrival arrival(driver);
    std::atomic<bool> leader_done{false};
    std::atomic<int> asked{0};
    std::thread leader([&] { CHECK(driver.wait([&] { return leader_done.load(); }, soon())); });
    until([&] { return work.arms > 0 && driver.who() == Driver::Who::staying_caller; });
    std::chrono::steady_clock::time_point heard;
    std::thread follower([&] {
      CHECK(driver.wait(
          [&] {
            ++asked;
            return arrival.taken != 0;
          },
          soon()));
      heard = std::chrono::steady_clock::now();
    });
    until([&] { return asked > 0; });
    {
      const Driver::Lock held(driver);  // both wait
    }
    const auto start = std::chrono::steady_clock::now();
    arrival.arrive();
    follower.join();
    at_once = heard - start < milliseconds(700);
    leader_done = true;
    driver.wake();
    leader.join();
  }
  CHECK(at_once);
}
