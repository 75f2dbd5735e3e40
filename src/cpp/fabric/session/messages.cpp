// Messages in a Session: docs/messages.md.

#include <algorithm>
#include <span>
#include <utility>

#include "base/bytes/wire.h"
#include "fabric/completion/operation.h"
#include "fabric/memory/check_transfer.h"
#include "fabric/memory/dma_buf.h"
#include "fabric/memory/local_memory.h"
#include "fabric/session/session.h"

namespace fab {
namespace {

constexpr std::uint64_t kCreditAtOnce = kMessageWindow / 4;  // told in one frame
// Announced messages that are read at once: more would make the first ones wait.
constexpr std::size_t kMostFetches = 16;
constexpr std::uint64_t kMostFetchBytes = 512 * 1024;

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

// --- sending

void Session::end_send(Operation* operation, std::uint64_t length, Errc error) noexcept {
  PathCounts& counts = services_.counts;
  ++counts.settled;
  if (error == Errc::ok)
    counts.bytes_out += length;
  else
    ++counts.errors;
  if (operation) operation->settle(error, error == Errc::ok ? length : 0);
}

bool Session::post_message(const Transfer& transfer) {
  Errc wrong = check_copied(transfer);
  if (transfer.delivery == Delivery::commit) wrong = Errc::invalid;  // there is no region to be durable
  if (wrong != Errc::ok) {
    end_send(transfer.operation, 0, wrong);
    return true;
  }
  LinkCounters* const link = services_.sender->counters();
  sending_.reserve(sending_.size() + 1);
  const bool small = transfer.length <= services_.largest_message &&
                     window_used_ + transfer.length + kMessageOverhead <= kMessageWindow;
  if (small && post_beside(transfer)) {
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
  if (transfer.flags & transfer_flag::kNumbered) {
    const auto& part = static_cast<const FlowOperation&>(*transfer.operation);
    header.id = part.number;
    if (part.announced) return announce(transfer, header);
  }
  if (!(small ? post_small(transfer, header) : announce(transfer, header))) return false;
  if (link) count(*link, transfer);
  return true;
}

bool Session::post_beside(const Transfer& transfer) noexcept {
  // Not past puts that are on their way through the stream: whoever gets the message finds their bytes.
  if (!services_.beside || transfer.delivery == Delivery::delivery || !requests_.empty() ||
      !services_.beside->push(transfer))
    return false;
  window_used_ += transfer.length + kMessageOverhead;
  if (transfer.delivery == Delivery::transmit && handover_ != Handover::at_once)
    sending_.push_back({transfer.operation, transfer.length, output_.requests_queued()});
  else
    end_send(transfer.operation, transfer.length, Errc::ok);
  return true;
}

bool Session::post_small(const Transfer& transfer, FrameHeader header) {
  const bool acknowledged = level_of(transfer) == Delivery::delivery;
  if (acknowledged) header.flags |= frame_flag::kAcknowledge;
  std::byte* at = output_.append(Lane::requests, kHeaderBytes + transfer.length);
  // Only now: a number that never comes would keep the peer from all that follow.
  if (services_.beside) header.remote |= std::uint64_t{services_.beside->number()} << 32;
  encode(header, at);
  gather(local_of(transfer), at + kHeaderBytes, transfer.length);
  window_used_ += transfer.length + kMessageOverhead;
  if (acknowledged)
    requests_.push_back({.operation = transfer.operation,
                         .op = OpCode::send,
                         .length = transfer.length,
                         .end = output_.requests_queued()});
  else if (transfer.delivery == Delivery::inject)
    end_send(transfer.operation, transfer.length, Errc::ok);
  else
    sending_.push_back({transfer.operation, transfer.length, output_.requests_queued()});
  return true;
}

bool Session::announce(const Transfer& transfer, FrameHeader header) {
  if (announced_.size() == kMaxOutstanding) return false;
  Announced entry{.operation = transfer.operation, .source = local_of(transfer), .length = transfer.length};
  iovec whole{transfer.local, static_cast<std::size_t>(transfer.length)};
  const iovec* pieces = transfer.piece_count ? transfer.local_pieces : &whole;
  std::size_t count = transfer.piece_count ? transfer.piece_count : 1;
  const bool injects = transfer.delivery == Delivery::inject;
  if (injects) {
    entry.copy = std::make_unique_for_overwrite<std::byte[]>(transfer.length);
    gather(entry.source, entry.copy.get(), transfer.length);
    entry.source = PieceCursor(entry.copy.get());
    whole.iov_base = entry.copy.get();
    pieces = &whole;
    count = 1;
    entry.operation = nullptr;
  }
  const bool readable = std::ranges::none_of(std::span(pieces, count), [](const iovec& piece) {
    return DmaBuf::any_in(
        {.start = reinterpret_cast<std::uint64_t>(piece.iov_base), .length = piece.iov_len});
  });
  if (!services_.reader || count > kMaxAnnouncedPieces || !readable) count = 0;
  header.type = FrameType::announce;
  header.length = static_cast<std::uint32_t>(count * kPieceBytes);
  std::byte* at = hold_announced(header, std::move(entry));
  if (!(header.id & kStreamOnly)) static_cast<FlowOperation&>(*transfer.operation).announced = true;
  if (services_.beside) header.remote |= std::uint64_t{services_.beside->number()} << 32;
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

// Notes an announced message, under a number of the stream if it has none, and makes room for its frame.
std::byte* Session::hold_announced(FrameHeader& header, Announced entry) {
  const bool of_stream = header.id == 0;
  if (of_stream) header.id = kStreamOnly | (services_.ledger ? services_.ledger->open() : next_announced_++);
  try {
    announced_.insert_or_assign(header.id, std::move(entry));
    return output_.append(Lane::requests, kHeaderBytes + header.length);
  } catch (...) {
    announced_.erase(header.id);
    if (of_stream && services_.ledger) services_.ledger->end(header.id);
    throw;
  }
}

void Session::messages_sent() noexcept {
  if (handover_ != Handover::at_once) return;
  while (!sending_.empty() && sending_.front().end <= output_.requests_sent()) {
    const Sending sent = sending_.front();
    sending_.pop_front();
    end_send(sent.operation, sent.length, Errc::ok);
  }
}

Errc Session::on_pull() {
  const auto found = announced_.find(frame_.id);
  if (found == announced_.end() || found->second.answer != 0 || frame_.total > found->second.length)
    return Errc::protocol;
  flush_acks();
  found->second.answer = output_.message_payload(found->second.source, frame_.total);
  return Errc::ok;
}

Errc Session::on_release() noexcept {
  const auto found = announced_.find(frame_.id);
  if (found == announced_.end()) return Errc::protocol;
  // The memory must stay while an answer is read from it.
  if (found->second.answer != 0 && output_.holds(found->second.answer)) return Errc::protocol;
  const Announced ended = std::move(found->second);
  announced_.erase(found);
  if (services_.ledger) services_.ledger->end(frame_.id);
  end_send(ended.operation, ended.length, static_cast<Errc>(frame_.data));
  return Errc::ok;
}

Errc Session::on_credit() noexcept {
  if (frame_.total > window_used_) return Errc::protocol;
  window_used_ -= frame_.total;
  return Errc::ok;
}

// --- receiving

// Whether a message of the stream comes after all that were sent before it another way.
bool Session::in_order() const noexcept {
  return !services_.beside || services_.beside->come_to(static_cast<std::uint32_t>(frame_.remote >> 32));
}

bool Session::buffer(std::uint64_t cost) noexcept {
  if (cost > kMessageWindow - buffered_) return false;
  buffered_ += cost;
  return true;
}

// A small one, which was counted as buffered.
void Session::deliver_message(Matched& arrived, const std::byte* payload) {
  const std::uint64_t length = arrived.head.length;
  if (services_.receives.match(arrived, *services_.sender)) {
    const bool stored = store_message(arrived, payload);
    consumed(length + kMessageOverhead);
    return ReceiveQueue::finish(arrived, stored ? Errc::ok : Errc::bounds);
  }
  auto message = std::make_unique<Message>();
  message->head = arrived.head;
  message->sender = services_.sender;
  message->origin = this;
  message->bytes = std::make_unique_for_overwrite<std::byte[]>(length);
  std::memcpy(message->bytes.get(), payload, length);
  services_.receives.keep(std::move(message));
}

Errc Session::accept(Matched& arrived, const std::byte* payload) noexcept {
  if (!buffer(arrived.head.length + kMessageOverhead)) return Errc::protocol;
  try {
    deliver_message(arrived, payload);
  } catch (const std::bad_alloc&) {
    broken_ = true;
  }
  return broken_ ? Errc::no_memory : Errc::ok;
}

Errc Session::on_message(const std::byte* payload) {
  Matched arrived{.head = head_of(frame_)};
  const std::uint64_t cost = arrived.head.length + kMessageOverhead;
  if (!buffer(cost)) return Errc::protocol;
  if (peer_gave_up_ && (frame_.flags & frame_flag::kAcknowledge)) {
    consumed(cost);
    return Errc::ok;
  }
  const bool numbered = flow_ && frame_.id != 0;
  if (numbered) flow_->message_came(*this);
  if (numbered && (flow_->known(frame_.id) || flow_->was_announced(frame_.id))) {
    consumed(cost);
  } else {
    if (numbered) prepare_to_remember(0);
    deliver_message(arrived, payload);
    if (numbered) remember(Errc::ok);
  }
  if (frame_.flags & frame_flag::kAcknowledge) answer(Errc::ok);
  return Errc::ok;
}

// All that may lack memory comes before anybody hears of the message.
Errc Session::on_announce(const std::byte* payload) {
  if (++announcements_ > kMaxOutstanding) return Errc::protocol;
  auto message = std::make_unique<Message>();
  message->head = head_of(frame_);
  message->sender = services_.sender;
  message->origin = this;
  message->announced = true;
  message->id = frame_.id;
  std::uint64_t described = 0;
  for (std::size_t i = 0; i < frame_.length / kPieceBytes; ++i, payload += kPieceBytes) {
    std::uint64_t words[2];
    std::memcpy(words, payload, sizeof words);
    const std::uint64_t length = to_little(words[1]);
    if (length > message->head.length - described) return Errc::protocol;
    described += length;
    message->where.push_back(
        {reinterpret_cast<void*>(to_little(words[0])), static_cast<std::size_t>(length)});
  }
  if (!message->where.empty() && described != message->head.length) return Errc::protocol;
  fetches_.reserve(fetches_.size() + 1);
  services_.receives.make_room();
  if (flow_ && !(frame_.id & kStreamOnly)) {
    flow_->message_came(*this);
    switch (flow_->announce(frame_.id, *this, *this)) {
      case Flow::Announced::unknown:
        break;
      case Flow::Announced::waiting:
      case Flow::Announced::resumed:
        return Errc::ok;
      case Flow::Announced::done:
        tell_release(frame_.id, flow_->message_outcome(frame_.id));
        return Errc::ok;
      case Flow::Announced::refused:
        return Errc::protocol;
    }
  } else if (!(frame_.id & kStreamOnly)) {
    return Errc::protocol;
  }
  Matched matched{.head = message->head};
  if (!services_.receives.match(matched, *services_.sender)) {
    services_.receives.keep(std::move(message));
    return Errc::ok;
  }
  begin_fetch(matched, message->id, std::move(message->where));
  // Those that came together are read together, where that saves something.
  if (!services_.reader || fetches_.size() == kMostFetches || fetch_bytes_ >= kMostFetchBytes) run_fetches();
  return Errc::ok;
}

// There is room in fetches_.
void Session::begin_fetch(const Matched& matched, std::uint64_t id, std::vector<iovec> where) noexcept {
  if (flow_ && !(id & kStreamOnly)) flow_->fetching(id, matched);
  fetches_.push_back({{id, matched}, std::move(where)});
  fetch_bytes_ += matched.room;
}

void Session::fetch(const Message& message, const Matched& matched) noexcept {
  std::vector<iovec> where;
  try {
    fetches_.reserve(fetches_.size() + 1);
    where = message.where;
  } catch (const std::bad_alloc&) {
    end_fetch({message.id, matched}, Errc::no_memory);
    if (services_.on_output) services_.on_output();
    return;
  }
  begin_fetch(matched, message.id, std::move(where));
  run_fetches();
}

void Session::run_fetches() noexcept {
  if (fetches_.empty()) return;
  while (!fetches_.empty() && !slice_spent()) read_fetches();
  if (!fetches_.empty() && services_.on_more) services_.on_more();
  if (services_.on_output) services_.on_output();
}

// The first of them, together, and of the last one as much as the slice holds.
void Session::read_fetches() noexcept {
  MemoryReader::Read reads[kMostFetches];
  MemoryReader::Read* read_of[kMostFetches] = {};
  std::size_t readable = 0, begun = 0;
  std::uint64_t left = services_.slice ? services_.slice->left() : ~std::uint64_t{0}, bytes = 0;
  for (; begun < std::min(fetches_.size(), kMostFetches) && left != 0; ++begun) {
    const Fetch& fetch = fetches_[begun];
    const Matched& matched = fetch.pull.matched;
    if (matched.room == 0 || !services_.reader || fetch.where.empty() || !stands(fetch.pull.id)) continue;
    const std::uint64_t length = std::min(matched.room - fetch.done, left);
    read_of[begun] = &reads[readable++];
    *read_of[begun] = {fetch.where, matched.landing, fetch.done, length};
    left -= length;
    bytes += length;
  }
  if (readable) services_.reader->read({reads, readable});
  if (services_.slice) services_.slice->spend(bytes, begun);
  for (std::size_t i = 0; i < begun; ++i) {
    Fetch& fetch = fetches_.front();
    const MemoryReader::Read* const read = read_of[i];
    Errc outcome = fetch.pull.matched.room == 0 ? Errc::ok : Errc::not_supported;
    if (read) {
      outcome = read->outcome;
      fetch.done += read->length;
    }
    if (!stands(fetch.pull.id)) outcome = Errc::peer_lost;
    if (outcome == Errc::ok && read && fetch.done != fetch.pull.matched.room) break;
    const Pull ended = fetch.pull;
    fetches_.pop_front();
    outcome == Errc::not_supported ? pull(ended) : end_fetch(ended, outcome);
  }
  fetch_bytes_ = 0;
}

void Session::start_pull(const Pull& pull) {
  if (requests_.size() >= kMaxOutstanding) {
    waiting_pulls_.push_back(pull);
    return;
  }
  requests_.reserve(requests_.size() + 1);
  pulls_.reserve(pulls_.size() + 1);
  output_.append_header(Lane::requests, {.type = FrameType::pull, .total = pull.matched.room, .id = pull.id});
  ++services_.counts.posted;
  requests_.push_back({.op = OpCode::receive,
                       .length = pull.matched.room,
                       .end = output_.requests_queued(),
                       .landing = pull.matched.landing});
  pulls_.push_back(pull);
}

// The same where the message is lost if there is no memory to ask for it.
void Session::pull(const Pull& what) noexcept try { start_pull(what); } catch (const std::bad_alloc&) {
  end_fetch(what, Errc::no_memory);
}

void Session::finish_pull(Errc error) noexcept {
  const Pull pull = pulls_.front();
  pulls_.pop_front();
  end_fetch(pull, error);
}

bool Session::stands(std::uint64_t id) const noexcept {
  return !services_.ledger || services_.ledger->stands(id);
}

void Session::end_fetch(const Pull& pull, Errc error) noexcept {
  if (error == Errc::ok && services_.ledger && !services_.ledger->take(pull.id)) error = Errc::peer_lost;
  if (flow_ && !(pull.id & kStreamOnly)) {
    if (failing_) return;  // it goes on with the next announcement
    flow_->done(pull.id, error);
  }
  if (!failing_) tell_release(pull.id, error);
  ReceiveQueue::finish(pull.matched, error);
}

void Session::resume(std::uint64_t number, const Matched& matched) noexcept {
  if (matched.room == 0)
    end_fetch({number, matched}, Errc::ok);
  else
    pull({number, matched});
}

void Session::tell_release(std::uint64_t id, Errc error) noexcept {
  --announcements_;
  tell({.type = FrameType::release, .data = static_cast<std::uint64_t>(error), .id = id});
}

void Session::release(const Message& message) noexcept {
  if (flow_ && !(message.id & kStreamOnly)) flow_->done(message.id, Errc::ok);
  if (services_.ledger) services_.ledger->take(message.id);
  tell_release(message.id, Errc::ok);
  if (services_.on_output) services_.on_output();
}

void Session::consumed(std::uint64_t bytes) noexcept {
  buffered_ -= bytes;
  uncredited_ += bytes;
  if (uncredited_ < kCreditAtOnce) return;
  tell({.type = FrameType::credit, .total = std::exchange(uncredited_, 0)});
  if (services_.on_output) services_.on_output();
}

// --- the end

void Session::fail_messages(Errc error) noexcept {
  services_.receives.leave(*this, flow_.get());
  window_used_ = buffered_ = uncredited_ = 0;
  announcements_ = 0;
  for (; !sending_.empty(); sending_.pop_front()) end_send(sending_.front().operation, 0, error);
  for (const auto& [id, entry] : std::exchange(announced_, {})) {
    const bool taken = services_.ledger && !services_.ledger->revoke(id);
    end_send(entry.operation, taken ? entry.length : 0, taken ? Errc::ok : error);
  }
  for (; !waiting_pulls_.empty(); waiting_pulls_.pop_front()) end_fetch(waiting_pulls_.front(), error);
  for (; !fetches_.empty(); fetches_.pop_front()) end_fetch(fetches_.front().pull, error);
}

}  // namespace fab
