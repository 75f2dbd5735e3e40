#pragma once

#include <chrono>
#include <cstdint>
#include <utility>

namespace fab {

// Tells when a peer counts as lost: it owes something, and nothing was heard of it for long.
class Liveness {
 public:
  enum class Verdict : std::uint8_t { well, ask, lost };
  // To be called several times per `patience`. `owes`: this side waits for the peer. `heard`: any number that
  // changes with each sign of life. `now`: as Ticker::attended(). `ask`: it is time to ask for one.
  Verdict look(bool owes, std::uint64_t heard, std::chrono::nanoseconds now,
               std::chrono::nanoseconds patience) {
    const bool silent = std::exchange(heard_, heard) == heard;
    if (!std::exchange(owed_, owes) || !owes || !silent) quiet_since_ = now;
    const auto quiet = now - quiet_since_;
    return quiet >= patience ? Verdict::lost : quiet >= patience / 3 ? Verdict::ask : Verdict::well;
  }

 private:
  bool owed_ = false;
  std::uint64_t heard_ = 0;
  std::chrono::nanoseconds quiet_since_{0};
};

}  // namespace fab
