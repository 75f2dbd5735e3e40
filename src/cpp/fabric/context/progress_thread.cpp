#include "fabric/context/progress_thread.h"

#include <sched.h>
#include <sys/epoll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>

#include "base/deadline.h"
#include "base/locks/mutex.h"
#include "base/process/quiet_thread.h"
#include "fabric/context/context.h"

namespace fab {
namespace {

using std::chrono::microseconds;
constexpr auto kLinger = microseconds(30);            // polling after activity, before the thread sleeps
constexpr auto kThreadYieldsAfter = microseconds(5);  // then it yields the processor between its turns
constexpr auto kBusyLinger = microseconds(2);  // the same of a busy thread, which then polls the next context
constexpr auto kLookPeriod = microseconds(4);  // between looks at the poller, which is a system call
constexpr auto kCheckPeriod = microseconds(100);  // for contexts that callers drive
constexpr auto kMostServed = microseconds(1000);  // at a stretch, before other contexts have their turn

}  // namespace

// One context as the thread sees it.
class ProgressThread::Slot final : public ReadyHandler {
 public:
  // The context is masked out of the poller until take_back() has armed it.
  Slot(Poller& poller, std::shared_ptr<Context> context, bool busy)
      : poller_(poller), context_(std::move(context)), busy_(busy), linger_(busy ? kBusyLinger : kLinger) {
    poller_.add(context_->driver().poll_fd(), 0, *this);
  }
  ~Slot() override { poller_.remove(context_->driver().poll_fd(), *this); }

  // For a context that the thread itself removes while it works on it: the slot goes when that work is done.
  void retire() noexcept {
    retired_ = true;
    mask(true);
  }
  bool retired() const noexcept { return retired_; }

  Context& context() const noexcept { return *context_; }
  bool masked() const noexcept { return masked_; }
  bool unfinished() const noexcept { return unfinished_; }  // serve() stopped in the middle of work

  void on_ready(std::uint32_t) noexcept override {
    if (context_->driver().who() == Driver::Who::nobody)
      serve();
    else
      mask(true);
  }

  // Works until nothing moved for a while and the context agrees to sleep, or others are due.
  // NOLINTNEXTLINE(bugprone-exception-escape): progress() refuses a child of fork(), where no thread runs
  void serve() noexcept {
    const auto start = Clock::now();
    auto looked = start - kLookPeriod;
    unfinished_ = false;
    for (;;) {
      auto idle_since = Clock::now(), now = idle_since;
      do {  // at least once: what woke the thread stays ready until it is dispatched
        if (now - idle_since >= kThreadYieldsAfter) ::sched_yield();
        if (context_->driver().who() != Driver::Who::nobody) return mask(true);
        const bool look = now - looked >= kLookPeriod;
        if (look) looked = now;
        const bool moved = context_->progress(look);
        if (retired_) return;
        now = Clock::now();
        if (moved) {
          idle_since = now;
          linger_ = busy_ ? kBusyLinger : kLinger;
          unfinished_ = idle_since - start > kMostServed;
          if (unfinished_) return mask(true);
        }
      } while (now - idle_since < linger_);
      if (busy_) {
        unfinished_ = true;
        return mask(true);
      }
      linger_ = microseconds(0);  // no more polling until something moves
      switch (context_->driver().arm()) {
        case Driver::Rest::allowed:
          return;
        case Driver::Rest::in_use:
          return mask(true);  // somebody is at work there for longer: look again soon
        case Driver::Rest::work_left:
          break;
      }
    }
  }

  void mask(bool on) noexcept {
    if (std::exchange(masked_, on) == on) return;
    poller_.modify(context_->driver().poll_fd(), on ? 0u : static_cast<std::uint32_t>(EPOLLIN), *this);
  }

 private:
  Poller& poller_;
  std::shared_ptr<Context> context_;
  const bool busy_;
  microseconds linger_;
  bool masked_ = true;
  bool unfinished_ = false;
  bool retired_ = false;
};

ProgressThread::ProgressThread(bool busy) : busy_(busy) {}

std::shared_ptr<ProgressThread> ProgressThread::start(bool busy) {
  std::shared_ptr<ProgressThread> made(new ProgressThread(busy));
  made->thread_ = start_quiet_thread("pyfab", [made] {
    made->id_.store(std::this_thread::get_id());
    made->run();
    made->let_go();
    const auto owner = std::move(made->owner_);  // goes here, and may be the last of its holders
  });
  return made;
}

// Others may be in remove() while the thread ends.
void ProgressThread::let_go() {
  const LockGuard lock(mutex_);
  const LockGuard arrivals_lock(arrivals_mutex_);
  arrivals_.clear();
  slots_.clear();
}

void ProgressThread::end(std::shared_ptr<void> owner) noexcept {
  stop_.store(true);
  if (is_this_thread()) {
    owner_ = std::move(owner);
    thread_.detach();
  } else {
    waker_.wake();
    thread_.join();
  }
}

void ProgressThread::add(std::shared_ptr<Context> context) {
  std::list<Slot> arrival;
  Slot& slot = arrival.emplace_back(poller_, std::move(context), busy_);
  slot.context().driver().set_wake_thread([this] { waker_.wake(); });
  const LockGuard lock(arrivals_mutex_);
  arrivals_.splice(arrivals_.end(), arrival);
  waker_.wake();
}

void ProgressThread::remove(Context& context) {
  context.driver().set_wake_thread(nullptr);
  const LockGuard lock(mutex_);  // the thread may be dispatching what has just arrived
  {
    const LockGuard arrivals_lock(arrivals_mutex_);
    slots_.splice(slots_.end(), arrivals_);
  }
  if (is_this_thread()) {
    for (Slot& slot : slots_)
      if (&slot.context() == &context) slot.retire();
  } else {
    std::erase_if(slots_, [&](const Slot& slot) { return &slot.context() == &context; });
  }
}

ProgressThread::Again ProgressThread::take_back() {
  Again again = Again::never;
  for (Slot& slot : slots_) {
    if (slot.retired() || (!slot.masked() && slot.context().driver().armed())) continue;
    switch (slot.context().driver().who()) {
      case Driver::Who::nobody:
        slot.mask(false);
        slot.serve();
        if (slot.masked()) again = std::max(again, slot.unfinished() ? Again::at_once : Again::soon);
        break;
      case Driver::Who::spinning_caller:
        again = std::max(again, Again::soon);
        break;
      case Driver::Who::staying_caller:
        break;  // wakes the thread when it stops driving
    }
  }
  if (busy_ && !slots_.empty()) again = Again::at_once;
  return again;
}

void ProgressThread::run() {
  Again again = Again::soon;
  while (!stop_.load()) {
    if (again == Again::soon) {
      timespec timeout{0, std::chrono::nanoseconds(kCheckPeriod).count()};
      epoll_event event;
      if (::syscall(SYS_epoll_pwait2, poller_.fd(), &event, 1, &timeout, nullptr, 0) < 0 && errno == ENOSYS)
        poller_.sleep(1);  // kernels before 5.11
    } else if (again == Again::never) {
      poller_.sleep(-1);
    } else if (busy_) {
      ::sched_yield();  // whoever has no processor of its own gets this one
    }
    mutex_.give_way();
    const LockGuard lock(mutex_);
    poller_.dispatch();  // comes first: it resets the waker, whose news is looked at below
    {
      const LockGuard arrivals_lock(arrivals_mutex_);
      slots_.splice(slots_.end(), arrivals_);
    }
    again = take_back();
    std::erase_if(slots_, [](const Slot& slot) { return slot.retired(); });
  }
}

}  // namespace fab
