#include "fabric/messages/receive_queue.h"

#include <algorithm>
#include <utility>

#include "base/bytes/mix.h"
#include "fabric/completion/operation.h"
#include "fabric/memory/local_memory.h"

namespace fab {
namespace {

std::uint64_t hash_of(bool tagged, std::uint32_t group, std::uint64_t tag) noexcept {
  return mix(tag + (std::uint64_t{group} << 40) + (tagged ? 0x517CC1B727220A95u : 0));
}

std::uint64_t with_source(std::uint64_t hash, PeerId source) noexcept { return mix(hash + source); }

std::uint64_t hash_of(const MatchRule& rule) noexcept { return hash_of(rule.tagged, rule.group, rule.tag); }
std::uint64_t hash_of(const MessageHead& head) noexcept { return hash_of(head.tagged, head.group, head.tag); }

Completion describe(const Matched& matched, Errc error) noexcept {
  const MessageHead& head = matched.head;
  const bool cut = error == Errc::ok && matched.room < head.length;
  return {.length = error == Errc::ok ? matched.room : 0,
          .data = head.data,
          .tag = head.tag,
          .source = matched.source.id,
          .error = cut ? Errc::truncated : error,
          .flags = (head.has_data ? completion_flag::kRemoteData : 0) | matched.source.flags,
          .offset = matched.offset,
          .overflow = cut ? head.length - matched.room : 0};
}

}  // namespace

bool store_message(const Matched& matched, const std::byte* bytes) noexcept {
  return scatter(bytes, matched.landing, matched.room);
}

// --- receivers

MatchRule ReceiveQueue::in_force(MatchRule rule) const noexcept {
  if (!directed_) {
    rule.source = kNoPeer;
    rule.key = nullptr;
  }
  return rule;
}

Message* ReceiveQueue::find(const MatchRule& asked) const noexcept {
  if (by_age_.empty()) return nullptr;
  const MatchRule rule = in_force(asked);
  const auto fits = [&](const Message& message) { return rule.fits(message.head, *message.sender); };
  if (rule.ignore == 0) {
    for (Message& message : unexpected_.chain(hash_of(rule)))
      if (fits(message)) return &message;
    return nullptr;
  }
  for (Message& message : by_age_)
    if (fits(message)) return &message;
  return nullptr;
}

void ReceiveQueue::post(const Receive& asked) {
  std::unique_ptr<Posted> posted;
  if (spare_.empty()) {
    posted = std::make_unique<Posted>();
  } else {
    posted = std::move(spare_.back());
    spare_.pop_back();
  }
  Posted& stands = *posted;
  Receive& receive = stands.receive;
  receive = asked;
  receive.rule = in_force(asked.rule);
  if (!receive.rule.tagged) receive.rule.tag = receive.rule.ignore = 0;
  stands.filled = 0;
  stands.sequence = next_sequence_++;
  if (receive.rule.ignore == 0) {
    stands.hash = with_source(hash_of(receive.rule), receive.rule.source);
    exact_.insert(stands);
  } else {
    masked_.push_back(stands);
  }
  posted_by_age_.push_back(*posted.release());
  ++posted_;
  // No older receive wants a message that still waits, so this receive is the first for all that fit.
  for (bool used_up = false; !used_up;) {
    Message* message = find(receive.rule);
    if (!message) {
      sizes_.posted_lengths.note(posted_);
      break;
    }
    used_up = receive.least_room == 0;
    const Source source = message->sender->reported(receive.rule.source);
    const std::uint64_t left = receive.length - stands.filled;
    if (!used_up && stands.filled != 0 && message->head.length > left) {
      retire(stands, Errc::ok);
      return;
    }
    if (!used_up) used_up = left - std::min(left, message->head.length) < receive.least_room;
    ++sizes_.matched_unexpected;
    met(*message->sender);
    Matched matched{.head = message->head};
    use(stands, matched, source);
    unlink(*message);
    deliver(*std::unique_ptr<Message>(message), matched);
  }
}

bool ReceiveQueue::cancel(const Operation& operation) noexcept {
  for (Posted& posted : posted_by_age_) {
    if (posted.receive.operation != &operation) continue;
    retire(posted, Errc::canceled);
    return true;
  }
  return false;
}

bool ReceiveQueue::cancel_oldest(const std::function<bool(const Operation&)>& wanted) {
  for (Posted& posted : posted_by_age_) {
    if (!wanted(*posted.receive.operation)) continue;
    retire(posted, Errc::canceled);
    return true;
  }
  return false;
}

const Message* ReceiveQueue::peek(const MatchRule& rule) { return find(rule); }

std::uint64_t ReceiveQueue::claim(const MatchRule& rule) {
  Message* message = find(rule);
  if (!message) return 0;
  unlink(*message);
  message->claim = next_claim_++;
  claimed_.push_back(*message);
  return message->claim;
}

const Message* ReceiveQueue::claimed(std::uint64_t claim) const noexcept {
  for (const Message& message : claimed_)
    if (message.claim == claim) return &message;
  return nullptr;
}

std::unique_ptr<Message> ReceiveQueue::take_claimed(std::uint64_t claim) noexcept {
  auto* found = const_cast<Message*>(claimed(claim));
  if (found) claimed_.erase(*found);
  return std::unique_ptr<Message>(found);
}

bool ReceiveQueue::receive_claimed(std::uint64_t claim, const Receive& receive) {
  const std::unique_ptr<Message> message = take_claimed(claim);
  if (!message) return false;
  ++sizes_.matched_unexpected;
  met(*message->sender);
  Posted posted;
  posted.receive = receive;
  Matched matched{.head = message->head};
  meet(posted, matched, message->sender->reported());
  deliver(*message, matched);
  return true;
}

bool ReceiveQueue::discard_claimed(std::uint64_t claim) noexcept {
  const std::unique_ptr<Message> message = take_claimed(claim);
  if (!message) return false;
  forget(*message);
  return true;
}

bool ReceiveQueue::discard(const MatchRule& rule) noexcept {
  Message* message = find(rule);
  if (!message) return false;
  unlink(*message);
  forget(*std::unique_ptr<Message>(message));
  return true;
}

void ReceiveQueue::drop_all() noexcept {
  while (Posted* posted = posted_by_age_.front()) {
    posted->receive.operation->withdraw();
    retire(*posted, Errc::canceled);
  }
  // Senders are not told that their messages were taken: they learn that this side is gone.
  while (Message* message = by_age_.front()) {
    unlink(*message);
    delete message;
  }
  while (Message* message = claimed_.front()) {
    claimed_.erase(*message);
    delete message;
  }
}

// --- origins

ReceiveQueue::Posted* ReceiveQueue::find_posted(const MessageHead& head, Sender& from) const noexcept {
  if (Posted* first = posted_by_age_.front(); first->receive.rule.fits(head, from)) return first;
  Posted* oldest = nullptr;
  const auto look = [&](std::uint64_t hash) {
    for (Posted& posted : exact_.chain(hash)) {
      if (posted.hash != hash || !posted.receive.rule.fits(head, from)) continue;
      if (!oldest || posted.sequence < oldest->sequence) oldest = &posted;
      return;
    }
  };
  if (exact_.size() != 0) {
    const std::uint64_t hash = hash_of(head);
    look(with_source(hash, kNoPeer));
    from.visit_handles([&](PeerId handle) { look(with_source(hash, handle)); });
  }
  for (Posted& posted : masked_) {
    if (oldest && oldest->sequence < posted.sequence) break;
    if (posted.receive.rule.fits(head, from)) return &posted;
  }
  return oldest;
}

void ReceiveQueue::meet(const Posted& posted, Matched& arrived, Source source) noexcept {
  const Receive& receive = posted.receive;
  arrived.operation = receive.operation;
  arrived.landing =
      receive.piece_count ? PieceCursor(receive.pieces, receive.piece_count) : PieceCursor(receive.local);
  arrived.landing.skip(posted.filled);
  arrived.room = std::min(arrived.head.length, receive.length - posted.filled);
  arrived.offset = posted.filled;
  arrived.one_of_many = receive.least_room != 0;
  arrived.source = source;
}

void ReceiveQueue::use(Posted& posted, Matched& arrived, Source source) noexcept {
  meet(posted, arrived, source);
  if (!arrived.one_of_many) return unlink(posted);
  posted.filled += arrived.room;
  posted.receive.operation->expect_more(1);
  if (posted.receive.length - posted.filled < posted.receive.least_room) retire(posted, Errc::ok);
}

bool ReceiveQueue::match(Matched& arrived, Sender& sender) noexcept {
  while (posted_) {
    Posted* posted = find_posted(arrived.head, sender);
    if (!posted) return false;
    if (posted->filled != 0 && arrived.head.length > posted->receive.length - posted->filled) {
      retire(*posted,
             Errc::ok);  // the message goes whole into the next receive, instead of being truncated here
      continue;
    }
    ++sizes_.matched_posted;
    met(sender);
    use(*posted, arrived, sender.reported(posted->receive.rule.source));
    return true;
  }
  return false;
}

void ReceiveQueue::keep(std::unique_ptr<Message> message) {
  message->hash = hash_of(message->head);
  unexpected_.insert(*message);
  message->held = {held_, sizeof(Message) + (message->announced ? 0 : message->head.length) +
                              message->where.capacity() * sizeof(iovec)};
  if (LinkCounters* const link = message->sender->counters()) link->unexpected.note(++link->waiting);
  by_age_.push_back(*message.release());
  sizes_.unexpected_lengths.note(unexpected_.size());
}

void ReceiveQueue::finish(const Matched& matched, Errc error) noexcept {
  Completion told = describe(matched, error);
  if (!matched.one_of_many) return matched.operation->end_receive(told);
  matched.operation->tell(told);
  matched.operation->settle(Errc::ok, told.length);
}

void ReceiveQueue::leave(MessageOrigin& origin, MessageOrigin* heir) noexcept {
  while (Message* const message = origin.waiting.front()) {
    const bool claimed = message->claim != 0;
    message->comes_from(message->announced && !(message->id & kStreamOnly) ? heir : nullptr);
    if (!message->announced && !claimed) strand(*message);
    if (!message->announced || message->origin()) continue;
    claimed ? claimed_.erase(*message) : unlink(*message);
    delete message;
  }
}

void ReceiveQueue::strand(Message& message) noexcept {
  message.stranded = !message.sender->proven();
  if (message.stranded) stranded_.push_back(message);
}

// A sender may have become known meanwhile.
void ReceiveQueue::drop_stranded(std::size_t most) noexcept {
  while (held_ > most) {
    Message* const message = stranded_.front();
    if (!message) return;
    if (message->sender->proven()) {
      message->stranded = false;
      stranded_.erase(*message);
      continue;
    }
    unlink(*message);
    delete message;
  }
}

void ReceiveQueue::adopt(MessageOrigin& from, std::uint64_t id, MessageOrigin& to) noexcept {
  for (Message& message : from.waiting)
    if (message.announced && message.id == id) return message.comes_from(&to);
}

// --- messages

// Each ends the message's tie to its origin first, because that may end while it is told.
void ReceiveQueue::deliver(Message& message, const Matched& matched) noexcept {
  MessageOrigin* const origin = message.origin();
  message.comes_from(nullptr);
  if (message.announced) return origin->fetch(message, matched);
  const bool stored = store_message(matched, message.bytes.get());
  if (origin) origin->consumed(message.head.length + kMessageOverhead);
  finish(matched, stored ? Errc::ok : Errc::bounds);
}

void ReceiveQueue::forget(Message& message) noexcept {
  MessageOrigin* const origin = message.origin();
  message.comes_from(nullptr);
  if (!origin) return;
  if (message.announced)
    origin->release(message);
  else
    origin->consumed(message.head.length + kMessageOverhead);
}

void ReceiveQueue::met(const Sender& sender) noexcept {
  if (LinkCounters* const link = sender.counters()) ++link->receives;
}

void ReceiveQueue::unlink(Message& message) noexcept {
  if (LinkCounters* const link = message.sender->counters()) --link->waiting;
  unexpected_.erase(message);
  by_age_.erase(message);
  if (std::exchange(message.stranded, false)) stranded_.erase(message);
}

void ReceiveQueue::unlink(Posted& posted) noexcept {
  if (posted.receive.rule.ignore == 0)
    exact_.erase(posted);
  else
    masked_.erase(posted);
  posted_by_age_.erase(posted);
  --posted_;
  std::unique_ptr<Posted> owned(&posted);
  if (spare_.size() < kSpare) spare_.push_back(std::move(owned));
}

void ReceiveQueue::retire(Posted& posted, Errc error) noexcept {
  Operation* const operation = posted.receive.operation;
  const bool many = posted.receive.least_room != 0;
  unlink(posted);
  operation->end_receive({.error = error, .flags = many ? completion_flag::kMultiReceive : 0});
}

ReceiveQueue::Sizes ReceiveQueue::sizes() const noexcept {
  Sizes sizes = sizes_;
  sizes.posted = posted_;
  sizes.unexpected = unexpected_.size();
  return sizes;
}

}  // namespace fab
