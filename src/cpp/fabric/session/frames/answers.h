#pragma once

#include <cstdint>
#include <span>

#include "fabric/session/frames/output.h"
#include "fabric/types/types.h"

namespace fab {

// Queues what this side tells the peer, in the lane of answers: the answers to requests, in the order of the
// requests, and frames about messages. Successes that follow each other are gathered into one ack, until
// flush() or until another answer is queued.
class Answers {
 public:
  explicit Answers(SessionOutput& output) : output_(output) {}

  // Answers the next request, which is of this type, with its outcome.
  void give(Errc outcome, FrameType request) noexcept {
    if (outcome != Errc::ok) return give_failure(outcome);
    ++acks_;
    of_requests_ |= request != FrameType::message;
  }
  // Answers the next request with `length` bytes in one frame, which the caller writes to the place returned.
  // Throws std::bad_alloc, and nothing is answered then.
  std::byte* room(std::uint64_t length);
  // Answers the next request with these bytes. Throws std::bad_alloc, and nothing is answered then.
  void give(std::span<const std::byte> content);
  // Queues a frame that answers no request. Without memory for it the output breaks off, because the peer
  // would wait for this frame forever.
  void tell(const FrameHeader& header) noexcept;
  // Queues the gathered ack, if there is one. It is called before an answer that is queued elsewhere, and at
  // the end of a turn.
  void flush() noexcept;
  // Whether the gathered ack is of a few messages only, so that it may go with a later frame.
  bool can_wait() const noexcept;
  void clear() noexcept;

 private:
  void give_failure(Errc error) noexcept;

  SessionOutput& output_;
  std::uint64_t acks_ = 0;    // successes that were not told yet
  bool of_requests_ = false;  // whether one of them is of a request that is no message
};

}  // namespace fab
