#pragma once

#include <atomic>

#include "base/locks/thread_safety.h"

namespace fab {

// A mutex of one byte, for objects of which there are millions and which two threads rarely lock at once.
class FAB_CAPABILITY("mutex") SmallMutex {
 public:
  SmallMutex() noexcept = default;
  SmallMutex(const SmallMutex&) = delete;
  SmallMutex& operator=(const SmallMutex&) = delete;
  void lock() noexcept FAB_ACQUIRE() {
    while (taken_.exchange(true, std::memory_order_acquire)) taken_.wait(true, std::memory_order_relaxed);
  }
  void unlock() noexcept FAB_RELEASE() {
    taken_.store(false, std::memory_order_release);
    taken_.notify_one();
  }

 private:
  std::atomic<bool> taken_{false};
};

}  // namespace fab
