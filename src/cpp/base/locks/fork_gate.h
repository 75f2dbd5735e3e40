#pragma once

#include <atomic>
#include <cstddef>
#include <new>

#include "base/locks/mutex.h"

namespace fab {

// What ForkGate holds, for the analysis of locks (thread_safety.h). The analysis does not know that a thread
// may take it several times, and warns only where one function does.
struct FAB_CAPABILITY("gate") ForkGateHeld {};
inline ForkGateHeld fork_gate;

// Is held by a thread while it is inside a library that has locks of its own, or has a lock of the whole
// process that a child may need. fork() waits until nobody is, and nobody goes in meanwhile: in the child, a
// lock that another thread held would never be given back.
// Nothing that waits for another thread may be done with it. A thread may take it several times.
class FAB_SCOPED_CAPABILITY ForkGate {
 public:
  ForkGate() noexcept FAB_ACQUIRE_SHARED(fork_gate);
  ~ForkGate() FAB_RELEASE();
  ForkGate(const ForkGate&) = delete;
  ForkGate& operator=(const ForkGate&) = delete;
};

// Something that is made when it is first asked for, in this place, and never freed. No child of fork() finds
// it half made, as it would find a static variable of a function whose first caller is a thread of the
// parent.
template <class T>
class MadeOnce final {
 public:
  // `make` runs with the gate held. Throws what it throws, and makes it again for the next caller then.
  template <class Make>
  T& get(Make make) {
    if (T* const made = made_.load(std::memory_order_acquire)) return *made;
    const ForkGate gate;
    const LockGuard lock(mutex_);
    if (!made_.load(std::memory_order_relaxed))
      made_.store(new (memory_) T(make()), std::memory_order_release);
    return *made_.load(std::memory_order_relaxed);
  }

 private:
  std::atomic<T*> made_{nullptr};
  Mutex mutex_ FAB_ACQUIRED_AFTER(fork_gate);
  alignas(T) std::byte memory_[sizeof(T)]{};
};

}  // namespace fab
