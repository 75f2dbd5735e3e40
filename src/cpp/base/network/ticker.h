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
  bool running() const noexcept { return running_; }

  // For how long the ticker has run, counting only time in which this process was at work. A stretch in which
  // the process was stopped, got no processor, or was not driven counts as one period, and from the second
  // tick after it on. A tick that judges a peer's silence by this clock blames the peer for no absence of
  // this process.
  std::chrono::nanoseconds attended() const noexcept;

 private:
  void set(double seconds) noexcept;
  void on_time() noexcept;

  const OwnFd timer_;
  const std::function<void()> tick_;
  ReadyCall on_timer_;
  bool running_ = false;
  std::chrono::nanoseconds period_{0}, attended_{0}, absence_{0};
  Clock::time_point since_;  // when the last tick was, or start()
};

}  // namespace fab
