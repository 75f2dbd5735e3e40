#include "fabric/domain/grant_clock.h"

#include <new>
#include <utility>

#include "base/locks/mutex.h"
#include "base/process/quiet_thread.h"
#include "fabric/domain/grant.h"

namespace fab {

void GrantClock::watch(Deadline until, const std::weak_ptr<Grant>& grant) {
  const LockGuard lock(state_->mutex);
  Grants& grants = state_->grants;
  // Without this, grants that were revoked before their time would be kept until then.
  if (grants.size() >= state_->sweep_at) {
    std::erase_if(grants, [](const auto& kept) { return kept.second.expired(); });
    state_->sweep_at = 64 + grants.size() * 2;
  }
  const auto added = grants.emplace(until.at(), grant);
  if (!threaded_ || state_->stop) return;
  try {
    if (!thread_.joinable()) thread_ = start_quiet_thread("pyfab-grants", [state = state_] { run(*state); });
  } catch (...) {
    grants.erase(added);
    throw;
  }
  state_->wake.notify_one();
}

void GrantClock::expire(State& state) {
  while (!state.stop && !state.grants.empty() && state.grants.begin()->first <= Clock::now()) {
    const auto next = state.grants.extract(state.grants.begin());
    const Unlocked unlocked(state.mutex);
    // Its owner waits for a peer that is stopped in the middle of an access; this does not.
    if (const auto grant = next.mapped().lock()) grant->revoke(Deadline::in({}));
  }
}

void GrantClock::expire() {
  const std::shared_ptr<State> state = state_;  // a grant may hold the domain, and with it this clock
  const LockGuard lock(state->mutex);
  if (!threaded_) expire(*state);
}

void GrantClock::run(State& state) {
  UniqueLock lock(state.mutex);
  while (!state.stop) {
    expire(state);
    if (state.stop) return;
    if (state.grants.empty())
      state.wake.wait(lock.native());
    else
      state.wake.wait_until(lock.native(), Clock::time_point(state.grants.begin()->first));
  }
}

void GrantClock::stop() noexcept {
  if (fork_generation_ != fork_generation()) {
    // In a child of fork() the thread is the parent's, and whoever held the lock is not here to release it.
    if (thread_.joinable()) [[maybe_unused]]
      auto* const left = new (std::nothrow) std::thread(std::move(thread_));
    return;
  }
  std::thread thread;
  {
    const LockGuard lock(state_->mutex);
    state_->stop = true;
    thread.swap(thread_);
  }
  state_->wake.notify_all();
  if (!thread.joinable()) return;
  // A grant may have held the last reference to the domain, and then this is the clock's own thread.
  if (thread.get_id() == std::this_thread::get_id())
    thread.detach();
  else
    thread.join();
}

}  // namespace fab
