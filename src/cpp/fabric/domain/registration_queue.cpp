#include "fabric/domain/registration_queue.h"

#include <utility>

#include "base/process/quiet_thread.h"
#include "fabric/completion/event_queue.h"
#include "fabric/domain/memory_region.h"

namespace fab {

void RegistrationQueue::bind(std::shared_ptr<EventQueue> events) {
  const std::lock_guard lock(mutex_);
  bound_ = std::move(events);
}

std::shared_ptr<EventQueue> RegistrationQueue::bound() const {
  const std::lock_guard lock(mutex_);
  return bound_;
}

void RegistrationQueue::push(std::shared_ptr<MemoryRegion> region, std::shared_ptr<EventQueue> events) {
  std::list<Waiting> made;
  made.push_back({std::move(region), std::move(events), EventQueue::make_place()});
  {
    const std::lock_guard lock(state_->mutex);
    if (!state_->stop) {
      if (threaded_ && !thread_.joinable())
        thread_ = start_quiet_thread("pyfab-register", [state = state_] { run(state); });
      state_->waiting.splice(state_->waiting.end(), made);
      if (threaded_) state_->wake.notify_one();
      return;
    }
  }
  complete(std::move(made.front()));  // nobody else comes to do it
}

void RegistrationQueue::complete(Waiting waiting) noexcept {
  Event& event = waiting.place.front();
  event.type = EventType::registered;
  event.error = waiting.region->complete();
  event.data = waiting.region->id();
  waiting.events->push(std::move(waiting.place));
}

void RegistrationQueue::work() {
  std::unique_lock lock(state_->mutex);
  while (!threaded_ && !state_->waiting.empty()) {
    Waiting next = std::move(state_->waiting.front());
    state_->waiting.pop_front();
    lock.unlock();
    complete(std::move(next));
    lock.lock();
  }
}

void RegistrationQueue::run(const std::shared_ptr<State>& state) {
  std::unique_lock lock(state->mutex);
  for (;;) {
    state->wake.wait(lock, [&] { return state->stop || !state->waiting.empty(); });
    if (state->waiting.empty()) return;
    Waiting next = std::move(state->waiting.front());
    state->waiting.pop_front();
    lock.unlock();
    complete(std::move(next));  // drops what may be the last reference: not under the lock
    lock.lock();
  }
}

void RegistrationQueue::stop() noexcept {
  {
    const std::lock_guard lock(state_->mutex);
    state_->stop = true;
    state_->wake.notify_all();
  }
  if (!thread_.joinable()) return;
  if (thread_.get_id() == std::this_thread::get_id())
    thread_.detach();
  else
    thread_.join();
}

}  // namespace fab
