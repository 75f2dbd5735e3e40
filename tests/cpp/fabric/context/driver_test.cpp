#include "fabric/context/driver.h"

#include <doctest/doctest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <stdexcept>
#include <thread>

#include "fabric/context/driven.h"
#include "fabric/types/error.h"

using namespace fab;
using std::chrono::seconds;
using test::Arrival;
using test::soon;
using test::until;
using test::Work;

TEST_CASE("a turn begins a slice, and so does each pause in it") {
  Work work;
  Driver driver(work);
  driver.open(work);
  {
    Driver::Turn turn(driver);
    driver.slice().spend(Slice::kBytes);
    CHECK(driver.slice().spent());
    driver.pause(std::chrono::nanoseconds(1));
    std::thread([&] { CHECK_FALSE(driver.try_lock()); }).join();  // the lock is back
    CHECK(driver.slice().used() == 0);
    driver.slice().spend(Slice::kBytes);
    turn.move();
    CHECK(driver.slice().used() == 0);
    driver.slice().spend(Slice::kBytes);
  }
  const Driver::Turn next(driver);
  CHECK(driver.slice().used() == 0);
}

TEST_CASE("each way to drive begins a slice") {
  Work work;
  Driver driver(work);
  driver.open(work);
  std::uint64_t used = 0;
  work.on_advance = [&] {
    used += driver.slice().used();
    driver.slice().spend(Slice::kBytes);
    return false;
  };
  work.on_arm = [&] {
    used += driver.slice().used();
    driver.slice().spend(Slice::kBytes);
    return true;
  };
  driver.progress();
  driver.progress(false);
  driver.turn();
  CHECK(driver.arm() == Driver::Rest::allowed);
  CHECK(work.advances == 3);
  CHECK(work.arms == 1);
  CHECK(used == 0);
}

TEST_CASE("the poller's turn of a leader begins a slice as well") {
  Work work;
  Driver driver(work);
  driver.open(work);
  Arrival arrival(driver);
  arrival.arrive();
  work.on_advance = [&] {
    driver.slice().spend(Slice::kBytes);
    return false;
  };
  std::uint64_t used = 1;
  CHECK(driver.wait(
      [&] {
        if (arrival.taken == 0) return false;
        used = driver.slice().used();
        return true;
      },
      soon()));
  CHECK(used == 0);
}

TEST_CASE("the lock is had without waiting or not at all, and nobody moves anything while it is held") {
  Work work;
  Driver driver(work);
  driver.open(work);
  const Driver::Turn turn(driver);
  std::thread([&] {
    CHECK_FALSE(driver.try_lock());
    CHECK(!driver.progress());
    CHECK(driver.arm() == Driver::Rest::in_use);
  }).join();
  CHECK(work.advances == 0);
  CHECK(work.arms == 0);
}

TEST_CASE("what moved is tidied, and a path that ended is so at the end of the turn, once") {
  Work work;
  Driver driver(work);
  driver.open(work);
  CHECK(!driver.progress());
  CHECK(work.tidied_moves == 0);
  work.on_advance = [] { return true; };
  CHECK(driver.progress());
  CHECK(work.tidied_moves == 1);
  {
    const Driver::Turn turn(driver);
  }
  CHECK(work.tidied_ends == 0);
  {
    const Driver::Turn turn(driver);
    driver.path_ended();
    CHECK(work.tidied_ends == 0);
  }
  CHECK(work.tidied_ends == 1);
  {
    const Driver::Turn turn(driver);
  }
  CHECK(work.tidied_ends == 1);
  work.on_advance = [&] {
    driver.path_ended();
    return false;
  };
  driver.progress();
  CHECK(work.tidied_ends == 2);
}

TEST_CASE("a notice is given once, after unlocking, by whoever was at it") {
  Work work;
  Driver driver(work);
  driver.open(work);
  int notices = 0;
  driver.on_callbacks = [&] {
    ++notices;
    REQUIRE(driver.try_lock());
    const Driver::Turn free(driver, std::adopt_lock);
  };
  const auto request = [&] { driver.request_callbacks(); };
  {
    const Driver::Turn turn(driver);
    request();
    CHECK(notices == 0);
  }
  CHECK(notices == 1);
  {
    const Driver::Turn turn(driver);
  }
  CHECK(notices == 1);
  {
    const Driver::Turn turn(driver, Driver::Turn::Callbacks::later);
    request();
  }
  CHECK(notices == 1);
  driver.progress();
  CHECK(notices == 2);
  notices = 1;
  Driver::Lock lock(driver);
  request();
  driver.unlock(lock);
  CHECK(notices == 2);
  CHECK_THROWS_AS(
      [&] {
        const Driver::Turn turn(driver);
        request();
        throw std::runtime_error("in the middle");
      }(),
      std::runtime_error);
  CHECK(notices == 3);
  work.on_advance = [&] {
    request();
    return false;
  };
  driver.turn();
  CHECK(notices == 4);
  driver.progress();
  CHECK(notices == 5);
  CHECK(!driver.wait([] { return false; }, Deadline::in(seconds(0))));
  CHECK(notices == 6);
}

TEST_CASE("however much moves, the poller has its turns; who need not look leaves it alone otherwise") {
  Work work;
  Driver driver(work);
  driver.open(work);
  Arrival arrival(driver);
  arrival.arrive();
  CHECK(!driver.progress(false));
  CHECK(arrival.taken == 0);
  work.on_advance = [] { return true; };
  int turns = 0;
  while (arrival.taken == 0 && turns < 100000) {
    CHECK(driver.progress(false));
    ++turns;
  }
  CHECK(arrival.taken == 1);
  CHECK(turns > 100);
  CHECK(turns < 200);
}

TEST_CASE("others who want the lock get it while a leader polls") {
  Work work;
  Driver driver(work);
  driver.open(work);
  work.on_advance = [] { return true; };  // the leader never sleeps
  std::atomic<bool> inside{false};
  std::thread other([&] {
    until([&] { return work.advances > 0; });
    const Driver::Turn turn(driver);
    inside = true;
  });
  CHECK(driver.wait([&] { return inside.load(); }, soon()));
  other.join();
}

TEST_CASE("what a fork inherited is refused, and its progress is nobody's business") {
  Work work;
  Driver driver(work);
  driver.open(work);
  const pid_t child = ::fork();
  if (child == 0) {
    const auto refused = [](const auto& call) {
      try {
        call();
      } catch (const Error& error) {
        return error.code() == Errc::closed;
      }
      return false;
    };
    const bool right = driver.inherited() && refused([&] { driver.progress(); }) &&
                       refused([&] { driver.turn(); }) &&
                       refused([&] { driver.wait([] { return true; }, {}); }) &&
                       driver.arm() == Driver::Rest::allowed && !driver.armed() && work.arms == 0;
    ::_exit(right ? 0 : 1);
  }
  int status = -1;
  REQUIRE(::waitpid(child, &status, 0) == child);
  CHECK(status == 0);
  CHECK(!driver.inherited());
}

TEST_CASE("turns that make a slice give way to those who want the lock; shorter ones follow each other") {
  Work work;
  Driver driver(work);
  driver.open(work);
  for (const bool whole : {true, false}) {
    CAPTURE(whole);
    std::atomic<bool> waits{false}, had{false};
    std::thread other;
    int turns = 0;
    {
      const Driver::Turn first(driver);
      other = std::thread([&] {
        waits = true;
        const Driver::Turn turn(driver);
        had = true;
      });
      until([&] { return waits.load(); });
    }
    while (!had && turns < 1000000) {
      const Driver::Turn turn(driver);
      driver.slice().spend(whole ? Slice::kBytes : 1);
      ++turns;
    }
    other.join();
    CHECK(had);
  }
}
