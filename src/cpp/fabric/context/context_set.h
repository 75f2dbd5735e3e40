#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "base/deadline.h"
#include "base/locks/mutex.h"
#include "base/process/process.h"
#include "fabric/context/context.h"
#include "fabric/context/progress_thread.h"
#include "fabric/context/remote_counters.h"
#include "fabric/segment/segment.h"

namespace fab {

// The open contexts of a domain, and the thread that serves them under automatic progress. Safe from any
// thread.
class ContextSet final {
 public:
  // Peers learn from `segment` which context they wake for the counters of the domain.
  explicit ContextSet(Segment& segment) : segment_(segment), counters_(segment) {}
  ContextSet(const ContextSet&) = delete;
  ContextSet& operator=(const ContextSet&) = delete;

  void start_thread(bool busy) {
    const LockGuard lock(mutex_);
    thread_ = ProgressThread::start(busy);
  }  // before the first context

  // Opens a context in the lowest free slot. `make` runs under the lock of the set and may throw.
  using Make = std::function<std::shared_ptr<Context>(std::uint16_t slot)>;
  std::shared_ptr<Context> open(const Make& make);
  // What counts the accesses of peers through them.
  RemoteCounters& counters() noexcept FAB_LIFETIME_BOUND { return counters_; }
  std::uint32_t next_endpoint_number() noexcept { return endpoint_numbers_.fetch_add(1) + 1; }
  // Closes contexts: everything that is outstanding fails with `canceled`. Each context gives its peers a
  // while to take in its last messages. All contexts wait for that at the same time, with two exceptions: the
  // caller is the thread that serves them, or `apart` says that they must close one after the other. In a
  // child of fork() nothing happens, because the contexts are the parent's.
  void close(std::span<const std::shared_ptr<Context>> contexts, bool apart = false);
  void close_all(bool apart);
  void close(Context& context);
  // Calls `decide` with the number of open contexts, while no context can be opened or closed. `decide` may
  // throw; decide() itself needs no memory.
  template <class Decide>
  void decide(const Decide& decide) const {
    const LockGuard lock(mutex_);
    decide(contexts_.size());
  }
  // Ends the thread, when all contexts are closed. `owner` has this set, and what its contexts use: where a
  // callback that the thread runs calls this, the thread holds the owner until it has ended.
  void end_thread(std::shared_ptr<void> owner) noexcept;

  // Drives the first context until `done()` or the deadline. Without a context it waits for wake(). `others`:
  // nobody else drives the other contexts, so they are driven here as well.
  void wait(const std::function<bool()>& done, Deadline deadline, bool others);
  void progress();
  void wake() noexcept;  // wakes those in wait()
  // Calls `visit` with each open context. Contexts may be opened and closed meanwhile.
  template <class Visit>
  void visit(const Visit& visit) {
    visit_from(visit, false);
  }
  // Calls `visit` also with contexts that are closing in another thread: whoever takes memory away has to
  // reach all that may be moving bytes.
  template <class Visit>
  void visit_all(const Visit& visit) {
    visit_from(visit, true);
  }

 private:
  bool inherited() const noexcept { return fork_generation_ != fork_generation(); }
  bool is_thread() const noexcept;  // whether the caller is the thread that serves the contexts
  std::shared_ptr<Context> first() const;
  std::shared_ptr<Context> from(std::size_t slot, bool closing) const;
  template <class Visit>
  void visit_from(const Visit& visit, bool closing) {
    for (auto context = from(0, closing); context; context = from(context->slot() + std::size_t{1}, closing))
      visit(*context);
  }
  std::vector<std::shared_ptr<Context>> all() const noexcept;
  void choose_lead() FAB_REQUIRES(mutex_);

  Segment& segment_;
  RemoteCounters counters_;
  const std::uint32_t fork_generation_ = fork_generation();
  std::atomic<std::uint32_t> endpoint_numbers_{0};
  mutable Mutex mutex_;
  std::vector<std::shared_ptr<Context>> contexts_ FAB_GUARDED_BY(mutex_);  // open ones
  std::vector<std::shared_ptr<Context>> closing_
      FAB_GUARDED_BY(mutex_);  // which have their slots until the end
  std::shared_ptr<ProgressThread> thread_
      FAB_GUARDED_BY(mutex_);  // in a child of fork() it does not exist, and nobody ends it
  Mutex lead_mutex_;           // may be taken while a context's lock is held
  Context* lead_ FAB_GUARDED_BY(lead_mutex_) = nullptr;  // the context that wait() leads
  Mutex idle_mutex_;                                     // for wait() while there is no context
  std::condition_variable idle_wake_;
};

}  // namespace fab
