#pragma once

#include <atomic>
#include <cstdint>

#include "base/lifetime.h"
#include "fabric/types/types.h"

namespace fab {

class CompletionQueue;
class Counter;

// One operation of the user: one outcome, however many transfers it became. Whoever started it owns it, and
// keeps it (and the local memory) alive until done(), and, if it has a hook, until the hook was called.
// settle() and the hook run under the lock of the context that moves it.
class Operation {
 public:
  // Called once, after done() became true, with the context's lock held: only notes that there is something
  // to do.
  using Hook = void (*)(Operation&) noexcept;

  Operation() = default;
  Operation(const Operation&) = delete;
  Operation& operator=(const Operation&) = delete;

  // How an operation begins.
  struct Start {
    std::uint32_t transfers = 1;  // that have to settle
    std::uint64_t context = 0;    // of the completion, as are the flags
    std::uint32_t flags = 0;
    CompletionQueue* queue = nullptr;  // null, as the counter: none is told
    Counter* counter = nullptr;
    Hook hook = nullptr;
  };
  void begin(const Start& start) noexcept {
    done_.store(false, std::memory_order_relaxed);
    open_transfers_ = start.transfers;
    completion_ = {};
    completion_.context = start.context;
    completion_.flags = start.flags;
    queue_ = start.queue;
    counter_ = start.counter;
    hook_ = start.hook;
  }
  void expect_more(std::uint32_t transfers) noexcept { open_transfers_ += transfers; }

  // One transfer ended. The first error is the operation's.
  void settle(Errc error, std::uint64_t bytes) noexcept {
    if (error == Errc::ok)
      completion_.length += bytes;
    else if (completion_.error == Errc::ok)
      completion_.error = error;
    if (--open_transfers_ == 0) finish();
  }
  // One transfer ended that was a message, or a receive for messages; `what` is its outcome.
  void end_receive(const Completion& what) noexcept;
  // Puts an entry for one message of a receive for many into the queue. The message's transfer is settled
  // separately.
  void tell(const Completion& what) noexcept;
  // Nothing was posted: the outcome is the caller's exception, not a queue entry.
  void withdraw() noexcept;
  // Gives the operation a number: its transfers are the pieces of one array, and the atomic on it counts once
  // at the target.
  void begin_array() noexcept;
  std::uint32_t array() const noexcept { return array_; }  // unique in this process; 0: no array
  void belongs_to(std::uint32_t array) noexcept {
    array_ = array;
  }  // for a piece that is an operation itself
  // `transfers` that have not settled will not happen, since they were not posted.
  void abandon(std::uint32_t transfers, Errc error) noexcept;

  // Flags of the entry for an error that comes after the operation was settled ahead of the answer.
  std::uint32_t late_flags() const noexcept {
    return completion_.flags | (queue_ ? completion_flag::kLate : 0);
  }

  bool done() const noexcept { return done_.load(std::memory_order_acquire); }
  const Completion& completion() const noexcept FAB_LIFETIME_BOUND {
    return completion_;
  }  // valid once done()

 private:
  void finish() noexcept;

  std::atomic<bool> done_{true};
  std::uint32_t open_transfers_ = 0;
  Completion completion_;
  CompletionQueue* queue_ = nullptr;
  Counter* counter_ = nullptr;
  Hook hook_ = nullptr;
  std::uint32_t array_ = 0;
};

}  // namespace fab
