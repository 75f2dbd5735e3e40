#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <deque>
#include <span>
#include <string>

#include "simulation/nodes/story.h"

namespace fab::sim {

// How one rail between two nodes is at the moment, for all connections over it.
struct Road {
  Span latency{};
  double rate = 0;      // bytes per second
  bool silent = false;  // nothing gets through, and nobody is told
};

// A connection: a stream of bytes each way. What one end has sent arrives later, in pieces of any length, and
// if the connection is cut, only as much of it as chance wills.
class Wire {
 public:
  // `wake` is called with a side and the time at which that side has something to look at.
  using Wake = std::function<void(int, Time)>;
  Wire(Story& story, Road& road, Wake wake);

  // Takes some of these bytes, which `side` sends, and returns how many: 0 where the buffer is full or the
  // other end has gone.
  std::size_t send(int side, std::span<const iovec> pieces);
  // Fills in what has arrived for `side`, at most `most` bytes.
  std::size_t receive(int side, std::span<const iovec> pieces, std::size_t most);
  // All has been received that comes.
  bool ended(int side) const noexcept;
  // `side` has gone. What it had sent may arrive in part or whole.
  void close(int side);
  void cut();  // from outside
  // The road is not silent any more.
  void heal();
  bool whole() const noexcept { return !flights_[0].closed && !flights_[1].closed; }

 private:
  struct Piece {
    Time arrival;
    std::string bytes;
    std::size_t taken = 0;
  };
  // From one side to the other.
  struct Flight {
    std::deque<Piece> pieces;
    std::size_t bytes = 0;
    Time free_at{};  // when the road takes the next piece
    bool closed = false;
    Time end_at{};
  };
  void end(int from);

  Story& story_;
  Road& road_;
  const Wake wake_;
  const std::size_t room_;
  Flight flights_[2];  // by the side that sends
};

}  // namespace fab::sim
