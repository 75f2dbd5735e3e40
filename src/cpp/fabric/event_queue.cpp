#include "fabric/event_queue.h"

namespace fab {

void EventQueue::push(Event event) {
  {
    const std::lock_guard lock(mutex_);
    events_.push_back(std::move(event));
  }
  wakeup_.notify();
}

std::optional<Event> EventQueue::read() {
  const std::lock_guard lock(mutex_);
  if (events_.empty()) return std::nullopt;
  Event event = std::move(events_.front());
  events_.pop_front();
  return event;
}

bool EventQueue::empty() const {
  const std::lock_guard lock(mutex_);
  return events_.empty();
}

}  // namespace fab
