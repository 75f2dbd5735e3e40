#pragma once

#include <chrono>
#include <functional>

#include "base/deadline.h"
#include "base/fd.h"
#include "base/network/ready_call.h"

namespace fab {

// Calls a function, which does not throw, from time to time while it runs.
class Ticker final {
 public:
  Ticker(Poller& poller, std::function<void()> tick);
  void start(double seconds) noexcept;  // at most a second; no effect while it runs
  void stop() noexcept;

  // For how long the ticker has run, in time in which this process looked: a stretch in which it was stopped,
  // got no processor, or was not driven, counts as one period, and that only from the second tick after it.
  // Who judges a peer's silence by this clock, in a tick, does not blame the peer for an absence of its own.
  std::chrono::nanoseconds attended() const noexcept;

 private:
  void set(double seconds) noexcept;
  void on_time() noexcept;

  const OwnFd timer_;
  const std::function<void()> tick_;
  ReadyCall on_timer_;
  bool running_ = false;
  std::chrono::nanoseconds period_{0}, attended_{0}, absence_{0};
  Clock::time_point since_;  // of the last tick, or the start
};

}  // namespace fab
