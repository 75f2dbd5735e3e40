#pragma once

#include <condition_variable>
#include <cstdint>
#include <list>
#include <memory>
#include <new>
#include <thread>
#include <utility>

#include "base/locks/mutex.h"
#include "base/process/process.h"
#include "base/process/quiet_thread.h"

namespace fab {

// Handles items one after the other: on a thread of its own, which the first item starts, or in drain(). Safe
// from any thread.
template <class Item>
class Worker final {
 public:
  using Items = std::list<Item>;
  using Handle = void (*)(Item&) noexcept;

  Worker(const char* name, Handle handle) : name_(name), state_(std::make_shared<State>(handle)) {}
  ~Worker() { stop(); }
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  // Takes all of `items`, to be handled by the thread if `thread` is set, and by drain() if not. Throws if
  // the thread cannot be started, and returns false after stop(); nothing is taken then.
  bool push(Items& items, bool thread) {
    const LockGuard lock(state_->mutex);
    if (state_->stop) return false;
    if (thread && !thread_.joinable()) thread_ = start_quiet_thread(name_, [state = state_] { run(*state); });
    state_->waiting.splice(state_->waiting.end(), items);
    if (thread) state_->wake.notify_one();
    return true;
  }
  // Handles what waits, in this thread.
  void drain() noexcept {
    const std::shared_ptr<State> state = state_;  // outlives the worker, which a handler may destroy
    const LockGuard lock(state->mutex);
    handle_all(*state);
  }
  // From now on push() takes nothing. What waits is handled before this returns, unless a handler calls it.
  void stop() noexcept {
    if (fork_generation_ != fork_generation()) return leave();
    std::thread thread;
    {
      const LockGuard lock(state_->mutex);
      state_->stop = true;
      thread.swap(thread_);
    }
    state_->wake.notify_all();
    if (!thread.joinable()) return drain();
    // A handler may drop the last reference to the worker's owner, and then this is the worker's own thread.
    if (thread.get_id() == std::this_thread::get_id())
      thread.detach();
    else
      thread.join();
  }

 private:
  // Shared with the thread, which may outlive the worker.
  struct State {
    explicit State(Handle with) noexcept : handle(with) {}
    const Handle handle;
    Mutex mutex;
    std::condition_variable wake;
    Items waiting FAB_GUARDED_BY(mutex);
    bool stop FAB_GUARDED_BY(mutex) = false;
  };

  static void handle_all(State& state) noexcept FAB_REQUIRES(state.mutex) {
    while (!state.waiting.empty()) {
      Items next;
      next.splice(next.begin(), state.waiting, state.waiting.begin());
      const Unlocked unlocked(state.mutex);
      state.handle(next.front());
      next.clear();  // items are destroyed without the lock
    }
  }
  static void run(State& state) {
    UniqueLock lock(state.mutex);
    for (;;) {
      state.wake.wait(lock.native(),
                      [&]() FAB_REQUIRES(state.mutex) { return state.stop || !state.waiting.empty(); });
      if (state.waiting.empty()) return;
      handle_all(state);
    }
  }
  // In a child of fork() the thread is the parent's, and whoever held the lock is not here to release it.
  void leave() noexcept {
    if (thread_.joinable()) [[maybe_unused]]
      auto* const left = new (std::nothrow) std::thread(std::move(thread_));
  }

  const char* const name_;
  const std::uint32_t fork_generation_ = fork_generation();
  const std::shared_ptr<State> state_;
  std::thread thread_;
};

}  // namespace fab
