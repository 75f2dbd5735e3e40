#include "base/network/ticker.h"

#include <sys/timerfd.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

namespace fab {

Ticker::Ticker(Poller& poller, std::function<void()> tick)
    : timer_(check_call(::timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC), "timerfd_create")),
      tick_(std::move(tick)),
      on_timer_(poller, timer_.get(), [this] { on_time(); }) {}

void Ticker::start(double seconds) noexcept {
  if (std::exchange(running_, true)) return;
  since_ = Clock::now();
  set(seconds);
}

void Ticker::stop() noexcept {
  attended_ = attended();
  running_ = false;
  set(0);
}

std::chrono::nanoseconds Ticker::attended() const noexcept {
  return running_ ? attended_ + std::min<std::chrono::nanoseconds>(Clock::now() - since_, period_)
                  : attended_;
}

void Ticker::set(double seconds) noexcept {
  period_ = std::chrono::nanoseconds(std::min(999'999'999L, static_cast<long>(seconds * 1e9)));
  const timespec every{0, static_cast<long>(period_.count())};
  const itimerspec timing{every, every};
  ::timerfd_settime(timer_.get(), 0, &timing, nullptr);
}

void Ticker::on_time() noexcept {
  std::uint64_t expirations;
  [[maybe_unused]] const auto got = ::read(timer_.get(), &expirations, sizeof expirations);
  const auto now = Clock::now();
  const auto stretch = now - std::exchange(since_, now);
  attended_ += std::exchange(absence_, std::chrono::nanoseconds(0));
  if (stretch <= 2 * period_)
    attended_ += stretch;
  else
    absence_ = period_;
  tick_();
}

}  // namespace fab
