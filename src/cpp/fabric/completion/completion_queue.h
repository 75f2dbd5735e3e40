#pragma once

#include <cstdlib>
#include <memory>
#include <span>

#include "base/fd.h"
#include "base/lifetime.h"
#include "base/locks/mutex.h"
#include "fabric/completion/wakeup.h"
#include "fabric/types/types.h"

namespace fab {

// A ring of completions, shared by any number of contexts and threads. When it is full, a queue that the user
// sized refuses operations before they start (reserve()). Entries that cannot be refused (remote data) are
// counted as lost, and the next read throws Error(overrun). A queue that an endpoint made for itself forgets
// its oldest entries instead: the operations hold their outcomes anyway.
class CompletionQueue final {
 public:
  enum class WhenFull { refuse, forget_oldest };
  CompletionQueue(std::size_t size, WhenFull when_full);

  // Reserves a place that push() of an operation's outcome will use. False: full.
  bool reserve() noexcept;
  void unreserve() noexcept;
  void push(const Completion& completion) noexcept;         // into a reserved place
  void push_remote(const Completion& completion) noexcept;  // without a reserved place

  // Takes up to out.size() entries, oldest first. Throws Error(overrun) once after entries were lost.
  std::size_t read(std::span<Completion> out);
  bool empty() const noexcept;
  // An eventfd that is readable while there are entries; made on first use.
  int event_fd();
  Wakeup& wakeup() noexcept FAB_LIFETIME_BOUND { return wakeup_; }
  std::size_t size() const noexcept { return size_; }

 private:
  // Where in the ring the entry lies that `later` others precede. A division would cost as much as the lock.
  std::size_t place_of(std::size_t later) const noexcept FAB_REQUIRES(mutex_) {
    const std::size_t at = head_ + later;
    return at < size_ ? at : at - size_;
  }
  void append(const Completion& completion) noexcept FAB_REQUIRES(mutex_);
  bool forget_own() noexcept FAB_REQUIRES(mutex_);  // false: all entries tell of peers

  mutable Mutex mutex_;
  const std::size_t size_;
  // Memory of a large queue costs nothing before it is written to, and most queues are never full.
  struct Free {
    void operator()(Completion* ring) const noexcept { std::free(ring); }
  };
  const std::unique_ptr<Completion[], Free> ring_;
  std::size_t head_ FAB_GUARDED_BY(mutex_) = 0;
  std::size_t count_ FAB_GUARDED_BY(mutex_) = 0;
  std::size_t reserved_ FAB_GUARDED_BY(mutex_) = 0;
  std::uint64_t lost_ FAB_GUARDED_BY(mutex_) = 0;
  const WhenFull when_full_;
  OwnFd event_ FAB_GUARDED_BY(mutex_);
  Wakeup wakeup_;
};

}  // namespace fab
