#include "fabric/context/driver.h"

#include <sched.h>

#include <algorithm>
#include <thread>
#include <utility>

#include "base/locks/mutex.h"
#include "fabric/types/error.h"

namespace fab {
namespace {

using std::chrono::microseconds;
// How often a spinning leader looks at the clock (and at others who want the lock), and how often at the
// poller, which is a system call: the less often, the longer it found nothing there. Looks at the clock are
// counted in turns, so that short turns need none each.
constexpr std::chrono::nanoseconds kClockPeriod(500), kLeastPollerPeriod = microseconds(2),
                                                      kMostPollerPeriod = microseconds(32);
constexpr unsigned kMostClockTurns = 64, kPollerTurns = 2048, kTurnsOfMove = 16;
// A caller that leads for longer than this says so, and wakes the progress thread when it ends. Then that
// thread need not look for the end again and again, which would interrupt large copies on a busy processor.
constexpr std::chrono::nanoseconds kStays = microseconds(100);
// Limits of how long a leader polls before it sleeps. The upper one is longer than a peer takes to copy a
// MiB, because waking a thread costs as much. After kYieldsAfter it yields the processor in between, maybe to
// that peer.
constexpr std::chrono::nanoseconds kLeastSpin = microseconds(1), kMostSpin = microseconds(250),
                                   kYieldsAfter = microseconds(5);
// A follower looks by itself after this time.
constexpr std::chrono::seconds kFollows(1);

}  // namespace

Driver::Driver(Tidier& tidier)
    : tidier_(tidier), poller_period_(kLeastPollerPeriod), spin_(microseconds(20)) {}

void Driver::check_process() const {
  if (inherited())
    throw Error(Errc::closed,
                "the endpoint was opened by the parent process, before a fork; open one in this process");
}

// --- turns

void Driver::pause(std::chrono::nanoseconds time) {
  {
    const Unlocked unlocked(*this);
    std::this_thread::sleep_for(time);
  }
  slice_.begin();
}

bool Driver::move(bool look) noexcept {
  const OverlapWatch::Visit visit(moving_);
  slice_.begin();
  // However much moves, the poller is looked at now and then: it tells of timers, ends of processes,
  // connections.
  bool moved = turns_ >= kPollerTurns && look_at_poller();
  if (endpoint_ && endpoint_->progress()) {
    moved = true;
    wake_thread();
  }
  turns_ += moved ? kTurnsOfMove : 1;
  if (look && !moved) moved = look_at_poller();
  if (path_ended_ || moved) tidier_.tidy(std::exchange(path_ended_, false));
  if (moved) wake_followers();
  return moved;
}

bool Driver::look_at_poller() noexcept {
  const OverlapWatch::Visit visit(moving_);
  turns_ = 0;
  if (poller_.dispatch() == 0) return false;
  wake_thread();
  return true;
}

// The events that a caller took may have been all that would wake the progress thread, and the work that is
// left for a turn in which nothing moves would not be done. So the thread is woken here. Without a thread,
// somebody else sleeps on the descriptor, and the endpoint is armed again.
void Driver::wake_thread() noexcept {
  if (!armed() || !armed_.exchange(false)) return;
  if (wake_thread_)
    wake_thread_();
  else if (endpoint_)
    endpoint_->arm();
}

// --- callers

bool Driver::progress(bool look) {
  check_process();
  if (!try_lock()) return false;
  Lock lock(*this, std::adopt_lock);
  if (led_) return false;
  const bool moved = move(look);
  unlock(lock);
  mutex_.give_way();
  return moved;
}

// Counts a caller that waits, for the progress thread to see. Used under the lock.
class Driver::Caller {
 public:
  explicit Caller(Driver& driver) noexcept FAB_REQUIRES(driver) : driver_(driver) { come(); }
  Caller(const Caller&) = delete;
  Caller& operator=(const Caller&) = delete;
  void come() noexcept {
    driver_.assert_held();
    driver_.change(driver_.state() + kRound + kCaller);
  }
  void go() noexcept {
    driver_.assert_held();
    driver_.change(driver_.state() + kRound - kCaller);
  }

 private:
  Driver& driver_;
};

// One round as the leader: polls for a while, then sleeps once until something happens. Ends early when
// callbacks are due, which the leader must not run: they could not wait for anything.
class Driver::Leader {
 public:
  Leader(Driver& driver, const std::function<bool()>& done, Deadline deadline) noexcept
      : driver_(driver), done_(done), deadline_(deadline) {}

  void lead() {
    driver_.assert_held();
    driver_.led_ = true;
    poll();
    if (!finished_ && !driver_.callbacks_due_ && driver_.endpoint_ && !deadline_.passed()) sleep();
    learn();
    driver_.led_ = false;
    driver_.change((driver_.state() & ~kStaying) + kRound);
    driver_.wake_followers();
    // The progress thread relies on this when it was told that the leader stays.
    if (told_ && driver_.wake_thread_) driver_.wake_thread_();
  }

 private:
  void poll() FAB_REQUIRES(driver_) {
    for (unsigned turns = 1;; ++turns) {
      const bool looked = move();
      finished_ = done_();
      if (finished_) return;
      if (turns < driver_.clock_turns_ && !driver_.slice_.spent()) continue;
      turns = 0;
      const auto now = Clock::now();
      look_at_clock(now, looked);
      if (std::exchange(moved_, false)) idle_since_ = now;
      if (driver_.callbacks_due_ || now - idle_since_ >= driver_.spin_ || deadline_.passed()) return;
      if (let_others_in(now - idle_since_ >= kYieldsAfter)) return;
    }
  }

  // What the poller tells of and what the links look after by themselves have turns with a slice each. True
  // if this turn was the poller's.
  bool move() noexcept FAB_REQUIRES(driver_) {
    if (!std::exchange(polls_, false)) {
      moved_ |= driver_.move(false);
      return false;
    }
    driver_.slice_.begin();
    const bool found = driver_.look_at_poller();
    driver_.poller_period_ =
        found ? kLeastPollerPeriod : std::min(kMostPollerPeriod, driver_.poller_period_ * 2);
    moved_ |= found;
    return true;
  }

  void look_at_clock(Clock::time_point now, bool looked) noexcept FAB_REQUIRES(driver_) {
    if (start_ == Clock::time_point())
      start_ = idle_since_ = looked_ = now;
    else if (now - last_ < kClockPeriod)
      driver_.clock_turns_ = std::min(kMostClockTurns, driver_.clock_turns_ * 2);
    else
      driver_.clock_turns_ = std::max(1u, driver_.clock_turns_ / 2);
    last_ = now;
    if (!told_ && now - start_ >= kStays) {
      told_ = true;
      driver_.change(driver_.state() | kStaying);
    }
    if (!looked && now - looked_ >= driver_.poller_period_) {
      looked_ = now;
      polls_ = true;
    }
  }

  // Gives the lock to others that want it, and with `yields` the processor as well. True if there is nothing
  // left to poll for after that.
  bool let_others_in(bool yields) FAB_REQUIRES(driver_) {
    if (!yields && !driver_.mutex_.wanted()) return false;
    {
      const Unlocked unlocked(driver_);
      if (yields) ::sched_yield();
      driver_.mutex_.give_way();
    }
    finished_ = done_();
    return finished_ || !driver_.endpoint_;
  }

  void sleep() FAB_REQUIRES(driver_) {
    told_ = true;
    driver_.state_.store(driver_.state() | kAsleep, std::memory_order_seq_cst);
    std::atomic_thread_fence(std::memory_order_seq_cst);
    driver_.wake_followers();  // a wake() before this line found nobody asleep
    finished_ = done_();
    if (!finished_ && driver_.endpoint_ && driver_.endpoint_->arm()) {
      const Unlocked unlocked(driver_);
      slept_ = true;
      driver_.poller_.sleep(deadline_.poll_ms());
    }
    driver_.change(driver_.state() & ~kAsleep);
    if (driver_.endpoint_) driver_.move(true);
  }

  // Learns how long to poll the next time: longer where polling spared the sleep, or would have spared it.
  void learn() noexcept FAB_REQUIRES(driver_) {
    std::chrono::nanoseconds& spin = driver_.spin_;
    if (!slept_)
      spin = std::min(kMostSpin, spin + microseconds(1));
    else
      spin =
          Clock::now() - start_ < kMostSpin ? std::min(kMostSpin, spin * 2) : std::max(kLeastSpin, spin / 2);
  }

  Driver& driver_;
  const std::function<bool()>& done_;
  const Deadline deadline_;
  Clock::time_point start_, idle_since_, last_, looked_;  // set at the first look at the clock
  bool finished_ = false;
  bool told_ = false;   // the progress thread was told that it will be woken
  bool moved_ = false;  // since the last look at the clock
  bool polls_ = false;  // the next turn is the poller's
  bool slept_ = false;
};

void Driver::follow(Deadline deadline) {
  ++followers_;
  followers_wake_.wait_until(mutex_, deadline.sooner(kFollows).at());
  --followers_;
}

bool Driver::wait(const std::function<bool()>& done, Deadline deadline) {
  check_process();
  Lock lock(*this);
  Caller caller(*this);
  bool finished = done();
  bool looked = false;
  while (!finished && endpoint_) {
    if (deadline.passed()) {
      // A caller whose deadline has passed moves once what is there: under manual progress nobody else does.
      if (looked || led_) break;
      move(true);
    } else if (!led_) {
      Leader(*this, done, deadline).lead();
    } else {
      follow(deadline);
    }
    looked = true;
    finished = done();
    if (callbacks_due_ && !finished) {
      // Callbacks may wait themselves, or take long. Meanwhile this thread moves nothing, so it does not
      // count.
      caller.go();
      unlock(lock);
      lock.lock();
      caller.come();
      finished = done();
    }
  }
  caller.go();
  unlock(lock);
  return finished;
}

void Driver::turn() {
  check_process();
  Lock lock(*this);
  Caller caller(*this);
  if (led_) {
    follow(Deadline::in(kFollows));
  } else if (endpoint_) {
    move(false);
    spin_ = std::min(kMostSpin, spin_ + microseconds(1));  // as Leader::learn() after a round without sleep
  }
  caller.go();
  unlock(lock);
}

void Driver::wake() noexcept {
  std::atomic_thread_fence(std::memory_order_seq_cst);
  if (state() & kAsleep) waker_.wake();
}

// --- the progress thread

Driver::Rest Driver::arm() noexcept {
  if (inherited()) return Rest::allowed;
  if (!try_lock()) return Rest::in_use;
  const Lock lock(*this, std::adopt_lock);
  // While a leader is there, nothing is armed: it may stop without having slept, and would leave it so.
  if (led_) return Rest::in_use;
  slice_.begin();
  if (callbacks_due_ || (endpoint_ && !endpoint_->arm())) return Rest::work_left;
  armed_.store(true, std::memory_order_relaxed);
  return Rest::allowed;
}

void Driver::set_wake_thread(std::function<void()> wake) {
  const Lock lock(*this);
  wake_thread_ = std::move(wake);
}

Driver::Who Driver::who() noexcept {
  armed_.store(false, std::memory_order_relaxed);
  const std::uint64_t now = state();
  const bool driven = now / kRound != std::exchange(seen_, now / kRound);
  if (now & kCallers) return now & (kAsleep | kStaying) ? Who::staying_caller : Who::spinning_caller;
  return driven ? Who::spinning_caller : Who::nobody;
}

}  // namespace fab
