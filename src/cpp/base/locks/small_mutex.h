#pragma once

#include <sched.h>

#include <atomic>
#include <chrono>
#include <cstdint>

#include "base/deadline.h"
#include "base/locks/thread_safety.h"

namespace fab {

// A mutex of two bytes, for objects of which there are millions and which two threads rarely lock at once.
class FAB_CAPABILITY("mutex") SmallMutex {
 public:
  SmallMutex() noexcept = default;
  SmallMutex(const SmallMutex&) = delete;
  SmallMutex& operator=(const SmallMutex&) = delete;
  void lock() noexcept FAB_ACQUIRE() {
    std::uint16_t free = 0;
    if (!state_.compare_exchange_strong(free, kTaken, std::memory_order_acquire, std::memory_order_relaxed))
      wait();
  }
  void unlock() noexcept FAB_RELEASE() {
    if (state_.fetch_sub(kTaken, std::memory_order_release) != kTaken) state_.notify_one();
  }

  // To be called without the lock by a thread that takes it over and over: lets one of those in who wait.
  // Returns when nobody waits or one of them has entered, and after kMostYields tries in any case, because
  // a waiter may get no processor.
  void give_way() const noexcept FAB_EXCLUDES(this) {
    const auto before = state_.load(std::memory_order_relaxed);
    for (int i = 0; i < kMostYields; ++i) {
      const auto now = state_.load(std::memory_order_relaxed);
      if (now < kWaiter || (now & kTaken) || now < before) return;
      ::sched_yield();
    }
  }

 private:
  static constexpr std::uint16_t kTaken = 1, kWaiter = 2;  // the rest counts those who wait
  static constexpr int kMostYields = 1000;

  void wait() noexcept {
    std::uint16_t seen = state_.fetch_add(kWaiter, std::memory_order_relaxed) + kWaiter;
    for (;;) {
      if (seen & kTaken) {
        state_.wait(seen, std::memory_order_relaxed);
        seen = state_.load(std::memory_order_relaxed);
      } else if (state_.compare_exchange_weak(seen, static_cast<std::uint16_t>((seen - kWaiter) | kTaken),
                                              std::memory_order_acquire, std::memory_order_relaxed)) {
        return;
      }
    }
  }

  std::atomic<std::uint16_t> state_{0};
};

// Calls step(deadline) until it returns true, or returns false when the time is over. `step` takes the mutex
// by itself, has no more time each time than others may be kept waiting for the mutex, and can be called
// again.
template <class Step>
bool step_by_step(const SmallMutex& mutex, Deadline deadline, const Step& step) {
  constexpr std::chrono::milliseconds kStep(5);
  while (!step(deadline.sooner(kStep))) {
    mutex.give_way();  // also when the time is over, which may be that of a step of somebody else's
    if (deadline.passed()) return false;
  }
  return true;
}

}  // namespace fab
