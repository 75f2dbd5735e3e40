#include "fabric/session/liveness.h"

#include <algorithm>
#include <utility>

#include "base/deadline.h"

namespace fab {
namespace {

constexpr double kHandshakeSeconds = 5;
constexpr double kLooksPerDeadline = 8;

}  // namespace

Liveness::Time Liveness::patience(Deadlines deadlines, bool one_of_several) noexcept {
  return in_nanoseconds(one_of_several ? std::min(deadlines.shared, deadlines.peer) : deadlines.peer);
}

Liveness::Time Liveness::handshake_time(Deadlines deadlines) noexcept {
  return in_nanoseconds(std::min(kHandshakeSeconds, deadlines.peer));
}

double Liveness::look_period(Deadlines deadlines) noexcept {
  const double shortest = std::min({kHandshakeSeconds, deadlines.peer, deadlines.shared});
  return std::clamp(shortest / kLooksPerDeadline, 0.01, 1.0);
}

Liveness::Verdict Liveness::look(bool owes, std::uint64_t heard, Time now, Time patience) noexcept {
  const bool silent = std::exchange(heard_, heard) == heard;
  if (!std::exchange(owed_, owes) || !owes || !silent) quiet_since_ = now;
  const Time quiet = now - quiet_since_;
  if (!owes || quiet < patience / 3) return Verdict::well;
  return quiet < patience ? Verdict::ask : Verdict::lost;
}

}  // namespace fab
