#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <utility>

#include "base/deadline.h"
#include "base/lifetime.h"
#include "base/locks/mutex.h"
#include "base/locks/overlap_watch.h"
#include "base/locks/yielding_mutex.h"
#include "base/network/poller.h"
#include "base/process/process.h"
#include "fabric/memory/slice.h"
#include "fabric/provider.h"

namespace fab {

// Tidies up after the driver. Called under its lock.
class Tidier {
 public:
  // Something has moved, or, with `path_ended`, a link has said that a path ended (Driver::path_ended).
  virtual void tidy(bool path_ended) noexcept = 0;

 protected:
  ~Tidier() = default;
};

// Who drives a context, and the lock under which that happens. Of the callers that wait, the first one leads:
// it polls, then sleeps in the kernel; the others follow. While callers drive, the domain's progress thread
// leaves the context alone. All that uses the context does so in a turn, which moves one slice at most
// (src/cpp/DECISIONS.md, "Slices"). Slices begin here. A link that begins one itself says why at
// the place: it takes in what a peer that has gone left behind, or has to read all that has come before it
// judges who is silent.
class FAB_CAPABILITY("context") Driver final {
 public:
  // The lock alone, for what moves nothing. Callbacks that came due while it was held run in
  // unlock(). Fields and functions that it guards name the driver as what has to be held.
  class FAB_SCOPED_CAPABILITY Lock;
  // A turn under the lock. At its end, also after an exception, the threads that it concerns are woken.
  class FAB_SCOPED_CAPABILITY Turn;

  explicit Driver(Tidier& tidier);
  Driver(const Driver&) = delete;
  Driver& operator=(const Driver&) = delete;

  // Throws Error(closed) in a child of fork(), where the context is the parent's.
  void check_process() const;
  bool inherited() const noexcept { return fork_generation_ != fork_generation(); }

  // --- for callers, from any thread
  // Drives until `done()` (evaluated with the lock held) or the deadline; true if done.
  bool wait(const std::function<bool()>& done, Deadline deadline);
  // One turn of progress. Where somebody else leads, waits until that caller moved something.
  void turn();
  // Moves what can be moved without waiting; false if nothing moved or if somebody else is driving. A caller
  // that calls it all the time need not `look` at the poller, which is a system call, in each turn.
  bool progress(bool look = true);
  // Wakes a leader that sleeps. May be called with or without the lock.
  void wake() noexcept;
  // Does not wait for the lock; false: somebody holds it. Who gets it makes a Turn of it.
  bool try_lock() const FAB_TRY_ACQUIRE(true) { return mutex_.try_lock(); }
  void unlock(Lock& lock) FAB_RELEASE();
  // Leaves callbacks that came due to the next turn of whoever drives.
  void unlock_quietly(Lock& lock) FAB_RELEASE();
  // Sleeps for `time` without the lock, and then begins the next turn.
  void pause(std::chrono::nanoseconds time) FAB_REQUIRES(this);
  // Does nothing: says that the lock of this driver is held, where it is known by another name.
  void assert_held() const noexcept FAB_ASSERT_HELD(this) {}
  // The endpoint that is driven, from before the first use until close(), after which nobody waits. Under the
  // lock.
  void open(Endpoint& endpoint) noexcept FAB_REQUIRES(this) { endpoint_ = &endpoint; }
  void close() noexcept FAB_REQUIRES(this) { endpoint_ = nullptr; }

  // --- for the progress thread
  int poll_fd() const noexcept { return poller_.fd(); }
  // To be called before the thread sleeps on poll_fd(): whether it may. It may not while there is work left
  // or while somebody holds the lock.
  enum class Rest { allowed, work_left, in_use };
  Rest arm() noexcept FAB_EXCLUDES(this);
  enum class Who { nobody, spinning_caller, staying_caller };
  // The kind of caller that drives now, or that did since the last call. Ends what arm() allowed.
  Who who() noexcept;
  // Whether what comes will still wake the thread after arm() allowed it to sleep.
  bool armed() const noexcept { return armed_.load(std::memory_order_relaxed); }
  // Sets the function that wakes the thread; null: there is no thread. It is called with the lock held, when
  // a caller that slept or stayed for long stops driving, and when a caller took an event that would have
  // woken the thread. After this returns, the function that was set before is not called any more.
  void set_wake_thread(std::function<void()> wake);

  // Asks for a call of on_callbacks, which whoever makes the progress makes after unlocking. Under the lock.
  void request_callbacks() noexcept FAB_REQUIRES(this) { callbacks_due_ = true; }
  std::function<void()> on_callbacks;  // set before first use

  // --- lent to links, for use under the lock
  Poller& poller() noexcept FAB_LIFETIME_BOUND { return poller_; }
  Slice& slice() noexcept FAB_LIFETIME_BOUND { return slice_; }
  void path_ended() noexcept FAB_REQUIRES(this) { path_ended_ = true; }  // EndpointServices::on_path_ended
  OverlapWatch& moving() noexcept FAB_LIFETIME_BOUND {
    return moving_;
  }  // watches what the lock keeps apart, for tests

 private:
  template <class AnyMutex>
  friend class Unlocked;
  void lock() const FAB_ACQUIRE() { mutex_.lock(); }
  void unlock() const FAB_RELEASE() { mutex_.unlock(); }

  // Who drives, in one word. It is changed under the lock only, so that no change needs a locked instruction,
  // and is read by any thread.
  static constexpr std::uint64_t kAsleep = 1;          // the leader sleeps on the poller
  static constexpr std::uint64_t kStaying = 2;         // the leader will call wake_thread_
  static constexpr std::uint64_t kCaller = 4;          // added for each caller that waits
  static constexpr std::uint64_t kRound = 1ull << 32;  // added each time that a caller came or went
  static constexpr std::uint64_t kCallers = kRound - kCaller;
  class Caller;
  class Leader;

  std::uint64_t state() const noexcept { return state_.load(std::memory_order_relaxed); }
  void change(std::uint64_t state) noexcept FAB_REQUIRES(this) {
    state_.store(state, std::memory_order_relaxed);
  }
  bool move(bool look) noexcept FAB_REQUIRES(this);
  bool look_at_poller() noexcept FAB_REQUIRES(this);
  void wake_thread() noexcept FAB_REQUIRES(this);
  void wake_followers() noexcept FAB_REQUIRES(this) {
    if (followers_) followers_wake_.notify_all();
  }
  void follow(Deadline deadline) FAB_REQUIRES(this);
  // At the end of a turn: whether the lock has to go to those who wait for it. Short turns may follow each
  // other until they make a slice, because passing the lock on takes longer than they do.
  bool owes_lock() noexcept FAB_REQUIRES(this) {
    moved_before_others_ = mutex_.wanted() ? moved_before_others_ + slice_.used() : 0;
    if (moved_before_others_ < Slice::kBytes) return false;
    moved_before_others_ = 0;
    return true;
  }

  Tidier& tidier_;
  const std::uint32_t fork_generation_ = fork_generation();
  Poller poller_;
  Waker waker_{poller_};
  OverlapWatch moving_;

  mutable YieldingMutex<std::mutex> mutex_;  // of the capability that the driver is
  Slice slice_ FAB_GUARDED_BY(this);
  // Bytes, in turns since others began to wait for the lock.
  std::uint64_t moved_before_others_ FAB_GUARDED_BY(this) = 0;
  Endpoint* endpoint_ FAB_GUARDED_BY(this) = nullptr;  // null: closed
  bool path_ended_ FAB_GUARDED_BY(this) = false;
  bool callbacks_due_ FAB_GUARDED_BY(this) = false;
  bool led_ FAB_GUARDED_BY(this) = false;
  unsigned followers_ FAB_GUARDED_BY(this) = 0;
  std::condition_variable_any followers_wake_;
  std::function<void()> wake_thread_ FAB_GUARDED_BY(this);
  unsigned turns_ FAB_GUARDED_BY(this) = 0;        // of move() since the poller was looked at
  unsigned clock_turns_ FAB_GUARDED_BY(this) = 4;  // of a leader between looks at the clock
  // Between looks at the poller; follows what they found.
  std::chrono::nanoseconds poller_period_ FAB_GUARDED_BY(this);
  // How long a leader polls before it sleeps; follows what paid off.
  std::chrono::nanoseconds spin_ FAB_GUARDED_BY(this);

  std::atomic<std::uint64_t> state_{0};
  // armed(): set under the lock, taken back under the lock or by the progress thread.
  std::atomic<bool> armed_{false};
  std::uint64_t seen_ = 0;  // state() when the progress thread asked last; used by that thread only
};

class FAB_SCOPED_CAPABILITY Driver::Lock final {
 public:
  explicit Lock(const Driver& driver) FAB_ACQUIRE(driver) : lock_(driver.mutex_) {}
  Lock(const Driver& driver, std::adopt_lock_t) FAB_REQUIRES(driver)
      : lock_(driver.mutex_, std::adopt_lock) {}
  Lock(const Lock&) = delete;
  Lock& operator=(const Lock&) = delete;
  ~Lock() FAB_RELEASE() = default;
  void lock() FAB_ACQUIRE() { lock_.lock(); }
  void unlock() FAB_RELEASE() { lock_.unlock(); }

 private:
  std::unique_lock<YieldingMutex<std::mutex>> lock_;
};

inline void Driver::unlock(Lock& lock) {
  if (path_ended_) tidier_.tidy(std::exchange(path_ended_, false));
  const bool callbacks = std::exchange(callbacks_due_, false);
  lock.unlock();
  if (callbacks && on_callbacks) on_callbacks();
}

inline void Driver::unlock_quietly(Lock& lock) {
  if (path_ended_) tidier_.tidy(std::exchange(path_ended_, false));
  if (callbacks_due_) waker_.wake();  // whoever sleeps on the poller
  lock.unlock();
}

class FAB_SCOPED_CAPABILITY Driver::Turn final {
 public:
  // Whether callbacks that are due run at the end of the turn, or in the next one of whoever drives: who
  // holds another lock must not run them.
  enum class Callbacks { now, later };
  explicit Turn(Driver& driver, Callbacks callbacks = Callbacks::now) FAB_ACQUIRE(driver)
      : driver_(driver), lock_(driver), callbacks_(callbacks) {
    driver.slice_.begin();
  }
  // After Driver::try_lock().
  Turn(Driver& driver, std::adopt_lock_t) FAB_REQUIRES(driver)
      : driver_(driver), lock_(driver, std::adopt_lock) {
    driver.slice_.begin();
  }
  Turn(const Turn&) = delete;
  Turn& operator=(const Turn&) = delete;
  ~Turn() FAB_RELEASE() {
    driver_.wake_followers();  // one may wait for what settled in this turn
    if (driver_.state() & kAsleep) driver_.wake();
    const bool gives_way = driver_.owes_lock();
    if (callbacks_ == Callbacks::now)
      driver_.unlock(lock_);
    else
      driver_.unlock_quietly(lock_);
    if (gives_way) driver_.mutex_.give_way();
  }
  // Moves what can be moved without waiting.
  bool move() noexcept {
    driver_.assert_held();
    return driver_.move(true);
  }

 private:
  Driver& driver_;
  Lock lock_;
  const Callbacks callbacks_ = Callbacks::now;
};

}  // namespace fab
