#include "providers/lnx/flows/flow.h"

#include <algorithm>

#include "fabric/session/frames/frame.h"

namespace fab::lnx {
namespace {

constexpr std::size_t kMostAnnounced = 2 * kMaxOutstanding;
constexpr std::size_t kBytesOfOutcome = 128;  // of one that is kept, besides its result

}  // namespace

Flow::~Flow() {
  *in_all_ -= held_;
  receives_.leave(*this);
  for (auto& [number, message] : messages_)
    if (message.matched) ReceiveQueue::finish(*message.matched, Errc::peer_lost);
}

// --- rails

Errc Flow::join(RailNumber rail, ExtensionHost& session) noexcept {
  if (rail.slot >= kMaxRails) return Errc::protocol;
  if (rail.incarnation <= rails_[rail.slot].incarnation) return Errc::peer_lost;
  ExtensionHost* const former = rails_[rail.slot].session;
  rails_[rail.slot] = {rail.incarnation, &session};
  alone_ = false;
  alone_since_.reset();
  if (former) former->cut();
  return Errc::ok;
}

std::optional<std::chrono::nanoseconds> Flow::alone_since(std::chrono::nanoseconds now) noexcept {
  if (alone_ && !alone_since_) alone_since_ = now;
  return alone_since_;
}

bool Flow::fence(RailNumber rail, const ExtensionHost& from) noexcept {
  if (rail.slot >= kMaxRails) return false;
  Rail& there = rails_[rail.slot];
  if (there.incarnation > rail.incarnation) return true;  // a later stream has joined as this rail since
  there.incarnation = rail.incarnation;
  if (there.session == &from) return false;
  if (there.session) there.session->cut();
  return true;
}

void Flow::leave(const ExtensionHost& session) noexcept {
  bool any = false;
  for (Rail& rail : rails_) {
    if (rail.session == &session) rail.session = nullptr;
    any |= rail.session != nullptr;
  }
  if (std::erase(announcers_, &session) != 0)
    for (auto& [number, message] : messages_)
      if (message.session == &session) message.session = nullptr;
  if (!any && !std::exchange(alone_, true)) on_alone_();
}

void Flow::cut_all() noexcept {
  for (Rail& rail : rails_)
    if (rail.session) rail.session->cut();
}

void Flow::message_came(const ExtensionHost& over) {
  if (message_link_.empty()) message_link_ = over.peer()->link();
}

// --- outcomes

const PastOutcome* Flow::outcome(std::uint64_t number) const noexcept {
  static constinit const PastOutcome success{};
  const auto run = done_.upper_bound(number);
  if (run != done_.begin() && number < std::prev(run)->second) return &success;
  const auto found = outcomes_.find(number);
  return found == outcomes_.end() ? nullptr : &found->second;
}

bool Flow::may_come(std::uint64_t number) const noexcept {
  if (number < mark_) return false;
  const bool room = done_.size() + outcomes_.size() < kMostUnsettled &&
                    result_bytes_ + kMaxAtomicBytes <= kMostResults &&
                    (*in_all_ <= kMostHeld || held_ <= kShareOfOne);
  return room || known(number);
}

void Flow::count_held() noexcept {
  const std::size_t held = result_bytes_ + (done_.size() + outcomes_.size()) * kBytesOfOutcome;
  *in_all_ += held - held_;
  held_ = held;
}

void Flow::make_room(std::size_t result) {
  if (!spare_run_) {
    Runs one{{0, 0}};
    spare_run_ = one.extract(one.begin());
  }
  if (!spare_outcome_) {
    Outcomes one;
    one.try_emplace(0);
    spare_outcome_ = one.extract(one.begin());
  }
  spare_outcome_.mapped().result.reserve(result);
}

void Flow::record(std::uint64_t number, Errc error, std::span<const std::byte> result) noexcept {
  make_room(result.size());
  if (error != Errc::ok || !result.empty()) {
    result_bytes_ += result.size();
    spare_outcome_.key() = number;
    spare_outcome_.mapped().error = error;
    spare_outcome_.mapped().result.assign(result.begin(), result.end());
    if (auto known = outcomes_.insert(std::move(spare_outcome_)); !known.inserted) {
      result_bytes_ -= known.position->second.result.size();
      known.position->second = std::move(known.node.mapped());
    }
    return count_held();
  }
  auto after = done_.upper_bound(number);
  if (after == done_.begin() || std::prev(after)->second != number) {
    spare_run_.key() = number;
    spare_run_.mapped() = number + 1;
    done_.insert(after, std::move(spare_run_));
  } else {
    ++std::prev(after)->second;
  }
  const auto run = std::prev(after);
  if (after != done_.end() && after->first == run->second) {
    run->second = after->second;  // the number closes the gap between two runs
    done_.erase(after);
  }
  count_held();
}

void Flow::settled(std::uint64_t mark) noexcept {
  if (mark == kOver) {  // the outcomes are kept, since other rails may still bring requests
    over_ = true;
    return;
  }
  if (mark <= mark_) return;  // a later mark was faster, over another rail
  mark_ = mark;
  while (!outcomes_.empty() && outcomes_.begin()->first < mark) {
    result_bytes_ -= outcomes_.begin()->second.result.size();
    outcomes_.erase(outcomes_.begin());
  }
  while (!done_.empty() && done_.begin()->first < mark) {
    auto run = done_.extract(done_.begin());
    if (run.mapped() <= mark) continue;
    run.key() = mark;
    done_.insert(std::move(run));
  }
  count_held();
}

// --- messages

bool Flow::came(std::uint64_t number, const ExtensionHost& over) {
  message_came(over);
  return known(number) || was_announced(number);
}

void Flow::announces(const ExtensionHost& over) {
  if (std::ranges::find(announcers_, &over) == announcers_.end()) announcers_.push_back(&over);
}

Standing Flow::announce(std::uint64_t number, ExtensionHost& over, MessageOrigin& origin) {
  message_came(over);
  const auto found = messages_.find(number);
  if (found == messages_.end()) {
    if (known(number)) return Standing::done;  // it came whole, and is remembered as that
    if (messages_.size() >= kMostAnnounced) return Standing::refused;
    announces(over);
    messages_.emplace(number, Noted{.session = &over});
    return Standing::unknown;
  }
  Noted& message = found->second;
  if (message.outcome) return Standing::done;
  if (message.session) return Standing::refused;
  announces(over);
  message.session = &over;
  if (message.matched) {
    over.resume(number, *message.matched);
    return Standing::resumed;
  }
  ReceiveQueue::adopt(*this, number, origin);
  return Standing::waiting;
}

// Does nothing for a message that was not announced over a flow.
void Flow::fetching(std::uint64_t number, const Matched& matched) noexcept {
  if (const auto found = messages_.find(number); found != messages_.end()) found->second.matched = matched;
}

void Flow::done(std::uint64_t number, Errc error) noexcept {
  const auto found = messages_.find(number);
  if (found == messages_.end()) return;
  found->second.matched.reset();
  found->second.outcome = error;
}

void Flow::message_settled(std::uint64_t number) {
  const auto found = messages_.find(number);
  if (found == messages_.end() || !found->second.outcome) return;
  if (number >= mark_ && !known(number)) {  // so that the runs of numbers have no gap here
    make_room(0);
    record(number, Errc::ok);
  }
  messages_.erase(found);
}

Errc Flow::message_outcome(std::uint64_t number) const noexcept {
  const auto found = messages_.find(number);
  return found == messages_.end() ? Errc::ok : found->second.outcome.value_or(Errc::ok);
}

void Flow::fetch(const Message& message, const Matched& matched) noexcept { fetching(message.id, matched); }

void Flow::release(const Message& message) noexcept { done(message.id, Errc::ok); }

}  // namespace fab::lnx
