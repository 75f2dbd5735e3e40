#pragma once

#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "fabric/types.h"
#include "fabric/wakeup.h"

namespace fab {

enum class EventType : std::uint8_t { peer_lost, link_lost, registered, inserted };

// Something that happened to an object rather than to an operation.
struct Event {
  EventType type = EventType::peer_lost;
  Errc error = Errc::ok;
  PeerId peer = kNoPeer;
  std::uint64_t context = 0;
  std::uint64_t data = 0;
  std::string text;
};

// Unbounded, thread-safe.
class EventQueue final {
 public:
  void push(Event event);
  std::optional<Event> read();
  bool empty() const;
  Wakeup& wakeup() noexcept { return wakeup_; }

 private:
  mutable std::mutex mutex_;
  std::deque<Event> events_;
  Wakeup wakeup_;
};

}  // namespace fab
