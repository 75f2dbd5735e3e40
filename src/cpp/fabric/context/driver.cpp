#include "fabric/context/driver.h"

#include <sched.h>

#include <algorithm>
#include <thread>
#include <utility>

#include "fabric/types/error.h"

namespace fab {
namespace {

using std::chrono::microseconds;
// A spinning leader looks about this often at the clock and at others who want the lock, and at the poller,
// which is a system call: the less often, the longer it found nothing. Where turns are short, that is every
// so many of them; one that moved something counts as many.
constexpr std::chrono::nanoseconds kClockPeriod(500), kLeastPollerPeriod = microseconds(2),
                                                      kMostPollerPeriod = microseconds(32);
constexpr unsigned kMostClockTurns = 64, kPollerTurns = 2048, kTurnsOfMove = 16;
// Who leads for longer than this says so, and then hands the context back: the progress thread need not look
// for its end, which would interrupt large copies on a busy processor.
constexpr std::chrono::nanoseconds kStays = microseconds(100);
// How long a leader polls before it sleeps: longer than a peer takes to copy a MiB, since waking somebody up
// costs as much. After a while it lets others have the processor in between, who may be that peer.
constexpr std::chrono::nanoseconds kLeastSpin = microseconds(1), kMostSpin = microseconds(250),
                                   kYieldsAfter = microseconds(5);
// A follower looks by itself after this long.
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

void Driver::Turn::pause(std::chrono::nanoseconds time) {
  lock_.unlock();
  std::this_thread::sleep_for(time);
  lock_.lock();
  driver_.slice_.begin();
}

bool Driver::move(bool look) noexcept {
  const OverlapWatch::Visit visit(moving_);
  slice_.begin();
  // However much moves, the poller has its turns: timers, ends of processes, connections.
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

// What was taken may have been all that would wake the progress thread: nobody would do then what is left for
// a turn in which nothing moves. Without a thread, somebody else sleeps on the descriptor.
void Driver::wake_thread() noexcept {
  if (!armed() || !armed_.exchange(false)) return;
  if (hand_back_)
    hand_back_();
  else if (endpoint_)
    endpoint_->arm();
}

// --- callers

bool Driver::progress(bool look) {
  check_process();
  Lock lock(mutex_, std::try_to_lock);
  if (!lock || led_) return false;
  const bool moved = move(look);
  unlock(lock);
  mutex_.give_way();
  return moved;
}

// A caller that waits, as the progress thread sees it. Under the lock.
class Driver::Caller {
 public:
  explicit Caller(Driver& driver) noexcept : driver_(driver) { come(); }
  Caller(const Caller&) = delete;
  Caller& operator=(const Caller&) = delete;
  void come() noexcept { driver_.change(driver_.state() + kRound + kCaller); }
  void go() noexcept { driver_.change(driver_.state() + kRound - kCaller); }

 private:
  Driver& driver_;
};

// One round as the leader: polls for a while, then sleeps once until something happens. Ends early when
// callbacks are due, which the leader must not run: they could not wait for anything.
class Driver::Leader {
 public:
  Leader(Driver& driver, Lock& lock, const std::function<bool()>& done, Deadline deadline) noexcept
      : driver_(driver), lock_(lock), done_(done), deadline_(deadline) {}

  void lead() {
    driver_.led_ = true;
    poll();
    if (!finished_ && !driver_.notice_ && driver_.endpoint_ && !deadline_.passed()) sleep();
    learn();
    driver_.led_ = false;
    driver_.change((driver_.state() & ~kStaying) + kRound);
    driver_.wake_followers();
    // The progress thread may rely on what was announced.
    if (announced_ && driver_.hand_back_) driver_.hand_back_();
  }

 private:
  void poll() {
    for (unsigned turns = 1;; ++turns) {
      const bool looked = move();
      finished_ = done_();
      if (finished_) return;
      if (turns < driver_.clock_turns_ && !driver_.slice_.spent()) continue;
      turns = 0;
      const auto now = Clock::now();
      look_at_clock(now, looked);
      if (std::exchange(moved_, false)) idle_since_ = now;
      if (driver_.notice_ || now - idle_since_ >= driver_.spin_ || deadline_.passed()) return;
      if (let_others_in(now - idle_since_ >= kYieldsAfter)) return;
    }
  }

  // What the poller tells of and what the links look after by themselves take turns, each with a slice. True
  // if it was the poller's.
  bool move() noexcept {
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

  void look_at_clock(Clock::time_point now, bool looked) noexcept {
    if (start_ == Clock::time_point())
      start_ = idle_since_ = looked_ = now;
    else if (now - last_ < kClockPeriod)
      driver_.clock_turns_ = std::min(kMostClockTurns, driver_.clock_turns_ * 2);
    else
      driver_.clock_turns_ = std::max(1u, driver_.clock_turns_ / 2);
    last_ = now;
    if (!announced_ && now - start_ >= kStays) {
      announced_ = true;
      driver_.change(driver_.state() | kStaying);
    }
    if (!looked && now - looked_ >= driver_.poller_period_) {
      looked_ = now;
      polls_ = true;
    }
  }

  // Others get the lock in between to post, if they want it, and the processor if nothing moves; true: after
  // that there is nothing left to poll for.
  bool let_others_in(bool yields) {
    if (!yields && !driver_.mutex_.wanted()) return false;
    lock_.unlock();
    if (yields) ::sched_yield();
    driver_.mutex_.give_way();
    lock_.lock();
    finished_ = done_();
    return finished_ || !driver_.endpoint_;
  }

  void sleep() {
    announced_ = true;
    driver_.state_.store(driver_.state() | kAsleep, std::memory_order_seq_cst);
    std::atomic_thread_fence(std::memory_order_seq_cst);
    driver_.wake_followers();  // a kick() before this line found nobody asleep
    finished_ = done_();
    if (!finished_ && driver_.endpoint_ && driver_.endpoint_->arm()) {
      lock_.unlock();
      slept_ = true;
      driver_.poller_.sleep(deadline_.poll_ms());
      lock_.lock();
    }
    driver_.change(driver_.state() & ~kAsleep);
    if (driver_.endpoint_) driver_.move(true);
  }

  // How long to poll the next time: longer where that spared the sleep, or would have.
  void learn() noexcept {
    std::chrono::nanoseconds& spin = driver_.spin_;
    if (!slept_)
      spin = std::min(kMostSpin, spin + microseconds(1));
    else
      spin =
          Clock::now() - start_ < kMostSpin ? std::min(kMostSpin, spin * 2) : std::max(kLeastSpin, spin / 2);
  }

  Driver& driver_;
  Lock& lock_;
  const std::function<bool()>& done_;
  const Deadline deadline_;
  Clock::time_point start_, idle_since_, last_, looked_;  // since the first look at the clock
  bool finished_ = false;
  bool announced_ = false;  // that the context will be handed back
  bool moved_ = false;      // since the last look at the clock
  bool polls_ = false;      // the next turn is the poller's
  bool slept_ = false;
};

void Driver::follow(Lock& lock, Deadline deadline) {
  ++followers_;
  followers_wake_.wait_until(lock, deadline.sooner(kFollows).at());
  --followers_;
}

bool Driver::wait(const std::function<bool()>& done, Deadline deadline) {
  check_process();
  Lock lock(mutex_);
  Caller caller(*this);
  bool finished = done();
  bool looked = false;
  while (!finished && endpoint_) {
    if (deadline.passed()) {
      // Even a caller without patience moves what is there: under manual progress nobody else does.
      if (looked || led_) break;
      move(true);
    } else if (!led_) {
      Leader(*this, lock, done, deadline).lead();
    } else {
      follow(lock, deadline);
    }
    looked = true;
    finished = done();
    if (notice_ && !finished) {
      // Callbacks may wait themselves, or take long: meanwhile this thread is nobody who moves anything.
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
  Lock lock(mutex_);
  Caller caller(*this);
  if (led_) {
    follow(lock, Deadline::in(kFollows));
  } else if (endpoint_) {
    move(false);
    spin_ = std::min(kMostSpin, spin_ + microseconds(1));  // as Leader::learn() where nobody slept
  }
  caller.go();
  unlock(lock);
}

void Driver::kick() noexcept {
  std::atomic_thread_fence(std::memory_order_seq_cst);
  if (state() & kAsleep) waker_.wake();
}

// --- the progress thread

Driver::Rest Driver::arm() noexcept {
  if (inherited()) return Rest::allowed;
  Lock lock(mutex_, std::try_to_lock);
  // A leader may stop without having slept, and then nothing would be armed.
  if (!lock || led_) return Rest::in_use;
  slice_.begin();
  if (endpoint_ && !endpoint_->arm()) return Rest::work_left;
  armed_.store(true, std::memory_order_relaxed);
  return Rest::allowed;
}

void Driver::set_hand_back(std::function<void()> hand_back) {
  const std::lock_guard lock(mutex_);
  hand_back_ = std::move(hand_back);
}

Driver::Who Driver::who() noexcept {
  armed_.store(false, std::memory_order_relaxed);
  const std::uint64_t now = state();
  const bool driven = now / kRound != std::exchange(seen_, now / kRound);
  if (now & kCallers) return now & (kAsleep | kStaying) ? Who::staying_caller : Who::spinning_caller;
  return driven ? Who::spinning_caller : Who::nobody;
}

}  // namespace fab
