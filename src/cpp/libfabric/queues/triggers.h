#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <thread>

#include "base/locks/mutex.h"
#include "fabric/completion/counter.h"
#include "fabric/domain/domain_core.h"

namespace fab::fi {

// What begins when a counter has reached a value (fi_trigger(3)). A thread of its own, which the first of
// them starts, waits for the counters of all. Safe from any thread.
class Triggers final {
 public:
  // What is called in the end, once: to begin, or (false) to forget what would have begun.
  using Begin = std::function<void(bool)>;

  explicit Triggers(std::shared_ptr<DomainCore> core) noexcept : core_(std::move(core)) {}
  ~Triggers() { end(); }
  Triggers(const Triggers&) = delete;
  Triggers& operator=(const Triggers&) = delete;

  // `begin` is called by the thread. Throws without effect if there can be no thread.
  void add(const void* owner, std::shared_ptr<Counter> counter, std::uint64_t threshold, Begin begin);
  // Forgets what this owner has added. When it returns, nothing of it is running.
  void forget(const void* owner) noexcept;
  // Forgets everything, and ends the thread. To be called before the domain of the core closes.
  void end() noexcept;

 private:
  struct Waiting {
    const void* owner;
    std::shared_ptr<Counter> counter;
    std::uint64_t threshold;
    Begin begin;
    bool due() const noexcept { return counter->value() >= threshold; }
  };
  using List = std::list<Waiting>;

  void run();
  // One that may begin; none: nothing may.
  List take_ready() FAB_REQUIRES(mutex_);
  bool any_ready() FAB_EXCLUDES(mutex_);
  static void drop(List& dropped) noexcept;

  const std::shared_ptr<DomainCore> core_;
  Mutex mutex_;
  std::condition_variable changed_;
  List waiting_ FAB_GUARDED_BY(mutex_);
  const void* running_ FAB_GUARDED_BY(mutex_) = nullptr;  // whose operation begins now
  bool ending_ FAB_GUARDED_BY(mutex_) = false;
  bool disturbed_ FAB_GUARDED_BY(mutex_) = false;         // the thread is to look at the list again
  std::shared_ptr<Counter> bell_ FAB_GUARDED_BY(mutex_);  // wakes the thread where it waits for counters
  std::thread thread_;
};

}  // namespace fab::fi
