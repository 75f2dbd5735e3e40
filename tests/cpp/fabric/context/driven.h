#pragma once

#include <doctest/doctest.h>
#include <sys/eventfd.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/fd.h"
#include "fabric/context/driver.h"

// What the tests of the driver share: work for it, what wakes it, and a caller that sleeps in it.
namespace fab::test {

// What is driven, without a link. All is used under the driver's lock, except for what is atomic.
class Work final : public Endpoint, public Tidier {
 public:
  bool progress() noexcept override {
    ++advances;
    return on_advance();
  }
  bool arm() noexcept override {
    ++arms;
    return on_arm();
  }
  std::vector<Part> parts() const override { return {}; }
  std::vector<std::string> socket_names() const override { return {}; }
  Reach reaches(const Name&, std::uint16_t, std::size_t) const override { return {}; }
  std::unique_ptr<Path> connect(PeerId, const Name&, std::uint16_t, std::size_t) override { return nullptr; }
  void end_removed_keys() noexcept override {}
  void forget(std::uint32_t) noexcept override {}
  void tidy(bool path_ended) noexcept override { path_ended ? ++tidied_ends : ++tidied_moves; }

  std::function<bool()> on_advance = [] { return false; };
  std::function<bool()> on_arm = [] { return true; };
  std::atomic<int> advances{0}, arms{0}, tidied_moves{0}, tidied_ends{0};
};

// A descriptor of the driver's poller, as a link has one.
class Arrival final : public ReadyHandler {
 public:
  explicit Arrival(Driver& driver) : poller_(driver.poller()), event_(::eventfd(0, EFD_NONBLOCK)) {
    poller_.add(event_.get(), 1 /* EPOLLIN */, *this);
  }
  ~Arrival() override { poller_.remove(event_.get(), *this); }
  void arrive() { REQUIRE(::eventfd_write(event_.get(), 1) == 0); }
  void on_ready(std::uint32_t) noexcept override {
    eventfd_t value;
    if (::eventfd_read(event_.get(), &value) == 0) ++taken;
  }
  std::atomic<int> taken{0};

 private:
  Poller& poller_;
  OwnFd event_;
};

// No test takes that long unless it fails.
inline Deadline soon() { return Deadline::in(std::chrono::seconds(20)); }

inline void until(const std::function<bool()>& done) {
  const Deadline deadline = soon();
  while (!done() && !deadline.passed()) std::this_thread::yield();
  CHECK(done());
}

// A caller that has gone to sleep as the leader; it waits for flag().
class Sleeper {
 public:
  explicit Sleeper(Driver& driver)
      : driver_(driver),
        thread_([this] { finished_ = driver_.wait([this] { return flag.load(); }, soon()); }) {
    until([this] { return driver_.who() == Driver::Who::staying_caller; });
  }
  Sleeper(const Sleeper&) = delete;
  Sleeper& operator=(const Sleeper&) = delete;
  ~Sleeper() {
    if (thread_.joinable()) join();
  }
  bool join() {
    flag = true;
    driver_.wake();
    thread_.join();
    return finished_;
  }
  std::atomic<bool> flag{false};

 private:
  Driver& driver_;
  std::atomic<bool> finished_{false};
  std::thread thread_;
};

}  // namespace fab::test
