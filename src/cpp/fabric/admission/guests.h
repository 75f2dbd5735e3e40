#pragma once

#include <climits>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>

#include "base/deadline.h"
#include "base/lifetime.h"
#include "base/network/tcp_socket.h"
#include "base/queues/linked_list.h"
#include "fabric/admission/bounds.h"

namespace fab {

// Where a connection comes from, as far as its bounds are concerned: "10.0.0.5"; of IPv6 the network of 64
// bits, because whoever has one address there has all of them.
std::string source_of(const SocketAddress& address);

struct AmongGuests;

// A stream that a peer began.
class Guest : public Linked<AmongGuests> {
 public:
  enum class Work : std::uint8_t {
    none,     // nothing is under way, in either direction
    stalled,  // something waits, and the peer does not go on with it, or not at the least pace
    moving
  };
  Guest() = default;
  virtual ~Guest() = default;
  virtual std::uint64_t heard() const noexcept = 0;  // bytes that have come
  virtual bool has_spoken() const noexcept = 0;      // whether a whole frame has come
  virtual Work work() noexcept = 0;
  virtual bool proven() noexcept = 0;                // Sender::proven()
  virtual int descriptor() const noexcept = 0;       // that is free once the stream has ended
  virtual void evict(const char* why) noexcept = 0;  // ends the stream, which calls Guests::remove()
  const std::string& source() const noexcept FAB_LIFETIME_BOUND { return source_; }

 private:
  friend class Guests;
  std::string source_;
  std::uint64_t seen_ = 0;        // heard() at the last look
  Clock::time_point heard_at_{};  // the look that found more, or when it came
};

// The streams that peers began, and which of them has to go when there are too many: those first whose end
// costs least. No stream of a proven peer ends for the sake of others.
//
// Who was heard less than a second ago may have more on its way, so others go before, also those that seem to
// have work and do not go on with it: otherwise each new peer would go at once while strangers hold all
// places.
class Guests final {
 public:
  using Now = Clock::time_point() noexcept;
  explicit Guests(Now& now = Clock::now) noexcept : now_(now) {}

  // Which may go.
  struct Sought {
    bool for_proven = false;            // for the sake of a proven peer
    const std::string* from = nullptr;  // only those from this source
    int below = INT_MAX;                // only those with a lower descriptor
    bool silent = false;                // only those on which no whole frame has come
    bool at_rest = false;               // only those that were not heard for a second
  };

  void add(Guest& guest, std::string source);  // throws std::bad_alloc
  void remove(Guest& guest) noexcept;          // no effect on one that was not added, or was removed
  std::size_t size() const noexcept { return size_; }
  std::size_t of(const std::string& source) const noexcept;

  // Whether one more from this source may come. Another one is evicted for it if need be: of the same source,
  // if that has its share already, and else of the source that has the most. `proven`: as Guest::proven().
  bool make_room(const std::string& source, bool proven, const Bounds& bounds) noexcept;
  // The same for a caller, which can wait for room: another one is evicted only if it was not heard for a
  // second, and comes from a source that has more. So those who come from one place together do not drive out
  // each other.
  bool may_come(const std::string& source, const Bounds& bounds) noexcept;
  // Evicts one of the cheapest, and of these the one that has been silent for longest, as far as the calls of
  // this tell. False: none can go.
  bool evict(const Sought& sought, const char* why) noexcept;

 private:
  static int price_of(Guest& guest, bool for_proven, Clock::time_point now) noexcept;
  void order(Clock::time_point now) noexcept;

  Now& now_;
  LinkedList<Guest, AmongGuests> guests_;  // who has been silent for longest stands first
  std::map<std::string, std::size_t> by_source_;
  std::size_t size_ = 0;
};

}  // namespace fab
