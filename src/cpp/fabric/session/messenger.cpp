#include "fabric/session/messenger.h"

#include <algorithm>
#include <cstring>
#include <new>
#include <span>
#include <utility>

#include "base/bytes/wire.h"
#include "fabric/completion/operation.h"
#include "fabric/memory/check_transfer.h"
#include "fabric/memory/dma_buf.h"
#include "fabric/memory/local_memory.h"
#include "fabric/session/link_operation.h"

namespace fab {
namespace {

constexpr std::uint64_t kCreditAtOnce = kMessageWindow / 4;  // bytes that are gathered into one credit frame
// Bytes of messages that wait, with what they need besides their content, for all peers of a context: beyond
// kMostNotingPieces, the pieces of announced messages are not noted any more, so that these are pulled.
// Beyond kMostHeld, what strangers left when their streams ended is dropped. Where that is not enough,
// streams are ended whose own messages hold more than kShareOfOne, and beyond twice kMostHeld, all that bring
// more: other messages that count as sent stay when their streams have gone.
constexpr std::size_t kMostNotingPieces = 64u << 20, kMostHeld = 256u << 20, kShareOfOne = 64u << 10;

MessageHead head_of(const FrameHeader& frame) noexcept {
  return {.tag = frame.key,
          .length = frame.total,
          .data = frame.data,
          .group = static_cast<std::uint32_t>(frame.remote),
          .tagged = (frame.flags & frame_flag::kTagged) != 0,
          .has_data = (frame.flags & frame_flag::kRemoteData) != 0};
}

void count(LinkCounters& link, const Transfer& transfer) noexcept {
  unsigned form = 0;
  if (transfer.flags & transfer_flag::kTagged) form |= send_form::kTagged;
  if (transfer.delivery == Delivery::inject) form |= send_form::kInject;
  if (transfer.piece_count != 0) form |= send_form::kVector;
  if (transfer.flags & transfer_flag::kRemoteData) form |= send_form::kRemoteData;
  ++link.sends[form];
}

}  // namespace

Messenger::Messenger(StreamEnd& end, Initiator& initiator) : end_(end), initiator_(initiator) {
  initiator_.set_puller(*this);
}

// --- sending

Outgoing Messenger::outgoing(const Transfer& transfer) const noexcept {
  return {.operation = transfer.operation, .length = transfer.length, .number = next_number()};
}

void Messenger::end_send(const Outgoing& message, Errc error) noexcept {
  end_.services.counts.settle(OpCode::send, message.length, error);
  if (message.operation)
    message.operation->settle(error, error == Errc::ok ? message.length : 0);
  else if (error != Errc::ok)
    end_.services.completions.push_remote(
        {.context = message.context, .error = error, .flags = message.flags});
}

// Gives back the operation of a message that stays here when that is settled. What becomes of the message
// after that can only be told as a late error.
Operation& Messenger::part_with_operation(Outgoing& message) noexcept {
  message.context = message.operation->completion().context;
  message.flags = message.operation->late_flags();
  return *std::exchange(message.operation, nullptr);
}

bool Messenger::post(const Transfer& transfer) {
  Errc wrong = check_copied(transfer);
  if (transfer.delivery == Delivery::commit) wrong = Errc::invalid;  // there is no region to be durable
  if (wrong != Errc::ok) {
    end_send({.operation = transfer.operation}, wrong);
    return true;
  }
  LinkCounters* const link = end_.services.sender->counters();
  initiator_.reserve();
  sending_.reserve(sending_.size() + 1);
  const bool small = transfer.length <= end_.services.largest_message &&
                     window_used_ + transfer.length + kMessageOverhead <= kMessageWindow;
  if (small && push_small(transfer)) {
    if (link) count(*link, transfer);
    return true;
  }
  const bool data = (transfer.flags & transfer_flag::kRemoteData) != 0,
             tagged = (transfer.flags & transfer_flag::kTagged) != 0;
  FrameHeader header{.type = FrameType::message,
                     .flags = static_cast<std::uint8_t>((data ? frame_flag::kRemoteData : 0) |
                                                        (tagged ? frame_flag::kTagged : 0)),
                     .length = static_cast<std::uint32_t>(transfer.length),
                     .key = transfer.key,
                     .remote = transfer.remote,
                     .total = transfer.length,
                     .data = data ? transfer.data : 0};
  if (transfer.flags & transfer_flag::kMarked) {
    const LinkOperation& marked = link_operation(transfer);
    header.id = marked.frame.id;
    if (marked.announced) return announce(transfer, header);
  }
  if (small)
    post_small(transfer, header);
  else if (!announce(transfer, header))
    return false;
  if (link) count(*link, transfer);
  return true;
}

bool Messenger::push_small(const Transfer& transfer) noexcept {
  // A message must not overtake puts that are on their way through the stream, because its receiver expects
  // to find their bytes.
  if (!end_.services.small_messages || transfer.delivery == Delivery::delivery || !initiator_.idle() ||
      !end_.services.small_messages->push(transfer))
    return false;
  window_used_ += transfer.length + kMessageOverhead;
  if (transfer.delivery == Delivery::transmit && end_.handover != Handover::at_once)
    sending_.push_back({outgoing(transfer), end_.output.requests_queued()});
  else
    end_send(outgoing(transfer), Errc::ok);
  return true;
}

void Messenger::post_small(const Transfer& transfer, FrameHeader header) {
  const bool acknowledged = initiator_.level_of(transfer) == Delivery::delivery;
  if (acknowledged) header.flags |= frame_flag::kAcknowledge;
  std::byte* at = end_.output.append(SessionOutput::Lane::requests, kHeaderBytes + transfer.length);
  if (!gather(transfer, at + kHeaderBytes)) {
    end_.output.unappend(SessionOutput::Lane::requests, kHeaderBytes + transfer.length);
    return end_send({.operation = transfer.operation}, Errc::bounds);
  }
  // The number is taken only when nothing can fail any more: the peer would wait forever for a message whose
  // number never comes, and take none that follows.
  if (end_.services.small_messages)
    header.remote |= std::uint64_t{end_.services.small_messages->number()} << 32;
  encode(header, at);
  window_used_ += transfer.length + kMessageOverhead;
  if (acknowledged) return initiator_.await_ack(transfer.operation, transfer.length);
  Sending message{outgoing(transfer), end_.output.requests_queued()};
  if (transfer.delivery == Delivery::inject) {
    if (end_.handover != Handover::at_once) return end_send(message, Errc::ok);  // rails see to its loss
    part_with_operation(message).settle(Errc::ok, message.length);
  }
  sending_.push_back(message);
}

bool Messenger::announce(const Transfer& transfer, FrameHeader header) {
  if (announced_.size() == kMaxOutstanding) return false;
  Announcement entry{outgoing(transfer), local_of(transfer)};
  iovec whole{transfer.local, static_cast<std::size_t>(transfer.length)};
  const iovec* pieces = transfer.piece_count ? transfer.local_pieces : &whole;
  std::size_t count = transfer.piece_count ? transfer.piece_count : 1;
  const bool injects = transfer.delivery == Delivery::inject;
  if (injects) {
    entry.copy = std::make_unique_for_overwrite<std::byte[]>(transfer.length);
    if (!gather(entry.source, entry.copy.get(), transfer.length)) {
      end_send({.operation = transfer.operation}, Errc::bounds);
      return true;
    }
    entry.source = PieceCursor(entry.copy.get());
    whole.iov_base = entry.copy.get();
    pieces = &whole;
    count = 1;
    part_with_operation(entry);
  }
  const bool readable = std::ranges::none_of(std::span(pieces, count), [](const iovec& piece) {
    return DmaBuf::any_in(
        {.start = reinterpret_cast<std::uint64_t>(piece.iov_base), .length = piece.iov_len});
  });
  if (!end_.services.reader || count > kMaxAnnouncedPieces || !readable) count = 0;
  header.type = FrameType::announce;
  header.length = static_cast<std::uint32_t>(count * kPieceBytes);
  std::byte* at = hold_announced(header, std::move(entry));
  if (!(header.id & kStreamOnly)) static_cast<LinkOperation&>(*transfer.operation).announced = true;
  if (end_.services.small_messages)
    header.remote |= std::uint64_t{end_.services.small_messages->number()} << 32;
  encode(header, at);
  at += kHeaderBytes;
  for (std::size_t i = 0; i < count; ++i, at += kPieceBytes) {
    const std::uint64_t words[2] = {to_little(reinterpret_cast<std::uint64_t>(pieces[i].iov_base)),
                                    to_little(std::uint64_t{pieces[i].iov_len})};
    std::memcpy(at, words, sizeof words);
  }
  if (injects) transfer.operation->settle(Errc::ok, transfer.length);
  return true;
}

void Messenger::note_announced(std::uint64_t id, Announcement entry) {
  auto known = announced_.find(id);
  if (known == announced_.end() && spare_announced_) {
    spare_announced_.key() = id;
    known = announced_.insert(std::move(spare_announced_)).position;
  } else if (known == announced_.end()) {
    known = announced_.try_emplace(id).first;
  }
  static_cast<Announcement&>(known->second) = std::move(entry);
  in_order_.push_back(known->second);
}

// Notes an announced message, and makes room for its frame. A message without a number gets one that means
// something on this stream only.
std::byte* Messenger::hold_announced(FrameHeader& header, Announcement entry) {
  const bool of_stream = header.id == 0;
  if (of_stream)
    header.id = kStreamOnly | (end_.services.ledger ? end_.services.ledger->open() : next_announced_++);
  try {
    note_announced(header.id, std::move(entry));
    return end_.output.append(SessionOutput::Lane::requests, kHeaderBytes + header.length);
  } catch (...) {
    announced_.erase(header.id);
    if (of_stream && end_.services.ledger) end_.services.ledger->end(header.id);
    throw;
  }
}

void Messenger::sent() noexcept {
  if (end_.handover != Handover::at_once) return;
  while (!sending_.empty() && sending_.front().end <= end_.output.requests_sent()) {
    const Sending sent = sending_.front();
    sending_.pop_front();
    end_send(sent, Errc::ok);
  }
}

std::uint64_t Messenger::oldest() const noexcept {
  const std::uint64_t sending = sending_.empty() ? Initiator::kNone : sending_.front().number;
  const std::uint64_t told = in_order_.empty() ? Initiator::kNone : (*in_order_.begin()).number;
  return std::min(sending, told);
}

Errc Messenger::on_pull(const FrameHeader& frame) {
  const auto found = announced_.find(frame.id);
  if (found == announced_.end() || found->second.answer != 0 || frame.total > found->second.length)
    return Errc::protocol;
  end_.answers.flush();
  found->second.answer = end_.output.message_payload(found->second.source, frame.total);
  return Errc::ok;
}

Errc Messenger::on_release(const FrameHeader& frame) noexcept {
  const auto found = announced_.find(frame.id);
  if (found == announced_.end()) return Errc::protocol;
  // The peer may not release a message while the answer to its pull is still sent from the message's memory.
  if (found->second.answer != 0 && end_.output.holds(found->second.answer)) return Errc::protocol;
  spare_announced_ = announced_.extract(found);
  decltype(in_order_)::erase(spare_announced_.mapped());
  const Announcement ended = std::move(spare_announced_.mapped());
  if (end_.services.ledger) end_.services.ledger->end(frame.id);
  end_send(ended, static_cast<Errc>(frame.data));
  return Errc::ok;
}

Errc Messenger::on_credit(const FrameHeader& frame) noexcept {
  if (frame.total > window_used_) return Errc::protocol;
  window_used_ -= frame.total;
  return Errc::ok;
}

// --- receiving

// Whether all messages that were sent before this one through the eager ring have been taken in.
bool Messenger::in_order(const FrameHeader& frame) const noexcept {
  return !end_.services.small_messages ||
         end_.services.small_messages->come_to(static_cast<std::uint32_t>(frame.remote >> 32));
}

bool Messenger::buffer(std::uint64_t cost) noexcept {
  if (cost > kMessageWindow - buffered_) return false;
  buffered_ += cost;
  return true;
}

bool Messenger::overfills() noexcept {
  ReceiveQueue& receives = end_.services.receives;
  if (receives.held() > kMostHeld) receives.drop_stranded(kMostHeld);
  const std::size_t held = receives.held();
  return held > kMostHeld &&
         (held > 2 * kMostHeld || buffered_ + announcements_ * sizeof(Message) > kShareOfOne);
}

// Hands over an eager message, whose bytes were counted as buffered.
void Messenger::deliver(Matched& arrived, const std::byte* payload) {
  const std::uint64_t length = arrived.head.length;
  if (end_.services.receives.match(arrived, *end_.services.sender)) {
    const bool stored = store_message(arrived, payload);
    consumed(length + kMessageOverhead);
    return ReceiveQueue::finish(arrived, stored ? Errc::ok : Errc::bounds);
  }
  if (overfills()) throw std::bad_alloc();
  auto message = std::make_unique<Message>();
  message->head = arrived.head;
  message->sender = end_.services.sender;
  message->comes_from(this);
  message->bytes = std::make_unique_for_overwrite<std::byte[]>(length);
  std::memcpy(message->bytes.get(), payload, length);
  end_.services.receives.keep(std::move(message));
}

Errc Messenger::accept(Matched& arrived, const std::byte* payload) noexcept {
  if (!buffer(arrived.head.length + kMessageOverhead)) return Errc::protocol;
  try {
    deliver(arrived, payload);
  } catch (const std::bad_alloc&) {
    end_.output.break_off();
  }
  return end_.output.broken() ? Errc::no_memory : Errc::ok;
}

Errc Messenger::on_message(const FrameHeader& frame, const std::byte* payload) {
  if (!in_order(frame)) return Errc::protocol;
  Matched arrived{.head = head_of(frame)};
  const std::uint64_t cost = arrived.head.length + kMessageOverhead;
  if (!buffer(cost)) return Errc::protocol;
  if (end_.peer_gave_up && (frame.flags & frame_flag::kAcknowledge)) {
    consumed(cost);
    return Errc::ok;
  }
  if (end_.extension.came(frame)) {
    consumed(cost);
  } else if (!end_.extension.may_come(frame)) {
    consumed(cost);
    if (frame.flags & frame_flag::kAcknowledge) end_.answers.give(Errc::no_memory, frame.type);
    return Errc::ok;
  } else {
    end_.extension.make_room(frame, 0);
    deliver(arrived, payload);
    end_.extension.record(frame, Errc::ok);
  }
  if (frame.flags & frame_flag::kAcknowledge) end_.answers.give(Errc::ok, frame.type);
  return Errc::ok;
}

// Everything that may run out of memory is done before the receive queue hears of the message.
Errc Messenger::on_announce(const FrameHeader& frame, const std::byte* payload) {
  if (!in_order(frame)) return Errc::protocol;
  if (++announcements_ > kMaxOutstanding) return Errc::protocol;
  if (overfills()) return Errc::no_memory;
  if (!spare_message_) spare_message_ = std::make_unique<Message>();
  Message* const message = spare_message_.get();
  message->head = head_of(frame);
  message->where.clear();
  const bool notes = end_.services.reader && end_.services.receives.held() < kMostNotingPieces;
  std::uint64_t described = 0;
  for (std::size_t i = 0; i < frame.length / kPieceBytes; ++i, payload += kPieceBytes) {
    std::uint64_t words[2];
    std::memcpy(words, payload, sizeof words);
    const std::uint64_t length = to_little(words[1]);
    if (length > message->head.length - described) return Errc::protocol;
    described += length;
    if (notes)
      message->where.push_back(
          {reinterpret_cast<void*>(to_little(words[0])), static_cast<std::size_t>(length)});
  }
  if (frame.length != 0 && described != message->head.length) return Errc::protocol;
  fetches_.reserve(fetches_.size() + 1);
  end_.services.receives.make_room();
  switch (end_.extension.announce(frame, *this)) {
    case Standing::unknown:
      break;
    case Standing::waiting:
    case Standing::resumed:
      return Errc::ok;
    case Standing::done:
      tell_release(frame.id, end_.extension.message_outcome(frame.id));
      return Errc::ok;
    case Standing::refused:
      return Errc::protocol;
  }
  Matched matched{.head = message->head};
  if (!end_.services.receives.match(matched, *end_.services.sender)) {
    message->sender = end_.services.sender;
    message->comes_from(this);
    message->announced = true;
    message->id = frame.id;
    end_.services.receives.keep(std::move(spare_message_));
    return Errc::ok;
  }
  begin_fetch(matched, frame.id, message->where);
  // Messages that were announced together are read together, where that saves system calls.
  if (!end_.services.reader || fetches_.size() == kMostFetches || fetch_bytes_ >= kMostFetchBytes)
    run_fetches();
  return Errc::ok;
}

void Messenger::tell_release(std::uint64_t id, Errc error) noexcept {
  --announcements_;
  end_.answers.tell({.type = FrameType::release, .data = static_cast<std::uint64_t>(error), .id = id});
}

bool Messenger::at_rest() const noexcept {
  return pulls_.empty() && waiting_pulls_.empty() && announcements_ == 0;
}

void Messenger::release(const Message& message) noexcept {
  end_.extension.done(message.id, Errc::ok);
  if (end_.services.ledger) end_.services.ledger->take(message.id);
  tell_release(message.id, Errc::ok);
  tell_output();
}

void Messenger::tell_output() noexcept {
  if (end_.services.on_output) end_.services.on_output();
}

void Messenger::consumed(std::uint64_t bytes) noexcept {
  buffered_ -= bytes;
  uncredited_ += bytes;
  if (uncredited_ < kCreditAtOnce) return;
  end_.answers.tell({.type = FrameType::credit, .total = std::exchange(uncredited_, 0)});
  tell_output();
}

// --- the end

void Messenger::fail(Errc error) noexcept {
  end_.services.receives.leave(*this, end_.extension.heir());
  window_used_ = buffered_ = uncredited_ = 0;
  announcements_ = 0;
  for (; !sending_.empty(); sending_.pop_front()) end_send(sending_.front(), error);
  for (const auto& [id, entry] : std::exchange(announced_, {})) {
    const bool taken = end_.services.ledger && !end_.services.ledger->revoke(id);
    end_send(entry, taken ? Errc::ok : error);
  }
  for (; !waiting_pulls_.empty(); waiting_pulls_.pop_front()) end_fetch(waiting_pulls_.front(), error);
  for (; !fetches_.empty(); fetches_.pop_front()) end_fetch(fetches_.front().pull, error);
}

}  // namespace fab
