#pragma once

#include <atomic>
#include <list>
#include <memory>
#include <mutex>
#include <thread>

#include "base/locks/yielding_mutex.h"
#include "base/network/poller.h"

namespace fab {

class Context;

// Serves the contexts of one domain while their owners do something else. Sleeps in the kernel when nothing
// moves. A context that callers drive themselves is left alone. It comes back when a caller that slept or
// stayed for long stops driving; after other callers a timer of some 100 µs, which runs only then, finds that
// nobody drives any more.
class ProgressThread final {
 public:
  ProgressThread();
  ~ProgressThread();  // stops and joins
  ProgressThread(const ProgressThread&) = delete;
  ProgressThread& operator=(const ProgressThread&) = delete;

  void add(std::shared_ptr<Context> context);
  // Returns when the thread no longer uses it. May be called by the thread itself (from Driver::on_notice).
  void remove(Context& context);
  bool is_this_thread() const noexcept { return std::this_thread::get_id() == thread_.get_id(); }

 private:
  class Slot;
  void run();
  // When to look again without being woken.
  enum class Again { never, soon, at_once };
  Again take_back();

  Poller poller_;
  Waker waker_{poller_};
  YieldingMutex<std::recursive_mutex> mutex_;  // guards slots_; held while the thread works on them
  std::list<Slot> slots_;
  // Guards arrivals_. mutex_ cannot: it may be held while a callback waits for the caller of add().
  std::mutex arrivals_mutex_;
  std::list<Slot> arrivals_;
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

}  // namespace fab
