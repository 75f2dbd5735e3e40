#include "libfabric/queues/triggers.h"

#include <algorithm>
#include <utility>

#include "base/process/quiet_thread.h"

namespace fab::fi {

void Triggers::add(const void* owner, std::shared_ptr<Counter> counter, std::uint64_t threshold,
                   Begin begin) {
  const LockGuard lock(mutex_);
  if (!bell_) bell_ = core_->open_counter();
  List one;
  one.push_back({owner, std::move(counter), threshold, std::move(begin)});
  if (!thread_.joinable()) thread_ = start_quiet_thread("pyfab triggers", [this] { run(); });
  one.front().counter->add_waiter();
  waiting_.splice(waiting_.end(), one);
  disturbed_ = true;
  changed_.notify_all();
  bell_->wakeup().wake();
}

Triggers::List Triggers::take_ready() {
  List one;
  const auto found = std::ranges::find_if(waiting_, &Waiting::due);
  if (found != waiting_.end()) one.splice(one.end(), waiting_, found);
  return one;
}

bool Triggers::any_ready() {
  const LockGuard lock(mutex_);
  if (std::exchange(disturbed_, false) || ending_) return true;
  return std::ranges::any_of(waiting_, &Waiting::due);
}

void Triggers::run() {
  UniqueLock lock(mutex_);
  for (;;) {
    changed_.wait(lock.native(), [&]() FAB_REQUIRES(mutex_) { return ending_ || !waiting_.empty(); });
    if (ending_) return;
    if (List ready = take_ready(); !ready.empty()) {
      Waiting& next = ready.front();
      next.counter->remove_waiter();
      running_ = next.owner;
      {
        const Unlocked unlocked(mutex_);
        next.begin(true);
        ready.clear();  // with what it holds
      }
      running_ = nullptr;
      changed_.notify_all();
      continue;
    }
    const Unlocked unlocked(mutex_);
    core_->wait([this] { return any_ready(); }, Deadline());
  }
}

void Triggers::drop(List& dropped) noexcept {
  for (Waiting& each : dropped) {
    each.counter->remove_waiter();
    each.begin(false);
  }
}

void Triggers::forget(const void* owner) noexcept {
  List dropped;
  {
    UniqueLock lock(mutex_);
    for (auto at = waiting_.begin(); at != waiting_.end();) {
      const auto next = std::next(at);
      if (at->owner == owner) dropped.splice(dropped.end(), waiting_, at);
      at = next;
    }
    changed_.wait(lock.native(), [&]() FAB_REQUIRES(mutex_) { return running_ != owner; });
  }
  drop(dropped);
}

void Triggers::end() noexcept {
  List dropped;
  {
    const LockGuard lock(mutex_);
    ending_ = true;
    dropped.swap(waiting_);
    if (bell_) bell_->wakeup().wake();
    changed_.notify_all();
  }
  if (thread_.joinable()) thread_.join();
  drop(dropped);
}

}  // namespace fab::fi
