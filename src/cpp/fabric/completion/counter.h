#pragma once

#include <atomic>
#include <cstdint>

#include "fabric/completion/wakeup.h"
#include "fabric/segment/segment.h"

namespace fab {

// Counts completions or remote accesses. It lives in the domain's segment, so that a peer on the node raises
// it by itself, after the data it counts: whoever reads value() sees the data that it counts.
class Counter final {
 public:
  Counter(CounterCell& cell, std::uint32_t index) noexcept : cell_(cell), index_(index) {}

  std::uint64_t value() const noexcept { return cell_.value.load(std::memory_order_acquire); }
  std::uint64_t errors() const noexcept { return cell_.errors.load(std::memory_order_acquire); }
  void add(std::uint64_t amount) noexcept {
    cell_.value.fetch_add(amount, std::memory_order_seq_cst);
    notify();
  }
  void fail() noexcept {
    cell_.errors.fetch_add(1, std::memory_order_seq_cst);
    notify();
  }
  void set(std::uint64_t value) noexcept {
    cell_.value.store(value, std::memory_order_seq_cst);
    notify();
  }
  void add_waiter() noexcept { cell_.waiters.fetch_add(1, std::memory_order_seq_cst); }
  void remove_waiter() noexcept { cell_.waiters.fetch_sub(1, std::memory_order_relaxed); }
  Wakeup& wakeup() noexcept { return wakeup_; }
  std::uint32_t index() const noexcept { return index_; }

 private:
  void notify() const noexcept {
    if (cell_.waiters.load(std::memory_order_seq_cst) != 0) wakeup_.wake();
  }
  CounterCell& cell_;
  std::uint32_t index_;
  Wakeup wakeup_;
};

}  // namespace fab
