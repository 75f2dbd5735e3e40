#pragma once

#include <atomic>
#include <cstdint>

#include "base/fd.h"

namespace fab {

// Told by a Poller that its descriptor is ready. `events` are EPOLL* bits.
class ReadyHandler {
 public:
  virtual ~ReadyHandler() = default;
  virtual void on_ready(std::uint32_t events) noexcept = 0;
};

// A level-triggered epoll set. add(), modify() and remove() may be called from any thread and from handlers;
// dispatch() is called from one thread at a time. remove() of a handler inside dispatch() is safe: no later
// event of the same round reaches it. In a child of fork() remove() does nothing, because the set is shared
// with the parent.
class Poller {
 public:
  Poller();
  Poller(const Poller&) = delete;
  Poller& operator=(const Poller&) = delete;

  void add(int fd, std::uint32_t events, ReadyHandler& handler);
  void modify(int fd, std::uint32_t events, ReadyHandler& handler) noexcept;
  void remove(int fd, ReadyHandler& handler) noexcept;

  // Sleeps until something is ready or `timeout_ms` passed (0: only looks, -1: for ever); runs no handler.
  // True if something is ready. EINTR counts as a time-out.
  bool sleep(int timeout_ms) const noexcept;
  // Runs the handlers of all that is ready now; returns how many.
  int dispatch() noexcept;

  int fd() const noexcept { return epoll_.get(); }

 private:
  static constexpr int kBatch = 64;
  const std::uint32_t fork_generation_;
  OwnFd epoll_;
  void* round_[kBatch] = {};  // handlers of the round in dispatch(), nulled by remove()
  int round_size_ = 0;
  unsigned rounds_ = 0;
};

// An eventfd that wakes a sleeper of a Poller. Waking again before the next dispatch() costs no system call.
// So the news behind a wake() may be complete only after dispatch(): look for it then.
class Waker final : public ReadyHandler {
 public:
  explicit Waker(Poller& poller);
  ~Waker() override;
  Waker(const Waker&) = delete;
  Waker& operator=(const Waker&) = delete;
  void wake() noexcept;
  void on_ready(std::uint32_t events) noexcept override;

 private:
  Poller& poller_;
  OwnFd event_;
  std::atomic<bool> raised_{false};
};

}  // namespace fab
