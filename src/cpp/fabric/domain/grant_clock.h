#pragma once

#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <thread>

#include "base/deadline.h"
#include "base/locks/mutex.h"
#include "base/process/process.h"

namespace fab {

class Grant;

// Revokes grants when their time is over. Requests that begin later are refused without it; it ends what is
// under way then. A thread of its own does that, which the first grant starts, or else expire(). Safe from
// any thread.
class GrantClock final {
 public:
  explicit GrantClock(bool threaded) : threaded_(threaded), state_(std::make_shared<State>()) {}
  ~GrantClock() { stop(); }
  GrantClock(const GrantClock&) = delete;
  GrantClock& operator=(const GrantClock&) = delete;

  // Throws if the thread cannot be started, or memory runs out; then nothing is watched.
  void watch(Deadline until, const std::weak_ptr<Grant>& grant);
  // Under manual progress: revokes those whose time is over.
  void expire();
  // From now on no grant is revoked.
  void stop() noexcept;

 private:
  using Grants = std::multimap<Clock::time_point, std::weak_ptr<Grant>>;
  // Shared with the thread, which may outlive the clock.
  struct State {
    Mutex mutex;
    std::condition_variable wake;
    Grants grants FAB_GUARDED_BY(mutex);
    std::size_t sweep_at FAB_GUARDED_BY(mutex) = 64;
    bool stop FAB_GUARDED_BY(mutex) = false;
  };
  static void expire(State& state) FAB_REQUIRES(state.mutex);
  static void run(State& state);

  const bool threaded_;
  const std::uint32_t fork_generation_ = fork_generation();
  const std::shared_ptr<State> state_;
  std::thread thread_;
};

}  // namespace fab
