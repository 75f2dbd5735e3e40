#pragma once

#include <cstdint>
#include <span>

#include "fabric/session/frames/output.h"
#include "fabric/types/types.h"

namespace fab {

// What this side tells the peer, in the answers' lane of an output: answers to requests, in the order of the
// requests, and what concerns messages. Successes that follow each other are gathered into one ack until
// flush(), or until something else is answered.
class Answers {
 public:
  explicit Answers(SessionOutput& output) : output_(output) {}

  // What came of the next request, which is of this type. Successes are gathered.
  void give(Errc outcome, FrameType request) noexcept {
    if (outcome != Errc::ok) return give_failure(outcome);
    ++acks_;
    of_requests_ |= request != FrameType::message;
  }
  // Room for the content of an answer in one frame. Throws std::bad_alloc, and nothing is answered then.
  std::byte* room(std::uint64_t length);
  void give(std::span<const std::byte> content);  // throws as room() does
  // Another frame. Who cannot tell the peer what it waits for breaks the output off.
  void tell(const FrameHeader& header) noexcept;
  // Queues the gathered ack, if any: before an answer that is queued elsewhere, and at the end of a turn.
  void flush() noexcept;
  // Whether all that is gathered is of messages, and not of many.
  bool can_wait() const noexcept;
  void clear() noexcept;

 private:
  void give_failure(Errc error) noexcept;

  SessionOutput& output_;
  std::uint64_t acks_ = 0;    // successes not yet told
  bool of_requests_ = false;  // not only of messages
};

}  // namespace fab
