#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <utility>

namespace fab::tcp {

// How far the bytes have come that a peer has to read before it can answer. While they move, it is no wonder
// that it is silent. What was handed over behind the first question for a sign of life moves nothing: the
// kernel of a stopped process acknowledges questions, too, and the answer to the first one is still due.
class UnansweredBytes final {
 public:
  struct State {
    std::uint64_t handed;    // bytes that the socket has taken
    std::size_t waiting;     // of them, those that the other end's kernel has not acknowledged
    bool all_handed;         // nothing waits to be handed over
    std::uint64_t received;  // bytes that have come from the peer
  };
  // A number that changes when such bytes have moved since the last look.
  std::uint64_t look(const State& now) noexcept {
    if (std::exchange(received_, now.received) != now.received) {
      asked_ = false;
      end_ = kOpen;
    }
    if (asked_ && now.all_handed) end_ = std::min(end_, now.handed);
    if (now.waiting != 0) moved_ = std::max(moved_, std::min(now.handed - now.waiting, end_));
    return moved_;
  }
  // The peer is about to be asked for a sign of life, behind all that waits.
  void asked(std::uint64_t handed, bool all_handed) noexcept {
    if (!std::exchange(asked_, true) && all_handed) end_ = handed;
  }

 private:
  static constexpr std::uint64_t kOpen = std::numeric_limits<std::uint64_t>::max();
  std::uint64_t received_ = 0, moved_ = 0;
  bool asked_ = false;         // and the peer has not answered
  std::uint64_t end_ = kOpen;  // of what it has to read before it can answer
};

}  // namespace fab::tcp
