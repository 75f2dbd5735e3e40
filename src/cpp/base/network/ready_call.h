#pragma once

#include <sys/epoll.h>

#include <cstdint>
#include <functional>
#include <utility>

#include "base/network/poller.h"

namespace fab {

// Calls a function, which does not throw, whenever a descriptor that outlives it has something to read.
class ReadyCall final : public ReadyHandler {
 public:
  ReadyCall(Poller& poller, int fd, std::function<void()> call)
      : poller_(poller), fd_(fd), call_(std::move(call)) {
    poller_.add(fd_, EPOLLIN, *this);
  }
  ~ReadyCall() override { end(); }
  ReadyCall(const ReadyCall&) = delete;
  ReadyCall& operator=(const ReadyCall&) = delete;

  void end() noexcept { poller_.remove(fd_, *this); }  // no call follows
  void on_ready(std::uint32_t) noexcept override { call_(); }
  void pause(bool on) noexcept { poller_.modify(fd_, on ? 0u : static_cast<std::uint32_t>(EPOLLIN), *this); }

 private:
  Poller& poller_;
  const int fd_;
  const std::function<void()> call_;
};

}  // namespace fab
