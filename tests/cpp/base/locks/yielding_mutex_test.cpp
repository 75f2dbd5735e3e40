#include "base/locks/yielding_mutex.h"

#include <doctest/doctest.h>

#include <atomic>
#include <mutex>
#include <thread>

namespace fab {
namespace {

TEST_CASE("a thread that takes the mutex over and over lets others in") {
  YieldingMutex<std::mutex> mutex;
  std::atomic<bool> stop{false};
  std::uint64_t turns = 0, visits = 0;
  std::thread busy([&] {
    while (!stop.load()) {
      {
        const std::lock_guard lock(mutex);
        ++turns;
      }
      mutex.give_way();
    }
  });
  for (int i = 0; i < 1000; ++i) {
    const std::lock_guard lock(mutex);
    ++visits;
  }
  stop.store(true);
  busy.join();
  CHECK(visits == 1000);
  CHECK_FALSE(mutex.wanted());
}

TEST_CASE("who waits is seen, and who gives way to a thread that cannot come goes on") {
  YieldingMutex<std::mutex> mutex;
  mutex.lock();
  std::atomic<bool> entered{false};
  std::thread waiter([&] {
    const std::lock_guard lock(mutex);
    entered.store(true);
  });
  while (!mutex.wanted()) std::this_thread::yield();
  mutex.give_way();  // in vain: the mutex is held
  CHECK_FALSE(entered.load());
  CHECK_FALSE(mutex.try_lock());
  mutex.unlock();
  waiter.join();
  CHECK(entered.load());
}

}  // namespace
}  // namespace fab
