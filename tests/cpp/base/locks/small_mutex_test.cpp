#include "base/locks/small_mutex.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

#include "base/locks/mutex.h"

namespace fab {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;

TEST_CASE("one thread at a time is inside, and each that waits gets in") {
  SmallMutex mutex;
  constexpr int kThreads = 4, kTurns = 20'000;
  int inside = 0, turns = 0, crowded = 0;
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i)
    threads.emplace_back([&] {
      for (int turn = 0; turn < kTurns; ++turn) {
        const LockGuard lock(mutex);
        crowded += ++inside != 1;
        ++turns;
        --inside;
      }
    });
  for (std::thread& thread : threads) thread.join();
  CHECK(turns == kThreads * kTurns);
  CHECK(crowded == 0);
}

TEST_CASE("what goes on step by step lets others in between") {
  SmallMutex mutex;
  std::atomic<bool> stop{false};
  std::atomic<unsigned> steps{0};
  std::thread busy([&] {
    const bool done = step_by_step(mutex, Deadline(), [&](Deadline) {
      const LockGuard lock(mutex);
      ++steps;
      for (const Deadline end = Deadline::in(microseconds(200)); !end.passed();) {
      }
      return stop.load();
    });
    CHECK(done);
  });
  while (steps.load() == 0) std::this_thread::yield();
  unsigned most = 0;  // steps that began while this thread waited
  for (int i = 0; i < 2000; ++i) {
    const unsigned before = steps.load();
    const LockGuard lock(mutex);
    most = std::max(most, steps.load() - before);
  }
  stop.store(true);
  busy.join();
  CHECK(most < 20);  // one or none, unless the system takes the processor away; hundreds for who is kept out
}

TEST_CASE("steps end with success, or with the time, and each has its share of that") {
  SmallMutex mutex;
  unsigned steps = 0;
  CHECK(step_by_step(mutex, Deadline(), [&](Deadline) { return ++steps == 3; }));
  CHECK(steps == 3);
  CHECK_FALSE(step_by_step(mutex, Deadline::in(milliseconds(0)), [&](Deadline) {
    ++steps;
    return false;
  }));
  CHECK(steps == 4);
  CHECK(step_by_step(mutex, Deadline(), [](Deadline until) { return !until.never(); }));
}

}  // namespace
}  // namespace fab
