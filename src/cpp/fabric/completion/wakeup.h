#pragma once

#include <atomic>
#include <cstdint>
#include <functional>

namespace fab {

// Lets a queue or counter wake those who wait for it, at the cost of one load when nobody does.
class Wakeup {
 public:
  void set(std::function<void()> wake) { wake_ = std::move(wake); }
  void add_waiter() noexcept { waiters_.fetch_add(1, std::memory_order_seq_cst); }
  void remove_waiter() noexcept { waiters_.fetch_sub(1, std::memory_order_relaxed); }
  void wake() const noexcept {
    if (wake_) wake_();
  }
  // To be called after the change that a waiter looks for.
  void notify() const noexcept {
    std::atomic_thread_fence(std::memory_order_seq_cst);
    if (waiters_.load(std::memory_order_relaxed) != 0 && wake_) wake_();
  }

 private:
  std::atomic<std::uint32_t> waiters_{0};
  std::function<void()> wake_;
};

}  // namespace fab
