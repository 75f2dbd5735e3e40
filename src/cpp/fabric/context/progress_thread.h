#pragma once

#include <atomic>
#include <list>
#include <memory>
#include <mutex>
#include <thread>

#include "base/locks/mutex.h"
#include "base/locks/yielding_mutex.h"
#include "base/network/poller.h"

namespace fab {

class Context;

// Serves the contexts of one domain while their owners do something else. Sleeps in the kernel when nothing
// moves, unless it is busy: then it polls all the time, and peers need not wake it. A context that callers
// drive themselves is left alone. It comes back when a caller that slept or stayed for long stops driving;
// after other callers a timer of some 100 µs, which runs only then, finds that nobody drives any more.
class ProgressThread final : public std::enable_shared_from_this<ProgressThread> {
 public:
  // Starts the thread, which holds the object as well.
  static std::shared_ptr<ProgressThread> start(bool busy);
  ProgressThread(const ProgressThread&) = delete;
  ProgressThread& operator=(const ProgressThread&) = delete;

  void add(std::shared_ptr<Context> context);
  // Returns when the thread no longer uses it. May be called by the thread itself (from
  // Driver::on_callbacks).
  void remove(Context& context);
  bool is_this_thread() const noexcept { return std::this_thread::get_id() == id_.load(); }
  // Stops the thread, once, and waits for its end. The thread itself may call this from a callback: then it
  // ends after the callback, and holds `owner` until it has let go of its contexts.
  void end(std::shared_ptr<void> owner) noexcept;

 private:
  class Slot;
  explicit ProgressThread(bool busy);
  void run();
  void let_go() FAB_EXCLUDES(mutex_, arrivals_mutex_);
  // When to look again without being woken.
  enum class Again { never, soon, at_once };
  Again take_back() FAB_REQUIRES(mutex_);

  const bool busy_;
  Poller poller_;
  Waker waker_{poller_};
  YieldingMutex<std::recursive_mutex> mutex_;  // held while the thread works on them
  std::list<Slot> slots_ FAB_GUARDED_BY(mutex_);
  // Another than mutex_, which may be held while a callback waits for the caller of add().
  Mutex arrivals_mutex_;
  std::list<Slot> arrivals_ FAB_GUARDED_BY(arrivals_mutex_);
  std::atomic<bool> stop_{false};
  std::atomic<std::thread::id> id_{};
  std::shared_ptr<void> owner_;  // of the contexts; set by the thread alone
  std::thread thread_;
};

}  // namespace fab
