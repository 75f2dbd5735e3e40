#pragma once

#include <functional>

#include "base/fd.h"
#include "base/ready_call.h"

namespace fab {

// Calls a function, which does not throw, from time to time while it runs.
class Ticker final {
 public:
  Ticker(Poller& poller, std::function<void()> tick);
  void start(double seconds) noexcept;  // at most a second; no effect while it runs
  void stop() noexcept;

 private:
  void set(double seconds) noexcept;
  void on_time() noexcept;

  const OwnFd timer_;
  const std::function<void()> tick_;
  ReadyCall on_timer_;
  bool running_ = false;
};

}  // namespace fab
