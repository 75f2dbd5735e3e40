#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "base/lifetime.h"
#include "base/locks/mutex.h"
#include "fabric/completion/wakeup.h"
#include "fabric/types/types.h"

namespace fab {

enum class EventType : std::uint8_t {
  peer_lost,
  link_lost,
  registered,
  inserted,
  link_down,  // this one and those behind it: of a port of this side, and no peer is lost by that
  link_up,
  address_changed,
};

// Something that happened to an object rather than to an operation.
struct Event {
  EventType type = EventType::peer_lost;
  Errc error = Errc::ok;
  PeerId peer = kNoPeer;
  std::uint64_t context = 0;
  std::uint64_t data = 0;
  std::string text{};  // what went wrong, where more is known than describe() says
  // The link over which the loss was found, ended by a zero; empty: none in particular.
  std::array<char, 32> link_name{};

  std::string_view link() const noexcept FAB_LIFETIME_BOUND { return link_name.data(); }
};

// What comes from outside: a peer, or one of several links to it, is gone; or a port of this side has
// changed.
struct Loss {
  EventType type = EventType::peer_lost;  // not registered or inserted
  Errc error = Errc::peer_lost;
  PeerId peer = kNoPeer;
  std::string_view link{};
};

// Events in the order in which they were told, for the program to read. Thread-safe.
//
// Losses come from outside, so their number is limited: the queue has room for some from the beginning, and
// counts those that find no room, of which the next read tells. Events that the program asked for, one for
// each call, always have a place.
class EventQueue final {
 public:
  static constexpr std::int64_t kLosses = 1024, kMostLosses = 1 << 20;
  // The queue has room for `losses`. Throws Error(invalid) outside of 1 to kMostLosses.
  explicit EventQueue(std::int64_t losses = kLosses);

  // A place for one event. It is made when the call starts whose end the event will tell, so that push()
  // needs no memory.
  using Place = std::list<Event>;
  static Place make_place() { return Place(1); }
  void push(Place place) noexcept;
  void push(Event event) { push(Place{std::move(event)}); }
  void tell_lost(const Loss& loss) noexcept;

  // The oldest event. Throws Error(overrun) once after losses that had no room.
  std::optional<Event> read();
  bool empty() const noexcept;
  std::size_t size() const noexcept { return size_; }  // losses that it has room for
  Wakeup& wakeup() noexcept FAB_LIFETIME_BOUND { return wakeup_; }

 private:
  const std::size_t size_;
  mutable Mutex mutex_;
  std::list<Event> events_ FAB_GUARDED_BY(mutex_);
  std::list<Event> room_ FAB_GUARDED_BY(mutex_);      // unused places for losses
  std::uint64_t overrun_ FAB_GUARDED_BY(mutex_) = 0;  // losses that found no place
  Wakeup wakeup_;
};

// Where a context tells of losses: the queue that the program has bound, or nowhere. Used under the context's
// lock.
class EventOutlet final {
 public:
  void bind(std::shared_ptr<EventQueue> queue) noexcept { queue_ = std::move(queue); }
  void tell_lost(const Loss& loss) noexcept {
    if (queue_) queue_->tell_lost(loss);
  }

 private:
  std::shared_ptr<EventQueue> queue_;
};

}  // namespace fab
