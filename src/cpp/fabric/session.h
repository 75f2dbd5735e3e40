#pragma once

#include <sys/uio.h>

#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <vector>

#include "fabric/completion_queue.h"
#include "fabric/frame.h"
#include "fabric/provider.h"
#include "fabric/segment.h"

namespace fab {

// Put, get and atomics as messages over a reliable byte stream (a socket, a ring): the initiator's and the target's side of one
// connection between two contexts. Knows no transport: the owner moves output() and input() and calls sent() and received().
// Payloads go from and to registered memory without a bounce. Used under its context's lock.
//
// Initiator: post() queues frames and remembers the request; answers settle requests strictly in order.
// Target: each request is judged by RegionView::judge() before a byte of it is stored; a refused one is drained and answered by
// `fail`, and the stream goes on. Successes are gathered into one ack per turn (end_turn()).
class Session {
 public:
  struct Services {
    Segment& segment;              // regions that the peer may reach
    CompletionQueue& completions;  // for remote data that arrives
    std::uint16_t context;         // that regions may be bound to
    PathCounts& counts;            // kept for the path
  };
  explicit Session(const Services& services);
  ~Session();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  // --- initiator
  std::size_t post(std::span<const Transfer> batch) noexcept;  // as Path::post; short when the limits are reached
  bool post_notify(std::uint64_t data, std::uint64_t length) noexcept;  // false: full
  std::size_t outstanding() const noexcept;                             // requests without an answer

  // --- byte stream
  // What to send next, at most `max` pieces, which stay valid until sent() or fail(); 0 if there is nothing.
  std::size_t output(iovec* out, std::size_t max) noexcept;
  void sent(std::size_t bytes) noexcept;
  bool has_output() const noexcept;
  // Where to put received bytes, in this order, at most 2 pieces, never empty.
  std::size_t input(iovec* out) noexcept;
  // ok, or protocol: the peer sent nonsense and the connection must go.
  Errc received(std::size_t bytes) noexcept;
  // After a round of received(): queues the gathered ack, if any.
  void end_turn() noexcept;

  // --- control
  void set_source(PeerId source) noexcept;  // of remote data; kNoPeer while the sender is not in the address vector
  void forget(std::uint32_t region) noexcept;
  // The connection is gone: everything outstanding settles with `error`.
  void fail(Errc error) noexcept;

 private:
  // Left to the implementation.
};

}  // namespace fab
