#include "base/ticker.h"

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
  if (!std::exchange(running_, true)) set(seconds);
}

void Ticker::stop() noexcept {
  running_ = false;
  set(0);
}

void Ticker::set(double seconds) noexcept {
  const timespec every{0, std::min(999'999'999L, static_cast<long>(seconds * 1e9))};
  const itimerspec timing{every, every};
  ::timerfd_settime(timer_.get(), 0, &timing, nullptr);
}

void Ticker::on_time() noexcept {
  std::uint64_t expirations;
  [[maybe_unused]] const auto got = ::read(timer_.get(), &expirations, sizeof expirations);
  tick_();
}

}  // namespace fab
