#pragma once

#include <algorithm>
#include <chrono>
#include <optional>

namespace fab {

using Clock = std::chrono::steady_clock;

// Converts the seconds of a setting, which may be huge: negative ones count as 0, more than 1e9 as 1e9.
inline std::chrono::nanoseconds in_nanoseconds(double seconds) noexcept {
  return std::chrono::nanoseconds(static_cast<long long>(std::clamp(seconds, 0.0, 1e9) * 1e9));
}

// A point in time to give up at, passed by value. Default: never.
class Deadline {
 public:
  Deadline() = default;
  static Deadline in(std::chrono::nanoseconds span) { return Deadline(Clock::now() + span); }
  // Seconds as Python gives them. Absent, negative and huge values (above 1e9) wait for ever.
  static Deadline in_seconds(std::optional<double> seconds) {
    if (!seconds || *seconds < 0 || *seconds > 1e9) return {};
    return in(std::chrono::nanoseconds(static_cast<long long>(*seconds * 1e9)));
  }

  bool never() const noexcept { return !at_; }
  bool passed() const { return at_ && Clock::now() >= *at_; }
  Deadline sooner(std::chrono::nanoseconds span) const {
    const auto other = Clock::now() + span;
    return Deadline(at_ ? std::min(*at_, other) : other);
  }
  // Milliseconds for epoll_wait, rounded up; -1 for never.
  int poll_ms() const {
    if (!at_) return -1;
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(*at_ - Clock::now()).count();
    return static_cast<int>(std::clamp<long long>(left, 0, 1 << 30));
  }
  Clock::time_point at() const { return at_.value_or(Clock::time_point::max()); }

 private:
  explicit Deadline(Clock::time_point at) : at_(at) {}
  std::optional<Clock::time_point> at_;
};

}  // namespace fab
