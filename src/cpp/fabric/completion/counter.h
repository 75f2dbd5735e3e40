#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <utility>

#include "base/lifetime.h"
#include "fabric/completion/wakeup.h"
#include "fabric/segment/segment.h"

namespace fab {

// Counts completions or remote accesses. It lives in the domain's segment, so that a peer on the node raises
// it by itself, after the data it counts: whoever reads value() sees the data that it counts.
class Counter final {
 public:
  // `take_notices` reads all notices that peers have left in the domain.
  Counter(CounterSlot& slot, std::uint32_t index, std::function<void()> take_notices = {}) noexcept
      : slot_(slot),
        index_(index),
        take_notices_(std::move(take_notices)),
        taken_(slot.notices.load(std::memory_order_relaxed)) {}

  std::uint64_t value() const noexcept { return slot_.value.load(std::memory_order_acquire); }
  // The value, for a program. A peer raises it when the notice of its put is in the ring, before it is read
  // here. When this returns, the entries of all puts that it counts are in their queues. Takes the locks of
  // contexts if there are such notices.
  std::uint64_t read() {
    const std::uint64_t value = this->value();
    if (noticed()) take_notices();
    return value;
  }
  // The two parts of read() behind its first line.
  bool noticed() const noexcept {
    return slot_.notices.load(std::memory_order_acquire) != taken_.load(std::memory_order_acquire);
  }
  void take_notices() {
    const std::uint64_t there = slot_.notices.load(std::memory_order_acquire);
    if (take_notices_) take_notices_();
    taken_.store(there, std::memory_order_release);
  }
  std::uint64_t errors() const noexcept { return slot_.errors.load(std::memory_order_acquire); }
  void add(std::uint64_t amount) noexcept {
    slot_.value.fetch_add(amount, std::memory_order_seq_cst);
    notify();
  }
  void fail() noexcept { add_errors(1); }
  void add_errors(std::uint64_t amount) noexcept {
    slot_.errors.fetch_add(amount, std::memory_order_seq_cst);
    notify();
  }
  void set(std::uint64_t value) noexcept {
    slot_.value.store(value, std::memory_order_seq_cst);
    notify();
  }
  void set_errors(std::uint64_t errors) noexcept {
    slot_.errors.store(errors, std::memory_order_seq_cst);
    notify();
  }
  void add_waiter() noexcept { slot_.waiters.fetch_add(1, std::memory_order_seq_cst); }
  void remove_waiter() noexcept { slot_.waiters.fetch_sub(1, std::memory_order_relaxed); }
  Wakeup& wakeup() noexcept FAB_LIFETIME_BOUND { return wakeup_; }
  std::uint32_t index() const noexcept { return index_; }

 private:
  void notify() const noexcept {
    if (slot_.waiters.load(std::memory_order_seq_cst) != 0) wakeup_.wake();
  }
  CounterSlot& slot_;
  std::uint32_t index_;
  Wakeup wakeup_;
  const std::function<void()> take_notices_;
  std::atomic<std::uint64_t> taken_;  // of CounterSlot::notices
};

}  // namespace fab
