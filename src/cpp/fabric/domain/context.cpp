#include "fabric/domain/context.h"

#include <sched.h>

#include <algorithm>
#include <string>
#include <thread>

#include "fabric/memory/check_transfer.h"

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

}  // namespace

Context::Context(Domain& domain, Parameters parameters)
    : parameters_(std::move(parameters)),
      receives_(parameters_.directed_receive),
      poller_period_(kLeastPollerPeriod),
      spin_(microseconds(20)) {
  endpoint_ = domain.open_endpoint({.context = parameters_.index,
                                    .cell = parameters_.cell,
                                    .keys = parameters_.keys,
                                    .poller = poller_,
                                    .completions = *parameters_.completions,
                                    .events = events_,
                                    .peers = *parameters_.peers,
                                    .receives = receives_,
                                    .links = links_,
                                    .slice = slice_,
                                    .path_ended = path_ended_,
                                    .wake_domain = parameters_.wake_domain,
                                    .lingerers = &lingerers_});
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
  for (auto& [target, peer] : named_paths_) {
    [[maybe_unused]] auto* const path = peer.path.release();
  }
  for (auto& [target, peer] : replaced_) {
    [[maybe_unused]] auto* const path = peer.path.release();
  }
  [[maybe_unused]] auto* const endpoint = endpoint_.release();
}

// Messages that count as sent survive that this side goes, as far as their receivers read them soon. Others
// get the lock in between.
void Context::linger(Lock& lock) {
  constexpr std::chrono::milliseconds kFarewell(200);  // docs/messages.md
  constexpr microseconds kLook(20);
  const Deadline deadline = Deadline::in(kFarewell);
  const auto anybody = [this] {
    slice_.begin();
    bool any = false;
    for (Lingerer& one : lingerers_) any |= one.lingers();
    return any;
  };
  while (anybody() && !deadline.passed()) {
    lock.unlock();
    std::this_thread::sleep_for(kLook);
    lock.lock();
  }
}

void Context::close() {
  Lock lock(mutex_);
  linger(lock);
  receives_.drop_all();
  last_path_ = nullptr;
  paths_.clear();
  named_paths_.clear();
  replaced_.clear();
  leaving_.clear();
  endpoint_.reset();
  followers_wake_.notify_all();
  kick();
  unlock_and_notify(lock);
}

std::vector<Part> Context::parts() const {
  const std::lock_guard lock(mutex_);
  return endpoint_ ? endpoint_->parts() : std::vector<Part>{};
}

std::vector<std::string> Context::socket_names() const {
  const std::lock_guard lock(mutex_);
  return endpoint_ ? endpoint_->socket_names() : std::vector<std::string>{};
}

PeerTarget Context::target(PeerId peer) const {
  const PeerTarget target = take_apart(peer, parameters_.rx_bits);
  if (peer != kNoPeer && target.group > parameters_.max_group_id)
    throw Error(Errc::invalid, "group " + std::to_string(target.group) + " of peer " +
                                   std::to_string(target.index) + ": this domain has groups up to " +
                                   std::to_string(parameters_.max_group_id));
  return target;
}

namespace {

std::uint64_t named(const PeerTarget& target) noexcept {
  return (std::uint64_t{target.rx_context} << kPeerIndexBits) | target.index;
}

}  // namespace

template <class Visit>
void Context::visit_paths(Visit&& visit) {
  for (std::uint64_t i = 0; i < paths_.size(); ++i)
    if (paths_[i].path) visit(PeerTarget{.index = i}, paths_[i]);
  for (auto& [number, there] : named_paths_)
    if (there.path)
      visit(PeerTarget{.index = number & kMaxPeers,
                       .rx_context = static_cast<std::uint32_t>(number >> kPeerIndexBits)},
            there);
}

Context::Peer* Context::known(const PeerTarget& target) {
  if (target.rx_context == 0) return target.index < paths_.size() ? &paths_[target.index] : nullptr;
  const auto found = named_paths_.find(named(target));
  return found == named_paths_.end() ? nullptr : &found->second;
}

// Which context of the peer is meant. Without receive contexts in its handles, contexts pair up by number.
std::uint16_t Context::context_of(const PeerTarget& target, const Name& peer) const noexcept {
  if (parameters_.rx_bits != 0) return static_cast<std::uint16_t>(target.rx_context);
  return static_cast<std::uint16_t>(parameters_.index % std::max<std::uint16_t>(peer.contexts(), 1));
}

const AuthKey& Context::key_under(std::uint32_t auth) const {
  for (const AuthKey& key : parameters_.keys)
    if (std::ranges::find(key.handles, auth) != key.handles.end()) return key;
  throw Error(Errc::invalid, "the endpoint does not have authorization key " + std::to_string(auth - 1) +
                                 " of its address vector: it takes those that are there when it is opened");
}

std::size_t Context::key_to(PeerId index) const {
  const AuthKeys& keys = parameters_.keys;
  const std::uint32_t auth = parameters_.peers->auth(index);
  if (auth != 0) return static_cast<std::size_t>(&key_under(auth) - keys.data());
  if (keys.size() == 1) return 0;
  throw Error(Errc::invalid, "peer " + std::to_string(index) +
                                 " was inserted without an authorization key, of "
                                 "which the endpoint has " +
                                 std::to_string(keys.size()) +
                                 ": insert it with InsertFlag.AUTH_KEY and the handle of one of them");
}

class Context::Turn {
 public:
  explicit Turn(Context& context) : Turn(context, Lock(context.mutex_)) {}
  Turn(Context& context, Lock lock) : context_(context), lock_(std::move(lock)) { context_.slice_.begin(); }
  Turn(const Turn&) = delete;
  Turn& operator=(const Turn&) = delete;
  ~Turn() {
    if (context_.followers_) context_.followers_wake_.notify_all();  // one may wait for what settled in place
    if (context_.asleep_.load(std::memory_order_relaxed)) context_.kick();
    const bool gives_way = context_.owes_lock();
    context_.unlock_and_notify(lock_);
    if (gives_way) context_.mutex_.give_way();
  }

 private:
  Context& context_;
  Lock lock_;
};

namespace {

// What this thread asks the user about.
struct Asking {
  const Context* context;
  PeerId peer;
  const Asking* outer;
};
thread_local const Asking* asking_now = nullptr;

}  // namespace

template <class Call>
auto Context::asking(const Call& call) {
  for (;;) {
    std::optional<Unasked> unasked;
    try {
      return call();
    } catch (const Unanswered& thrown) {
      unasked = thrown.unasked;
    }
    ask(*unasked);
  }
}

void Context::ask(const Unasked& unasked) {
  struct Now {
    explicit Now(const Asking& asking) { asking_now = &asking; }
    ~Now() { asking_now = asking_now->outer; }
  };
  const Asking asking{this, unasked.peer, asking_now};
  std::vector<double> shares;
  {
    const Now now(asking);
    shares = unasked.question();
  }
  const Turn turn(*this);
  if (endpoint_) endpoint_->answer(unasked.name, unasked.target, unasked.key, shares);
}

Path& Context::path_to(PeerId peer) {
  const std::uint64_t changes = parameters_.peers->changes();
  if (peer != last_peer_ || changes != last_changes_ || !last_path_ || last_path_->state() != Errc::ok) {
    last_path_ = nullptr;
    last_path_ = &find_path(peer);
    last_peer_ = peer;
    last_changes_ = changes;
  }
  return *last_path_;
}

Path& Context::find_path(PeerId peer) {
  const PeerTarget target = this->target(peer);
  const std::uint32_t generation = parameters_.peers->generation(target.index);
  if (const Peer* there = known(target))
    if (there->path && there->generation == generation && there->path->state() == Errc::ok)
      return *there->path;
  if (!endpoint_) throw Error(Errc::closed, "the endpoint is closed");
  if (generation == 0)
    throw Error(Errc::invalid, "peer " + std::to_string(static_cast<std::int64_t>(peer)) +
                                   " is not in the address vector (never inserted, or removed)");
  if (target.rx_context == 0 && target.index >= paths_.size()) paths_.resize(target.index + 1);
  Peer& slot = target.rx_context == 0 ? paths_[target.index] : named_paths_[named(target)];
  // It is another peer's by now, or lost: then a new one may work again.
  if (slot.path && slot.path->state() == Errc::ok && !slot.path->idle())
    std::swap(replaced_.emplace_back(target, Peer{}).second, slot);
  slot.path.reset();
  slot.ended = false;
  const Name name = parameters_.peers->name(target.index);
  const std::size_t key = key_to(target.index);
  if (auto question = endpoint_->question(target.index, name, context_of(target, name), key)) {
    for (const Asking* asked = asking_now; asked; asked = asked->outer)
      if (asked->context == this && asked->peer == target.index)
        throw Error(Errc::invalid,
                    "rail_policy was called for peer " + std::to_string(target.index) +
                        " and uses that peer itself; it must return before the peer can be used");
    throw Unanswered({std::move(question), target.index, name, context_of(target, name), key});
  }
  try {
    slot.path = endpoint_->connect(target.index, name, context_of(target, name), key);
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

// --- paths that are not needed any more

// What is left of a path that ended: what it did. All else, the descriptors above all, goes at once, however
// long the next post to the peer is in coming.
class Context::EndedPath final : public Path {
 public:
  explicit EndedPath(const Path& former)
      : state_(former.state()), counts_(former.counts()), report_(former.report()) {}
  std::uint64_t resolve(const RemoteRegion& region) override { return region.key; }
  std::size_t post(std::span<const Transfer>) noexcept override { return 0; }  // nobody posts to one
  Errc state() const noexcept override { return state_; }
  bool idle() const noexcept override { return true; }
  PathCounts counts() const noexcept override { return counts_; }
  PathReport report() const override { return report_; }

 private:
  const Errc state_;
  const PathCounts counts_;
  const PathReport report_;
};

void Context::end(Peer& peer) noexcept {
  try {
    peer.path = std::make_unique<EndedPath>(*peer.path);
    peer.ended = true;
  } catch (const std::bad_alloc&) {
    peer.path.reset();  // then nobody knows what it did
    peer.ended = false;
  }
}

// Of a peer that was removed; false: something is under way.
bool Context::let_go(const PeerTarget& target) noexcept {
  Peer* const there = known(target);
  if (!there || !there->path || there->generation == parameters_.peers->generation(target.index)) return true;
  if (!there->path->idle()) return false;
  there->path.reset();
  there->ended = false;
  return true;
}

void Context::tidy() noexcept {
  last_path_ = nullptr;
  if (std::exchange(path_ended_, false))
    visit_paths([](const PeerTarget&, Peer& there) {
      if (!there.ended && there.path->state() != Errc::ok) end(there);
    });
  std::erase_if(leaving_, [this](const PeerTarget& target) { return let_go(target); });
  std::erase_if(replaced_, [](const auto& former) {
    return former.second.path->state() != Errc::ok || former.second.path->idle();
  });
}

void Context::removed(std::uint64_t index) noexcept {
  if (fork_generation_ != fork_generation()) return;
  const std::lock_guard lock(mutex_);
  last_path_ = nullptr;
  const auto leave = [&](const PeerTarget& target) {
    try {
      if (!let_go(target)) leaving_.push_back(target);
    } catch (const std::bad_alloc&) {
      return;  // it goes when its place is given to another peer
    }
  };
  leave({.index = index});
  for (const auto& [number, there] : named_paths_)
    if ((number & kMaxPeers) == index)
      leave({.index = index, .rx_context = static_cast<std::uint32_t>(number >> kPeerIndexBits)});
}

void Context::check_process() const {
  if (fork_generation_ != fork_generation())
    throw Error(Errc::closed,
                "the endpoint was opened by the parent process, before a fork; open one in this process");
}

// At the end of a turn: whether the lock has to go to those who wait for it. Turns that are short may follow
// each other until they make a slice, because handing the lock over takes longer than they do.
bool Context::owes_lock() noexcept {
  if (!mutex_.wanted()) {
    moved_before_others_ = 0;
    return false;
  }
  moved_before_others_ += slice_.used();
  if (moved_before_others_ < Slice::kBytes) return false;
  moved_before_others_ = 0;
  return true;
}

std::uint64_t Context::standing(PeerId peer) {
  const PeerTarget target = this->target(peer);
  const Peer* there = known(target);
  const bool stands = there && there->path && there->path->state() == Errc::ok &&
                      there->generation == parameters_.peers->generation(target.index);
  return stands ? there->serial : 0;
}

std::size_t Context::post_slice(PeerId peer, std::span<const Transfer> slice, Room& room) {
  const OverlapWatch::Visit visit(moving_);
  if (room.path != 0 && standing(peer) != room.path) {
    room.ended = true;
    return 0;
  }
  const std::size_t taken = path_to(peer).post(slice);
  room.path = taken ? 0 : standing(peer);
  slice_.spend(slice.first(taken));
  return taken;
}

std::size_t Context::post(PeerId peer, std::span<const Transfer> batch, Room& room) {
  std::vector<Transfer> translated;
  if (parameters_.rules->active()) batch = parameters_.rules->apply(batch, translated, parameters_.exempt);
  std::size_t posted = 0;
  do {
    const auto slice = batch.subspan(posted, Slice::front(batch.subspan(posted)));
    std::size_t taken = 0;
    try {
      taken = asking([&] {
        const Turn turn(*this);
        return post_slice(peer, slice, room);
      });
    } catch (...) {
      if (posted == 0) throw;  // otherwise the next call says it
    }
    posted += taken;
    if (taken < slice.size()) break;
  } while (posted < batch.size());
  return posted;
}

std::optional<std::size_t> Context::try_post(PeerId peer, std::span<const Transfer> batch, Room& room) try {
  if (Slice::front(batch) < batch.size()) return std::nullopt;
  std::vector<Transfer> translated;
  if (parameters_.rules->active()) batch = parameters_.rules->apply(batch, translated, parameters_.exempt);
  Lock lock(mutex_, std::try_to_lock);
  if (!lock) return std::nullopt;
  const Turn turn(*this, std::move(lock));
  return post_slice(peer, batch, room);
} catch (const Unanswered&) {
  return std::nullopt;
}

void Context::abandon(Operation& operation, std::uint32_t parts, Errc error) {
  const Turn turn(*this);
  operation.abandon(parts, error);
}

void Context::settle(Operation& operation, Errc error, std::uint64_t bytes) {
  const Turn turn(*this);
  operation.settle(error, bytes);
}

std::uint64_t Context::resolve(PeerId peer, const RemoteRegion& region) {
  check_process();
  return asking([&] {
    const Turn turn(*this);
    return path_to(peer).resolve(region);
  });
}

PathCounts Context::counts(PeerId peer) {
  check_process();
  const std::lock_guard lock(mutex_);
  const Peer* there = known(take_apart(peer, parameters_.rx_bits));
  return there && there->path ? there->path->counts() : PathCounts{};
}

PathReport Context::report(PeerId peer) {
  check_process();
  return asking([&] {
    const Turn turn(*this);
    return path_to(peer).report();
  });
}

Reach Context::reaches(PeerId peer) const {
  check_process();
  const PeerTarget target = this->target(peer);
  const Name name = parameters_.peers->name(target.index);
  const std::lock_guard lock(mutex_);
  if (!endpoint_) throw Error(Errc::closed, "the endpoint is closed");
  return endpoint_->reaches(name, context_of(target, name), key_to(target.index));
}

// --- messages

void Context::check_source(const Receive& receive) const {
  if (!parameters_.shared_receives && (receive.rule.source == kNoPeer || !parameters_.directed_receive))
    throw Error(Errc::not_supported_here,
                "a receive from any source was asked for, but the links share no receive queue "
                "(lnx_use_srq, FI_LNX_USE_SRQ); name the peer to receive from");
}

void Context::check_local(const Receive& receive) const {
  Transfer landing{};  // a receive needs its memory as a send does
  landing.op = OpCode::send;
  landing.length = receive.length;
  landing.piece_count = receive.piece_count;
  receive.piece_count ? void(landing.local_pieces = receive.pieces) : void(landing.local = receive.local);
  if (lacks_local(landing))
    throw Error(Errc::bounds, "the memory for " + std::to_string(receive.length) +
                                  " bytes to be received is at a null address; give the address of a buffer");
  if (parameters_.exempt) return;
  const iovec whole{receive.piece_count ? nullptr : receive.local, static_cast<std::size_t>(receive.length)};
  parameters_.rules->check_receive(receive.piece_count ? std::span(receive.pieces, receive.piece_count)
                                                       : std::span(&whole, 1));
}

void Context::receive(const Receive& receive) {
  check_process();
  check_source(receive);
  check_local(receive);
  const Turn turn(*this);
  if (!endpoint_) throw Error(Errc::closed, "the endpoint is closed");
  receives_.post(receive);
}

bool Context::try_receive(const Receive& receive) {
  check_process();
  check_source(receive);
  check_local(receive);
  Lock lock(mutex_, std::try_to_lock);
  if (!lock) return false;
  const Turn turn(*this, std::move(lock));
  if (!endpoint_) throw Error(Errc::closed, "the endpoint is closed");
  receives_.post(receive);
  return true;
}

bool Context::cancel(const Operation& operation) {
  check_process();
  const Turn turn(*this);
  return receives_.cancel(operation);
}

bool Context::cancel(std::uint64_t context) {
  check_process();
  const Turn turn(*this);
  return receives_.cancel_context(context);
}

std::optional<Context::Waiting> Context::look(const MatchRule& rule, Look look) {
  check_process();
  const Turn turn(*this);
  if (!endpoint_) throw Error(Errc::closed, "the endpoint is closed");
  move();
  const Message* message = receives_.peek(rule);
  if (!message) return std::nullopt;
  Waiting found{message->head, message->sender->reported(), 0};
  if (look == Look::claim) found.claim = receives_.claim(rule);
  if (look == Look::discard) receives_.discard(rule);
  return found;
}

bool Context::receive_claimed(std::uint64_t claim, const Receive& receive) {
  check_process();
  check_local(receive);
  const Turn turn(*this);
  return receives_.receive_claimed(claim, receive);
}

bool Context::discard_claimed(std::uint64_t claim) {
  check_process();
  const Turn turn(*this);
  return receives_.discard_claimed(claim);
}

ReceiveQueue::Sizes Context::message_sizes() const {
  check_process();
  const std::lock_guard lock(mutex_);
  return receives_.sizes();
}

LinkBook Context::link_counters() const {
  check_process();
  const std::lock_guard lock(mutex_);
  return links_;
}

bool Context::move(bool look) noexcept {
  const OverlapWatch::Visit visit(moving_);
  slice_.begin();
  // However much moves, the poller has its turns: timers, ends of processes, connections.
  bool moved = turns_ >= kPollerTurns && look_at_poller();
  if (endpoint_ && endpoint_->progress()) {
    moved = true;
    wake_sleeper();
  }
  turns_ += moved ? kTurnsOfMove : 1;
  if (look && !moved) moved = look_at_poller();
  if (path_ended_ || (moved && !(leaving_.empty() && replaced_.empty()))) tidy();
  if (moved && followers_) followers_wake_.notify_all();
  return moved;
}

bool Context::look_at_poller() noexcept {
  const OverlapWatch::Visit visit(moving_);
  turns_ = 0;
  if (poller_.dispatch() == 0) return false;
  wake_sleeper();
  return true;
}

// What was taken may have been all that would wake somebody else who sleeps on the poller: nobody would do
// then what is left for a turn in which nothing moves.
void Context::wake_sleeper() noexcept {
  if (!armed_.load(std::memory_order_relaxed) || !armed_.exchange(false)) return;
  if (hand_back_)
    hand_back_();
  else if (endpoint_)
    endpoint_->arm();
}

bool Context::progress(bool look) {
  check_process();
  Lock lock(mutex_, std::try_to_lock);
  if (!lock || led_) return false;
  const bool moved = move(look);
  unlock_and_notify(lock);
  mutex_.give_way();
  return moved;
}

bool Context::wait(const std::function<bool()>& done, Deadline deadline) {
  check_process();
  Lock lock(mutex_);
  count_caller(1);
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
    if (notice_ && !finished) {
      // Callbacks may wait themselves, or take long: meanwhile this thread is nobody who moves anything.
      count_caller(-1);
      unlock_and_notify(lock);
      lock.lock();
      count_caller(1);
      finished = done();
    }
  }
  count_caller(-1);
  unlock_and_notify(lock);
  return finished;
}

// Under the lock, so that it needs no locked instruction.
void Context::count_caller(int difference) noexcept {
  callers_.store(callers_.load(std::memory_order_relaxed) + static_cast<std::uint32_t>(difference),
                 std::memory_order_relaxed);
  driven_.store(true, std::memory_order_relaxed);
}

std::vector<Context::FlushGoal> Context::flush_goals(PeerId peer) {
  check_process();
  std::vector<FlushGoal> goals;
  const std::lock_guard lock(mutex_);
  const std::uint64_t only = take_apart(peer, parameters_.rx_bits).index;
  visit_paths([&](const PeerTarget& target, const Peer& there) {
    if (peer == kNoPeer || only == target.index)
      goals.push_back({target, there.serial, there.path->counts().posted});
  });
  for (const auto& [target, there] : replaced_)
    if (peer == kNoPeer) goals.push_back({target, there.serial, there.path->counts().posted});
  return goals;
}

// The path that is meant, if it has not gone: then it had settled all it took.
const Path* Context::find(const FlushGoal& goal) {
  const Peer* there = known(goal.peer);
  if (there && there->path && there->serial == goal.path) return there->path.get();
  for (const auto& [target, former] : replaced_)
    if (former.serial == goal.path) return former.path.get();
  return nullptr;
}

bool Context::flushed(std::vector<FlushGoal>& goals, Deadline deadline) {
  return wait(
      [&] {
        while (!goals.empty()) {
          const FlushGoal& goal = goals.back();
          const Path* const path = find(goal);
          if (path && path->counts().settled < goal.settled) return false;
          goals.pop_back();
        }
        return true;
      },
      deadline);
}

// One round as the leader: polls for a while, then sleeps once until something happens. Ends early when
// callbacks are due, which the leader must not run: they could not wait for anything.
void Context::lead(Lock& lock, const std::function<bool()>& done, Deadline deadline) {
  led_ = true;
  Clock::time_point start, idle_since, last, polled;  // since the first look at the clock
  bool finished = false, announced = false, moved = false, polls = false;
  for (unsigned turn = 1;; ++turn) {
    // What the poller tells of and what the links look after by themselves take turns, each with a slice.
    if (polls) {
      slice_.begin();
      const bool found = look_at_poller();
      poller_period_ = found ? kLeastPollerPeriod : std::min(kMostPollerPeriod, poller_period_ * 2);
      moved |= found;
    } else {
      moved |= move(false);
    }
    const bool polled_now = std::exchange(polls, false);
    finished = done();
    if (finished) break;
    if (turn < clock_turns_ && !slice_.spent()) continue;
    turn = 0;
    const auto now = Clock::now();
    if (start == Clock::time_point())
      start = idle_since = polled = now;
    else if (now - last < kClockPeriod)
      clock_turns_ = std::min(kMostClockTurns, clock_turns_ * 2);
    else
      clock_turns_ = std::max(1u, clock_turns_ / 2);
    last = now;
    if (!announced && now - start >= kStays) {
      announced = true;
      staying_.store(true, std::memory_order_seq_cst);
    }
    if (!polled_now && now - polled >= poller_period_) {
      polled = now;
      polls = true;
    }
    if (std::exchange(moved, false)) idle_since = now;
    if (notice_ || now - idle_since >= spin_ || deadline.passed()) break;
    const bool yields = now - idle_since >= kYieldsAfter;
    if (!yields && !mutex_.wanted()) continue;
    lock.unlock();  // others get in between to post
    if (yields) ::sched_yield();
    mutex_.give_way();
    lock.lock();
    finished = done();
    if (finished || !endpoint_) break;
  }
  bool slept = false;
  if (!finished && !notice_ && endpoint_ && !deadline.passed()) {
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
  if (!slept)
    spin_ = std::min(kMostSpin, spin_ + microseconds(1));
  else
    spin_ =
        Clock::now() - start < kMostSpin ? std::min(kMostSpin, spin_ * 2) : std::max(kLeastSpin, spin_ / 2);
  led_ = false;
  staying_.store(false, std::memory_order_relaxed);
  driven_.store(true, std::memory_order_relaxed);
  if (followers_) followers_wake_.notify_all();
  if (announced && hand_back_) hand_back_();  // the progress thread may rely on the announcement
}

void Context::kick() noexcept {
  std::atomic_thread_fence(std::memory_order_seq_cst);
  if (asleep_.load(std::memory_order_relaxed)) waker_.wake();
}

void Context::bind(std::shared_ptr<EventQueue> events) {
  const Lock lock(mutex_);
  events_.bind(std::move(events));
}

void Context::locked(const std::function<void(Endpoint&)>& work) {
  Lock lock(mutex_);
  if (endpoint_) work(*endpoint_);
  unlock_and_notify(lock);
}

void Context::unlock_and_notify(Lock& lock) {
  if (path_ended_) tidy();
  const bool notice = std::exchange(notice_, false);
  lock.unlock();
  if (notice && on_notice) on_notice();
}

Context::Rest Context::arm() noexcept {
  if (fork_generation_ != fork_generation()) return Rest::allowed;
  Lock lock(mutex_, std::try_to_lock);
  // A leader may stop without having slept, and then nothing would be armed.
  if (!lock || led_) return Rest::in_use;
  slice_.begin();
  if (endpoint_ && !endpoint_->arm()) return Rest::work_left;
  armed_.store(true, std::memory_order_relaxed);
  return Rest::allowed;
}

void Context::set_hand_back(std::function<void()> hand_back) {
  const std::lock_guard lock(mutex_);
  hand_back_ = std::move(hand_back);
}

Context::Driver Context::driver() noexcept {
  armed_.store(false, std::memory_order_relaxed);
  if (callers_.load(std::memory_order_relaxed) != 0)
    return asleep_.load(std::memory_order_relaxed) || staying_.load(std::memory_order_relaxed)
               ? Driver::staying_caller
               : Driver::spinning_caller;
  return driven_.exchange(false, std::memory_order_relaxed) ? Driver::spinning_caller : Driver::nobody;
}

}  // namespace fab
