#include "fabric/flow.h"

#include <algorithm>

#include "fabric/frame.h"

namespace fab {
namespace {

constexpr std::size_t kMostUnsettled = 4 * kMaxOutstanding;

}  // namespace

Flow::~Flow() {
  receives_.leave(*this);
  for (auto& [number, message] : messages_)
    if (message.matched) ReceiveQueue::finish(*message.matched, Errc::peer_lost);
}

// --- rails

bool Flow::join(RailNumber rail, Carrier& carrier) noexcept {
  if (rail.slot >= kMaxRails) return false;
  if (rail.slot >= rails_.size()) rails_.resize(rail.slot + 1);
  if (rail.incarnation <= rails_[rail.slot].incarnation) return false;
  if (Carrier* const former = rails_[rail.slot].carrier) former->cut();
  rails_[rail.slot] = {rail.incarnation, &carrier};
  alone_since_.reset();
  return true;
}

bool Flow::fence(RailNumber rail, const Carrier& from) noexcept {
  if (rail.slot >= kMaxRails) return false;
  if (rail.slot >= rails_.size()) rails_.resize(rail.slot + 1);
  Rail& there = rails_[rail.slot];
  if (there.incarnation > rail.incarnation) return true;  // it has come back since
  there.incarnation = rail.incarnation;
  if (there.carrier == &from) return false;
  if (there.carrier) there.carrier->cut();
  return true;
}

void Flow::leave(const Carrier& carrier) noexcept {
  bool any = false;
  for (Rail& rail : rails_) {
    if (rail.carrier == &carrier) rail.carrier = nullptr;
    any |= rail.carrier != nullptr;
  }
  if (!any) alone_since_ = Clock::now();
  for (auto& [number, message] : messages_)
    if (message.carrier == &carrier) message.carrier = nullptr;
}

void Flow::message_came(const Carrier& carrier) noexcept {
  if (message_slot_) return;
  const auto at = std::ranges::find(rails_, &carrier, &Rail::carrier);
  if (at != rails_.end()) message_slot_ = static_cast<std::uint32_t>(at - rails_.begin());
}

// --- outcomes

const Flow::Outcome* Flow::outcome(std::uint64_t number) const noexcept {
  const auto found = outcomes_.find(number);
  return found == outcomes_.end() ? nullptr : &found->second;
}

bool Flow::record(std::uint64_t number, Errc error, std::span<const std::byte> result) {
  if (outcomes_.size() >= kMostUnsettled) return false;
  outcomes_.insert_or_assign(outcomes_.end(), number, Outcome{error, {result.begin(), result.end()}});
  return true;
}

void Flow::settled(std::uint64_t mark) noexcept {
  if (mark < mark_) return;  // came over a slower rail than a later one
  mark_ = mark;
  outcomes_.erase(outcomes_.begin(), outcomes_.lower_bound(mark));
}

// --- announced messages

Flow::Announced Flow::announce(std::uint64_t number, Carrier& carrier, MessageOrigin& origin) noexcept {
  const auto found = messages_.find(number);
  if (found == messages_.end()) {
    if (outcomes_.contains(number)) return Announced::done;  // came whole
    messages_.emplace(number, Message{.carrier = &carrier});
    return Announced::unknown;
  }
  Message& message = found->second;
  if (message.outcome) return Announced::done;
  if (message.carrier) return Announced::elsewhere;
  message.carrier = &carrier;
  if (message.matched) {
    carrier.resume(number, *message.matched);
    return Announced::resumed;
  }
  receives_.adopt(*this, number, origin);
  return Announced::waiting;
}

void Flow::fetching(std::uint64_t number, const Matched& matched) { messages_[number].matched = matched; }

void Flow::done(std::uint64_t number, Errc error) {
  Message& message = messages_[number];
  message.matched.reset();
  message.outcome = error;
}

void Flow::message_settled(std::uint64_t number) noexcept {
  const auto found = messages_.find(number);
  if (found != messages_.end() && found->second.outcome) messages_.erase(found);
}

Errc Flow::message_outcome(std::uint64_t number) const noexcept {
  const auto found = messages_.find(number);
  return found == messages_.end() ? Errc::ok : found->second.outcome.value_or(Errc::ok);
}

void Flow::fetch(const fab::Message& message, const Matched& matched) noexcept {
  messages_[message.id].matched = matched;
}

void Flow::release(const fab::Message& message) noexcept { done(message.id, Errc::ok); }

// --- the table

std::shared_ptr<Flow> FlowTable::open(FlowId id, bool must_know, const std::shared_ptr<Sender>& initiator) {
  expire();
  const auto found = flows_.find(id);
  if (found != flows_.end()) return found->second;
  if (must_know) return nullptr;
  return flows_[id] = std::make_shared<Flow>(receives_, initiator);
}

std::optional<std::uint32_t> FlowTable::message_slot(PeerId peer) const noexcept {
  for (const auto& [id, flow] : flows_)
    if (!flow->alone_since() && flow->initiator().handle() == peer) return flow->message_slot();
  return std::nullopt;
}

bool FlowTable::expire() noexcept {
  const auto now = Clock::now();
  bool more = false;
  for (auto at = flows_.begin(); at != flows_.end();) {
    const auto since = at->second->alone_since();
    const bool over = since && std::chrono::duration<double>(now - *since).count() > keep_;
    more |= since && !over;
    at = over ? flows_.erase(at) : std::next(at);
  }
  return more;
}

}  // namespace fab
