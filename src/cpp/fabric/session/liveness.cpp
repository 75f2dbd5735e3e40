#include "fabric/session/liveness.h"

#include <algorithm>
#include <utility>

#include "base/deadline.h"

namespace fab {
namespace {

constexpr double kHandshakeSeconds = 5;
constexpr double kLooksPerDeadline = 8;

double silence(const DomainOptions& options, bool rail) noexcept {
  return rail ? std::min(options.rail_deadline, options.peer_deadline) : options.peer_deadline;
}

}  // namespace

Liveness::Time Liveness::patience(const DomainOptions& options, bool rail) noexcept {
  return in_nanoseconds(silence(options, rail));
}

Liveness::Time Liveness::handshake_time(const DomainOptions& options) noexcept {
  return in_nanoseconds(std::min(kHandshakeSeconds, options.peer_deadline));
}

double Liveness::look_period(const DomainOptions& options, bool rails) noexcept {
  const double shortest = std::min(kHandshakeSeconds, silence(options, rails));
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
