#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>

#include "base/network/tcp_socket.h"
#include "base/queues/linked_list.h"
#include "providers/tcp/bounds.h"

namespace fab::tcp {

// Where a connection comes from, as far as its bounds are concerned: "10.0.0.5"; of IPv6 the network of 64
// bits, because whoever has one address there has all of them.
std::string source_of(const SocketAddress& address);

struct AmongGuests;

// A stream that a peer began.
class Guest : public Linked<AmongGuests> {
 public:
  Guest() = default;
  virtual ~Guest() = default;
  virtual std::uint64_t heard() const noexcept = 0;  // bytes that have come
  virtual bool has_spoken() const noexcept = 0;      // whether a whole frame has come
  virtual bool may_be_evicted() const noexcept = 0;  // whether nothing is under way, in either direction
  virtual void evict(const char* why) noexcept = 0;  // ends the stream, which calls Guests::remove()
  const std::string& source() const noexcept { return source_; }

 private:
  friend class Guests;
  std::string source_;
  std::uint64_t seen_ = 0;  // heard() at the last look
};

// The streams that peers began, and which of them has to go when there are too many.
class Guests final {
 public:
  void add(Guest& guest, std::string source);  // throws std::bad_alloc
  void remove(Guest& guest) noexcept;          // no effect on one that was not added, or was removed
  std::size_t size() const noexcept { return size_; }
  std::size_t of(const std::string& source) const noexcept;

  // Whether one more from this source may come. Another one is evicted for it if need be: of the same source,
  // if that has its share already, and else of the source that has the most.
  bool make_room(const std::string& source, const Bounds& bounds) noexcept;
  // Evicts one that never sent a frame, the oldest first, or else the one that has been silent for longest,
  // as far as the calls of this tell. `of`: one of this source; null: of any. False: none can go.
  bool evict(const std::string* of, const char* why) noexcept;

 private:
  LinkedList<Guest, AmongGuests> guests_;
  std::map<std::string, std::size_t> by_source_;
  std::size_t size_ = 0;
};

}  // namespace fab::tcp
