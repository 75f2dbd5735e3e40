#include "fabric/context/context.h"

#include <algorithm>
#include <chrono>
#include <utility>

namespace fab {

Context::Context(Domain& domain, Parameters parameters, AuthKeys keys)
    : parameters_(std::move(parameters)),
      keys_(std::move(keys)),
      handles_({parameters_.index, parameters_.rx_bits, parameters_.max_group_id}, keys_, *parameters_.peers),
      driver_(*this),
      inbox_(
          {parameters_.rules, parameters_.exempt, parameters_.directed_receive, parameters_.shared_receives},
          driver_),
      paths_(handles_) {
  endpoint_ = domain.open_endpoint({.context = parameters_.index,
                                    .context_slot = parameters_.slot,
                                    .keys = keys_,
                                    .poller = driver_.poller(),
                                    .completions = *parameters_.completions,
                                    .events = events_,
                                    .peers = *parameters_.peers,
                                    .receives = inbox_.receives(),
                                    .links = inbox_.links(),
                                    .slice = driver_.slice(),
                                    .on_path_ended = [this]() FAB_REQUIRES(driver_) { driver_.path_ended(); },
                                    .wake_domain = parameters_.wake_domain,
                                    .lingerers = &lingerers_,
                                    .notice_holders = &notice_holders_,
                                    .link_log = parameters_.link_log});
  paths_.open(*endpoint_, parameters_.link_log);
  driver_.open(*endpoint_);
}

Context::~Context() {
  if (!driver_.inherited()) {
    close();
    return;
  }
  // In a child of fork() the connections are the parent's: nothing may be sent on them, not even their end.
  paths_.leave_to_parent();
  [[maybe_unused]] auto* const endpoint = endpoint_.release();
}

// Waits for a while until receivers have read the messages that count as sent, because they are lost when
// this side is gone. Others get the lock in between.
void Context::linger() {
  constexpr std::chrono::milliseconds kLongest(200);  // docs/messages.md
  constexpr std::chrono::microseconds kLook(20);
  const Deadline deadline = Deadline::in(kLongest);
  const auto anybody = [this]() FAB_REQUIRES(driver_) {
    bool any = false;
    for (Lingerer& one : lingerers_) any |= one.lingers();
    return any;
  };
  while (anybody() && !deadline.passed()) driver_.pause(kLook);
}

void Context::close() {
  const Driver::Turn turn(driver_);
  linger();
  inbox_.close();
  paths_.close();
  driver_.close();
  endpoint_.reset();
}

std::vector<Part> Context::parts() const {
  const Driver::Lock lock(driver_);
  return endpoint_ ? endpoint_->parts() : std::vector<Part>{};
}

// Calls `call`, which uses a path. When it needs an answer of the user first, asks without the lock and calls
// it again.
template <class Call>
auto Context::asking(const Call& call) {
  for (;;) {
    std::optional<PathQuestion> question;
    try {
      return call();
    } catch (const PathQuestion& thrown) {
      question = thrown;
    }
    const std::vector<double> shares = question->ask(&paths_);
    const Driver::Turn turn(driver_);
    if (endpoint_) question->answer(*endpoint_->policy(), shares);
  }
}

[[gnu::hot]] std::size_t Context::post_slice(PeerId peer, const Slice::Front& slice, FullPath& full) {
  const OverlapWatch::Visit visit(driver_.moving());
  const std::size_t taken = paths_.post(peer, slice.transfers, full);
  driver_.slice().spend(slice, taken);
  return taken;
}

[[gnu::hot]] std::size_t Context::post(PeerId peer, std::span<const Transfer> batch, FullPath& full) {
  std::vector<Transfer> translated;
  if (parameters_.rules->active()) batch = parameters_.rules->apply(batch, translated, parameters_.exempt);
  std::size_t posted = 0;
  do {
    const Slice::Front slice = Slice::front(batch.subspan(posted));
    std::size_t taken = 0;
    try {
      taken = asking([&] {
        const Driver::Turn turn(driver_);
        return post_slice(peer, slice, full);
      });
    } catch (...) {
      if (posted == 0) throw;  // else the next call to post() throws it
    }
    posted += taken;
    if (taken < slice.transfers.size()) break;
  } while (posted < batch.size());
  return posted;
}

std::optional<std::size_t> Context::try_post(PeerId peer, std::span<const Transfer> batch,
                                             FullPath& full) try {
  Slice::Front slice = Slice::front(batch);
  if (slice.transfers.size() < batch.size()) return std::nullopt;
  std::vector<Transfer> translated;
  if (parameters_.rules->active()) {
    slice = Slice::front(parameters_.rules->apply(batch, translated, parameters_.exempt));
    if (slice.transfers.size() < batch.size()) return std::nullopt;
  }
  if (!driver_.try_lock()) return std::nullopt;
  const Driver::Turn turn(driver_, std::adopt_lock);
  return post_slice(peer, slice, full);
} catch (const PathQuestion&) {
  return std::nullopt;
}

void Context::make_room(unsigned fruitless) {
  constexpr unsigned kEagerTurns = 1000;
  constexpr std::chrono::milliseconds kNap(1);
  if (fruitless <= kEagerTurns)
    driver_.turn();
  else
    driver_.wait([] { return false; }, Deadline::in(kNap));
}

void Context::abandon(Operation& operation, std::uint32_t transfers, Errc error) {
  const Driver::Turn turn(driver_);
  operation.abandon(transfers, error);
}

void Context::settle(Operation& operation, Errc error, std::uint64_t bytes) {
  const Driver::Turn turn(driver_);
  operation.settle(error, bytes);
}

void Context::hint(PeerId peer, const RemoteRegion& region) {
  driver_.check_process();
  asking([&] {
    const Driver::Turn turn(driver_);
    paths_.to(peer).hint(region);
  });
}

PathCounts Context::counts(PeerId peer) {
  driver_.check_process();
  const Driver::Lock lock(driver_);
  return paths_.counts(peer);
}

std::optional<PathReport> Context::last_report(PeerId peer) {
  driver_.check_process();
  const Driver::Lock lock(driver_);
  return paths_.last_report(peer);
}

PathReport Context::report(PeerId peer) {
  driver_.check_process();
  return asking([&] {
    const Driver::Turn turn(driver_);
    return paths_.to(peer).report();
  });
}

Reach Context::reaches(PeerId peer) const {
  driver_.check_process();
  const PeerTarget target = handles_.target(peer);
  const Name name = parameters_.peers->name(target.index);
  const Driver::Lock lock(driver_);
  if (!endpoint_) throw Error(Errc::closed, "the endpoint is closed");
  return endpoint_->reaches(name, handles_.context_of(target, name), handles_.key_to(target.index));
}

std::vector<FlushGoal> Context::flush_goals(PeerId peer) {
  driver_.check_process();
  const Driver::Lock lock(driver_);
  return paths_.flush_goals(peer);
}

bool Context::flushed(std::vector<FlushGoal>& goals, Deadline deadline) {
  return driver_.wait([&]() FAB_REQUIRES(driver_) { return paths_.reached(goals); }, deadline);
}

void Context::bind(std::shared_ptr<EventQueue> events) {
  const Driver::Lock lock(driver_);
  events_.bind(std::move(events));
}

bool Context::swap_secrets(AuthKey& key) noexcept {
  const auto there = std::ranges::find(keys_, key.number, &AuthKey::number);
  if (there == keys_.end()) return false;
  const Driver::Lock lock(driver_);
  there->secret.swap(key.secret);
  there->others.swap(key.others);
  return true;
}

void Context::locked(const std::function<void(Endpoint&)>& work) {
  Driver::Lock lock(driver_);
  if (endpoint_) work(*endpoint_);
  driver_.unlock_quietly(lock);
}

void Context::take_notices() {
  {
    const Driver::Lock lock(driver_);
    bool any = false;
    for (NoticeHolder& holder : notice_holders_) any |= holder.note();
    if (!any) return;
  }
  for (bool all = false; !all;) {
    const Driver::Turn turn(driver_, Driver::Turn::Callbacks::later);
    all = true;
    for (NoticeHolder& holder : notice_holders_) all &= holder.take_noted();
  }
}

void Context::removed(std::uint64_t index) noexcept {
  if (driver_.inherited()) return;
  const Driver::Lock lock(driver_);
  paths_.removed(index);
}

}  // namespace fab
