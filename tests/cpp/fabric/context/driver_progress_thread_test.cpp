#include <doctest/doctest.h>

#include <atomic>

#include "fabric/context/driven.h"
#include "fabric/context/driver.h"

using namespace fab;
using test::Arrival;
using test::Sleeper;
using test::soon;
using test::Work;

TEST_CASE("the progress thread sees who drives, and is told when a caller that stayed stops") {
  Work work;
  Driver driver(work);
  driver.open(work);
  std::atomic<int> woken{0};
  driver.set_wake_thread([&] { ++woken; });
  CHECK(driver.who() == Driver::Who::nobody);
  CHECK(driver.wait([] { return true; }, soon()));
  CHECK(driver.who() == Driver::Who::spinning_caller);
  CHECK(driver.who() == Driver::Who::nobody);
  CHECK(woken == 0);
  {
    Sleeper sleeper(driver);
    CHECK(driver.who() == Driver::Who::staying_caller);
    CHECK(driver.arm() == Driver::Rest::in_use);
    CHECK(sleeper.join());
  }
  CHECK(woken >= 1);
  CHECK(driver.who() == Driver::Who::spinning_caller);
  CHECK(driver.who() == Driver::Who::nobody);
}

TEST_CASE("a leader that is busy for long says so, without sleeping") {
  Work work;
  Driver driver(work);
  driver.open(work);
  std::atomic<int> woken{0};
  driver.set_wake_thread([&] { ++woken; });
  work.on_advance = [] { return true; };  // it never has a reason to sleep
  bool stayed = false;
  CHECK(driver.wait([&] { return stayed |= driver.who() == Driver::Who::staying_caller; }, soon()));
  CHECK(work.arms == 0);
  CHECK(woken == 1);
}

TEST_CASE("whoever takes what would have woken the progress thread wakes it, once") {
  Work work;
  Driver driver(work);
  driver.open(work);
  Arrival arrival(driver);
  int woken = 0;
  driver.set_wake_thread([&] { ++woken; });
  const auto arm = [&] {
    CHECK(driver.arm() == Driver::Rest::allowed);
    CHECK(driver.armed());
  };
  arm();
  CHECK(!driver.progress());
  CHECK(woken == 0);
  work.on_advance = [] { return true; };  // by a link
  CHECK(driver.progress());
  CHECK(!driver.armed());
  CHECK(woken == 1);
  CHECK(driver.progress());
  CHECK(woken == 1);
  work.on_advance = [] { return false; };  // by the poller
  arm();
  arrival.arrive();
  CHECK(driver.progress());
  CHECK(woken == 2);
  arm();
  driver.who();  // the thread is awake
  CHECK(!driver.armed());
  work.on_advance = [] { return true; };
  CHECK(driver.progress());
  CHECK(woken == 2);
}

TEST_CASE("without a progress thread, what was taken is armed again") {
  Work work;
  Driver driver(work);
  driver.open(work);
  work.on_advance = [] { return true; };
  CHECK(driver.arm() == Driver::Rest::allowed);
  CHECK(work.arms == 1);
  CHECK(driver.progress());
  CHECK(work.arms == 2);
  CHECK(driver.progress());
  CHECK(work.arms == 2);
}

TEST_CASE("the thread does not sleep where there is work") {
  Work work;
  Driver driver(work);
  driver.open(work);
  work.on_arm = [] { return false; };
  CHECK(driver.arm() == Driver::Rest::work_left);
  CHECK(!driver.armed());
}
