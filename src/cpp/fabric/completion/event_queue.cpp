#include "fabric/completion/event_queue.h"

#include <string>

#include "base/locks/mutex.h"
#include "fabric/types/error.h"

namespace fab {
namespace {

bool of_loss(const Event& event) noexcept {
  return event.type != EventType::registered && event.type != EventType::inserted;
}

std::size_t checked_losses(std::int64_t losses) {
  if (losses < 1 || losses > EventQueue::kMostLosses)
    throw Error(Errc::invalid, "an event queue of size " + std::to_string(losses) + ": it takes 1 to " +
                                   std::to_string(EventQueue::kMostLosses) + " lost peers and links");
  return static_cast<std::size_t>(losses);
}

}  // namespace

EventQueue::EventQueue(std::int64_t losses) : size_(checked_losses(losses)), room_(size_) {}

void EventQueue::push(Place place) noexcept {
  {
    const LockGuard lock(mutex_);
    events_.splice(events_.end(), place);
  }
  wakeup_.notify();
}

void EventQueue::tell_lost(const Loss& loss) noexcept {
  {
    const LockGuard lock(mutex_);
    if (room_.empty()) {
      ++overrun_;
    } else {
      Event& event = room_.front();
      event.type = loss.type;
      event.error = loss.error;
      event.peer = loss.peer;
      event.link_name.fill(0);
      loss.link.copy(event.link_name.data(), event.link_name.size() - 1);
      events_.splice(events_.end(), room_, room_.begin());
    }
  }
  wakeup_.notify();
}

std::optional<Event> EventQueue::read() {
  const LockGuard lock(mutex_);
  if (overrun_) {
    const std::string lost = std::to_string(overrun_);
    Error error(Errc::overrun, "the event queue has room for " + std::to_string(size_) +
                                   " losses and was full: " + lost +
                                   " more are not in it; read it more often or make it larger");
    overrun_ = 0;
    throw error;
  }
  if (events_.empty()) return std::nullopt;
  Event event = events_.front();
  if (event.text.empty() && event.error != Errc::ok) event.text = describe(event.error);
  if (of_loss(event))
    room_.splice(room_.end(), events_, events_.begin());
  else
    events_.pop_front();
  return event;
}

bool EventQueue::empty() const noexcept {
  const LockGuard lock(mutex_);
  return events_.empty() && overrun_ == 0;
}

}  // namespace fab
