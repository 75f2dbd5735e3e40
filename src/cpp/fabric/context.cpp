#include "fabric/context.h"

#include <algorithm>
#include <string>

namespace fab {
namespace {

using std::chrono::microseconds;
constexpr std::chrono::nanoseconds kLeastSpin = microseconds(1), kMostSpin = microseconds(60);

void relax() noexcept {
#ifdef __x86_64__
  __builtin_ia32_pause();
#endif
}

}  // namespace

Context::Context(Domain& domain, Parameters parameters)
    : parameters_(std::move(parameters)), spin_(microseconds(20)) {
  endpoint_ = domain.open_endpoint({.context = parameters_.index,
                                    .cell = parameters_.cell,
                                    .auth_key = parameters_.auth_key,
                                    .poller = poller_,
                                    .completions = *parameters_.completions,
                                    .events = *parameters_.events,
                                    .peers = *parameters_.peers,
                                    .wake_domain = parameters_.wake_domain});
}

Context::~Context() {
  if (fork_generation_ == fork_generation()) {
    close();
    return;
  }
  // In a child of fork() the connections are the parent's: nothing of them may be touched, not even to say
  // goodbye.
  for (Peer& peer : paths_) {
    [[maybe_unused]] auto* const path = peer.path.release();
  }
  [[maybe_unused]] auto* const endpoint = endpoint_.release();
}

void Context::close() {
  Lock lock(mutex_);
  paths_.clear();
  endpoint_.reset();
  followers_wake_.notify_all();
  kick();
  unlock_and_notify(lock);
}

std::vector<Part> Context::parts() const {
  const std::lock_guard lock(mutex_);
  return endpoint_ ? endpoint_->parts() : std::vector<Part>{};
}

Path& Context::path_to(PeerId peer) {
  const std::uint32_t generation = parameters_.peers->generation(peer);
  if (peer < paths_.size()) {
    Peer& known = paths_[peer];
    if (known.path && known.generation == generation && known.path->state() == Errc::ok) return *known.path;
  }
  if (!endpoint_) throw Error(Errc::closed, "the endpoint is closed");
  if (generation == 0)
    throw Error(Errc::invalid, "peer " + std::to_string(static_cast<std::int64_t>(peer)) +
                                   " is not in the address vector (never inserted, or removed)");
  if (peer >= paths_.size()) paths_.resize(peer + 1);
  Peer& slot = paths_[peer];
  slot.path.reset();  // of another peer by now, or lost: a new one may work again
  const Name name = Name::decode(parameters_.peers->lookup(peer));
  try {
    slot.path = endpoint_->connect(peer, name);
  } catch (const Error& error) {
    if (error.code() != Errc::unreachable) throw;
    std::string links;
    for (const Part& part : name.parts)
      if (part.context == 0) links.append(links.empty() ? "" : ", ").append(part.link);
    throw Error(Errc::unreachable, std::string(error.what()) + " (links of the peer: " + links + ")");
  }
  slot.generation = generation;
  slot.serial = ++paths_opened_;
  return *slot.path;
}

class Context::Turn {
 public:
  explicit Turn(Context& context) : Turn(context, Lock(context.mutex_)) {}
  Turn(Context& context, Lock lock) : context_(context), lock_(std::move(lock)) {}
  Turn(const Turn&) = delete;
  Turn& operator=(const Turn&) = delete;
  ~Turn() {
    if (context_.followers_) context_.followers_wake_.notify_all();  // one may wait for what settled in place
    if (context_.asleep_.load(std::memory_order_relaxed)) context_.kick();
    context_.unlock_and_notify(lock_);
  }

 private:
  Context& context_;
  Lock lock_;
};

void Context::check_process() const {
  if (fork_generation_ != fork_generation())
    throw Error(Errc::closed,
                "the endpoint was opened by the parent process, before a fork; open one in this process");
}

std::size_t Context::post_to(PeerId peer, std::span<const Transfer> batch) {
  Path& path = path_to(peer);
  if (!parameters_.rules->active()) return path.post(batch);
  std::vector<Transfer> translated;
  return path.post(parameters_.rules->apply(batch, translated));
}

std::size_t Context::post(PeerId peer, std::span<const Transfer> batch) {
  const Turn turn(*this);
  return post_to(peer, batch);
}

std::optional<std::size_t> Context::try_post(PeerId peer, std::span<const Transfer> batch) {
  Lock lock(mutex_, std::try_to_lock);
  if (!lock) return std::nullopt;
  const Turn turn(*this, std::move(lock));
  return post_to(peer, batch);
}

void Context::abandon(Operation& operation, std::uint32_t parts, Errc error) {
  const Turn turn(*this);
  operation.abandon(parts, error);
}

std::uint64_t Context::resolve(PeerId peer, const RemoteRegion& region) {
  check_process();
  const Turn turn(*this);
  return path_to(peer).resolve(region);
}

PathCounts Context::counts(PeerId peer) {
  check_process();
  const std::lock_guard lock(mutex_);
  return peer < paths_.size() && paths_[peer].path ? paths_[peer].path->counts() : PathCounts{};
}

PathReport Context::report(PeerId peer) {
  check_process();
  const Turn turn(*this);
  return path_to(peer).report();
}

Reach Context::reaches(PeerId peer) const {
  check_process();
  const Name name = Name::decode(parameters_.peers->lookup(peer));
  const std::lock_guard lock(mutex_);
  if (!endpoint_) throw Error(Errc::closed, "the endpoint is closed");
  return endpoint_->reaches(name);
}

bool Context::move() noexcept {
  bool moved = endpoint_ && endpoint_->progress();
  if (!moved) moved = poller_.dispatch() > 0;
  if (moved && followers_) followers_wake_.notify_all();
  return moved;
}

bool Context::progress() {
  check_process();
  Lock lock(mutex_, std::try_to_lock);
  if (!lock || led_) return false;
  const bool moved = move();
  unlock_and_notify(lock);
  return moved;
}

bool Context::wait(const std::function<bool()>& done, Deadline deadline) {
  check_process();
  callers_.fetch_add(1, std::memory_order_relaxed);
  driven_.store(true, std::memory_order_relaxed);
  Lock lock(mutex_);
  bool finished = done();
  bool looked = false;
  while (!finished && endpoint_) {
    if (deadline.passed()) {
      // Even a caller without patience moves what is there: under manual progress nobody else does.
      if (looked || led_) break;
      move();
    } else if (!led_) {
      lead(lock, done, deadline);
    } else {
      ++followers_;
      followers_wake_.wait_until(lock, deadline.sooner(std::chrono::seconds(1)).at());
      --followers_;
    }
    looked = true;
    finished = done();
  }
  callers_.fetch_sub(1, std::memory_order_relaxed);
  unlock_and_notify(lock);
  return finished;
}

std::vector<Context::FlushGoal> Context::flush_goals(PeerId peer) {
  check_process();
  std::vector<FlushGoal> goals;
  const std::lock_guard lock(mutex_);
  for (PeerId i = 0; i < paths_.size(); ++i)
    if ((peer == kNoPeer || peer == i) && paths_[i].path)
      goals.push_back({i, paths_[i].serial, paths_[i].path->counts().posted});
  return goals;
}

bool Context::flushed(std::vector<FlushGoal>& goals, Deadline deadline) {
  return wait(
      [&] {
        while (!goals.empty()) {
          const FlushGoal& goal = goals.back();
          // A path that was replaced had settled all it took.
          if (goal.peer < paths_.size() && paths_[goal.peer].path && paths_[goal.peer].serial == goal.path &&
              paths_[goal.peer].path->counts().settled < goal.settled)
            return false;
          goals.pop_back();
        }
        return true;
      },
      deadline);
}

// One round as the leader: polls for a while, then sleeps once until something happens.
void Context::lead(Lock& lock, const std::function<bool()>& done, Deadline deadline) {
  led_ = true;
  const auto start = Clock::now();
  auto idle_since = start;
  bool finished = false;
  for (;;) {
    const bool moved = move();
    finished = done();
    if (finished) break;
    const auto now = Clock::now();
    if (moved) idle_since = now;
    if (now - idle_since >= spin_ || deadline.passed()) break;
    // Others get in between to post, and callbacks run.
    const bool notice = notice_;
    if (notice) {
      unlock_and_notify(lock);
    } else {
      lock.unlock();
      relax();
    }
    lock.lock();
    finished = done();
    if (finished || !endpoint_) break;
  }
  bool slept = false, announced = false;
  if (!finished && endpoint_ && !deadline.passed()) {
    unlock_and_notify(lock);
    lock.lock();
    announced = true;
    asleep_.store(true, std::memory_order_seq_cst);
    std::atomic_thread_fence(std::memory_order_seq_cst);
    if (followers_) followers_wake_.notify_all();  // a kick() before this line found nobody asleep
    finished = done();
    if (!finished && endpoint_ && endpoint_->arm()) {
      lock.unlock();
      slept = true;
      poller_.sleep(deadline.poll_ms());
      lock.lock();
    }
    asleep_.store(false, std::memory_order_relaxed);
    if (endpoint_) move();
  }
  const auto took = Clock::now() - start;
  if (!slept)
    spin_ = std::min(kMostSpin, spin_ + microseconds(1));
  else
    spin_ = took < kMostSpin ? std::min(kMostSpin, spin_ * 2) : std::max(kLeastSpin, spin_ / 2);
  led_ = false;
  driven_.store(true, std::memory_order_relaxed);
  if (followers_) followers_wake_.notify_all();
  if (announced && hand_back_) hand_back_();  // the progress thread may rely on the announcement
}

void Context::kick() noexcept {
  std::atomic_thread_fence(std::memory_order_seq_cst);
  if (asleep_.load(std::memory_order_relaxed)) waker_.wake();
}

void Context::locked(const std::function<void(Endpoint&)>& work) {
  Lock lock(mutex_);
  if (endpoint_) work(*endpoint_);
  unlock_and_notify(lock);
}

void Context::unlock_and_notify(Lock& lock) {
  const bool notice = std::exchange(notice_, false);
  lock.unlock();
  if (notice && on_notice) on_notice();
}

Context::Rest Context::arm() noexcept {
  if (fork_generation_ != fork_generation()) return Rest::allowed;
  Lock lock(mutex_, std::try_to_lock);
  // A leader may stop without having slept, and then nothing would be armed.
  if (!lock || led_) return Rest::in_use;
  return !endpoint_ || endpoint_->arm() ? Rest::allowed : Rest::work_left;
}

void Context::set_hand_back(std::function<void()> hand_back) {
  const std::lock_guard lock(mutex_);
  hand_back_ = std::move(hand_back);
}

Context::Driver Context::driver() noexcept {
  if (callers_.load(std::memory_order_relaxed) != 0)
    return asleep_.load(std::memory_order_relaxed) ? Driver::sleeping_caller : Driver::spinning_caller;
  return driven_.exchange(false, std::memory_order_relaxed) ? Driver::spinning_caller : Driver::nobody;
}

}  // namespace fab
