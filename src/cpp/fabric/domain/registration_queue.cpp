#include "fabric/domain/registration_queue.h"

#include <utility>

#include "base/locks/mutex.h"
#include "fabric/completion/event_queue.h"
#include "fabric/domain/memory_region.h"

namespace fab {

void RegistrationQueue::bind(std::shared_ptr<EventQueue> events) {
  const LockGuard lock(mutex_);
  bound_ = std::move(events);
}

std::shared_ptr<EventQueue> RegistrationQueue::bound() const {
  const LockGuard lock(mutex_);
  return bound_;
}

void RegistrationQueue::push(std::shared_ptr<MemoryRegion> region, std::shared_ptr<EventQueue> events) {
  Worker<Waiting>::Items made;
  made.push_back({std::move(region), std::move(events), EventQueue::make_place()});
  if (!worker_.push(made, threaded_)) complete(made.front());  // nobody else comes to do it
}

void RegistrationQueue::complete(Waiting& waiting) noexcept {
  Event& event = waiting.place.front();
  event.type = EventType::registered;
  event.error = waiting.region->complete();
  event.data = waiting.region->id();
  waiting.events->push(std::move(waiting.place));
}

void RegistrationQueue::work() {
  if (!threaded_) worker_.drain();
}

}  // namespace fab
