#pragma once

#include <sched.h>

#include <atomic>
#include <cstdint>

#include "base/locks/thread_safety.h"

namespace fab {

// A mutex for threads that take it over and over. Such a thread locks again faster than a waiter wakes, so
// others would wait for ever. wanted() says that somebody waits; give_way() lets one of them in.
template <class Mutex>
class FAB_CAPABILITY("mutex") YieldingMutex {
 public:
  void lock() FAB_ACQUIRE() {
    if (mutex_.try_lock()) return;
    waiting_.fetch_add(1, std::memory_order_relaxed);
    mutex_.lock();
    entered_.fetch_add(1, std::memory_order_relaxed);
    waiting_.fetch_sub(1, std::memory_order_relaxed);
  }
  bool try_lock() FAB_TRY_ACQUIRE(true) { return mutex_.try_lock(); }
  void unlock() FAB_RELEASE() { mutex_.unlock(); }

  bool wanted() const noexcept { return waiting_.load(std::memory_order_relaxed) != 0; }

  // To be called without the lock. Returns when nobody waits or when a waiter got the lock, and after
  // kMostYields tries in any case, because a waiter may get no processor.
  void give_way() const noexcept FAB_EXCLUDES(this) {
    const std::uint32_t before = entered_.load(std::memory_order_relaxed);
    for (int i = 0; i < kMostYields && wanted() && entered_.load(std::memory_order_relaxed) == before; ++i)
      ::sched_yield();
  }

 private:
  static constexpr int kMostYields = 1000;
  Mutex mutex_;
  std::atomic<std::uint32_t> waiting_{0}, entered_{0};
};

}  // namespace fab
