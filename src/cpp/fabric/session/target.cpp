// The target's side of a Session: requests in, answers out.

#include <sys/mman.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "base/bytes/wire.h"
#include "base/memory/fault_guard.h"
#include "base/memory/mapping.h"
#include "fabric/memory/atomics.h"
#include "fabric/memory/copy_memory.h"
#include "fabric/noncoherent/access_observer.h"
#include "fabric/session/session.h"

namespace fab {
namespace {

OpCode op_of(FrameType type) noexcept {
  switch (type) {
    case FrameType::read:
      return OpCode::read;
    case FrameType::atomic:
      return OpCode::atomic;
    case FrameType::fetch:
      return OpCode::fetch_atomic;
    case FrameType::compare:
      return OpCode::compare_atomic;
    default:
      return OpCode::write;
  }
}

}  // namespace

// Judges the whole range of frame_, or of what it is a stripe of.
Session::Admitted Session::admit(OpCode op) const noexcept {
  if (peer_gave_up_) return {.error = Errc::peer_lost};
  const RegionView regions = services_.segment.regions();
  const std::int64_t found = regions.find(frame_.key);
  if (found < 0) return {.error = Errc::key_rejected};
  Admitted target{.region = static_cast<std::uint32_t>(found)};
  const RegionEntry& entry = regions.entry(target.region);
  target.state = entry.state.load(std::memory_order_seq_cst);
  const bool stripe = frame_.flags & frame_flag::kStripe;
  const std::uint64_t before = stripe ? frame_.data : 0, whole = stripe ? frame_.id : frame_.total;
  target.error = regions.judge(entry, frame_.key, target.state, op, frame_.remote - before, whole, visitor_,
                               target.offset);
  target.offset += before;
  if (target.error == Errc::ok && (frame_.flags & frame_flag::kCommit) &&
      !(entry.flags & region_flag::kPersistent))
    target.error = Errc::invalid;
  if (target.error == Errc::ok && (entry.flags & region_flag::kObserved) && services_.observer)
    services_.observer->admitted(target.region, op, target.offset, frame_.total);
  return target;
}

void Session::tell_stored(const Admitted& target, OpCode op) const noexcept {
  const RegionEntry& entry = services_.segment.regions().entry(target.region);
  if ((entry.flags & region_flag::kObserved) && services_.observer)
    services_.observer->stored(target.region, op, target.offset, frame_.total);
}

void Session::flush_acks() noexcept {
  if (acks_ == 0) return;
  tell({.type = FrameType::ack, .total = acks_});
  acks_ = 0;
  acks_of_requests_ = false;
}

void Session::answer(Errc outcome) noexcept {
  if (outcome == Errc::ok) {
    ++acks_;
    acks_of_requests_ |= frame_.type != FrameType::message;
    return;
  }
  flush_acks();
  tell({.type = FrameType::fail, .data = static_cast<std::uint64_t>(outcome)});
}

Errc Session::on_write() {
  if (!write_.open) {
    write_ = {.open = true, .first = frame_};
    if (const auto* known = done_before()) {
      write_.before = known->error;
      write_.target.error = Errc::key_rejected;  // nothing of it is stored
    } else {
      write_.target = admit(OpCode::write);
    }
    if (frame_.flags & frame_flag::kStriped) write_.done = frame_.total;
  } else {
    const FrameHeader& first = write_.first;
    const bool same = frame_.key == first.key && frame_.remote == first.remote &&
                      frame_.total == first.total && frame_.data == first.data && frame_.id == first.id &&
                      ((frame_.flags ^ first.flags) & ~frame_flag::kLast) == 0;
    if (!same) return Errc::protocol;
  }
  const std::uint64_t left = frame_.total - write_.done;
  const bool last = frame_.flags & frame_flag::kLast;
  if (frame_.length > left || last != (frame_.length == left)) return Errc::protocol;

  Admitted& target = write_.target;
  if (peer_gave_up_ && target.error == Errc::ok) target.error = Errc::peer_lost;
  sink_ = Sink::drain;
  if (target.error == Errc::ok) {
    const RegionView regions = services_.segment.regions();
    const RegionEntry& entry = regions.entry(target.region);
    if (entry.state.load(std::memory_order_seq_cst) == target.state) {
      const auto count = regions.pieces(entry, target.offset + write_.done, frame_.length, region_pieces_);
      region_cursor_ = PieceCursor(region_pieces_, count);
      sink_ = Sink::region;
    } else {
      target.error = Errc::key_rejected;  // closed or disabled meanwhile
    }
  }
  payload_left_ = frame_.length;
  return payload_left_ ? Errc::ok : end_payload();
}

void Session::end_write() {
  write_.open = false;
  if (write_.before) return answer(*write_.before);
  prepare_to_remember(0);
  const Admitted& target = write_.target;
  Errc outcome = target.error;
  const bool stripe = frame_.flags & frame_flag::kStripe;
  if (outcome == Errc::ok && (frame_.flags & frame_flag::kCommit) && !stripe)
    outcome = make_durable(target, frame_.total);
  if (outcome == Errc::ok) {
    tell_stored(target, OpCode::write);
    if (!(frame_.flags & frame_flag::kStripe)) count_write(services_.segment.regions().entry(target.region));
    if (frame_.flags & frame_flag::kRemoteData) deliver(frame_.total, frame_.data);
  }
  remember(outcome);
  answer(outcome);
}

void Session::end_probe() {
  if (frame_.total == 0) return answer(Errc::ok);
  std::memset(answer_room(), 0, frame_.total);
}

// --- requests that happen once

const Flow::Outcome* Session::done_before() const noexcept {
  return happens_once(frame_) ? flow_->outcome(frame_.id) : nullptr;
}

// Before it is done: once it was, nothing may keep its outcome from being remembered.
void Session::prepare_to_remember(std::size_t result) {
  if (happens_once(frame_)) flow_->make_room(result);
}

void Session::remember(Errc outcome, std::span<const std::byte> result) noexcept {
  if (happens_once(frame_)) flow_->record(frame_.id, outcome, result);
}

Errc Session::on_join() {
  if (flow_) {  // a later flow of the same peer, begun before this stream stood
    if (!pulls_.empty() || !waiting_pulls_.empty() || announcements_ != 0) return Errc::protocol;
    std::exchange(flow_, nullptr)->leave(*this);
  }
  const bool known = frame_.flags & frame_flag::kRejoin;
  auto flow =
      services_.flows ? services_.flows->open({frame_.key, frame_.remote}, known, services_.sender) : nullptr;
  if (!flow) {
    answer(services_.flows ? Errc::peer_lost : Errc::not_supported);
    return Errc::ok;
  }
  if (!flow->join(RailNumber::unpack(frame_.data), *this)) return Errc::protocol;
  flow_ = std::move(flow);
  answer(Errc::ok);
  return Errc::ok;
}

Errc Session::on_fence() {
  if (!flow_ || !flow_->fence(RailNumber::unpack(frame_.data), *this)) return Errc::protocol;
  answer(Errc::ok);
  return Errc::ok;
}

Errc Session::on_settled() {
  if (!flow_) return Errc::protocol;
  flow_->settled(frame_.total);
  if (frame_.id != 0) flow_->message_settled(frame_.id);
  answer(Errc::ok);
  return Errc::ok;
}

void Session::cut() noexcept { services_.on_cut(); }

void Session::count_write(const RegionEntry& entry) noexcept {
  if (raise_counters(services_.segment, entry, visitor_.port)) services_.wake_domain();
}

void Session::deliver(std::uint64_t length, std::uint64_t data) noexcept {
  constexpr auto kFlags =
      completion_flag::kRma | completion_flag::kRemoteWrite | completion_flag::kRemoteData;
  const Source source = services_.sender->reported();
  services_.completions.push_remote(
      {.length = length, .data = data, .source = source.id, .flags = kFlags | source.flags});
}

void Session::on_read() {
  const Admitted target = admit(OpCode::read);
  if (target.error != Errc::ok) return answer(target.error);
  if (frame_.total > kMaxCopiedAnswer) {
    flush_acks();
    return output_.region_payload(target.region, target.offset, frame_.total);
  }
  const SessionOutput::Range range{target.offset, frame_.total};
  std::byte content[kMaxCopiedAnswer];
  answer_copy(target.region, {&range, 1}, content);
}

// Answers with a copy of the ranges, one after the other, made in `content`.
void Session::answer_copy(std::uint32_t region, std::span<const SessionOutput::Range> ranges,
                          std::byte* content) {
  const RegionView regions = services_.segment.regions();
  const RegionEntry& entry = regions.entry(region);
  const bool there = guarded([&] {
    std::byte* at = content;
    for (const auto& range : ranges) {
      iovec pieces[RegionView::kMaxRegionPieces];
      const std::size_t count = regions.pieces(entry, range.offset, range.length, pieces);
      for (std::size_t i = 0; i < count; ++i) {
        copy_memory(at, pieces[i].iov_base, pieces[i].iov_len);
        at += pieces[i].iov_len;
      }
    }
  });
  if (!there) return answer(Errc::bounds);
  answer_data(content);
}

// All or nothing: the initiator asks again for each range if one is refused.
Errc Session::on_rows(const std::byte* payload) {
  const FrameHeader asked = frame_;
  const std::size_t count = asked.length / kRowBytes;
  std::vector<SessionOutput::Range> ranges(count);
  std::uint64_t total = 0;
  Admitted target;
  Errc verdict = Errc::ok;
  for (std::size_t i = 0; i < count && verdict == Errc::ok; ++i) {
    std::uint64_t range[2];
    std::memcpy(range, payload + i * kRowBytes, sizeof range);
    frame_.remote = to_little(range[0]);
    frame_.total = to_little(range[1]);
    if (frame_.total > asked.total - total) return Errc::protocol;
    total += frame_.total;
    target = admit(OpCode::read);
    verdict = target.error;
    ranges[i] = {target.offset, frame_.total};
  }
  frame_ = asked;
  if (verdict != Errc::ok) {
    answer(verdict);
    return Errc::ok;
  }
  if (total != asked.total) return Errc::protocol;
  if (total > count * kMaxCopiedAnswer) {
    flush_acks();
    output_.region_payload(target.region, std::move(ranges), total);
    return Errc::ok;
  }
  std::byte content[kMaxRows * kMaxCopiedAnswer];
  answer_copy(target.region, ranges, content);
  return Errc::ok;
}

// Whatever its rights: the description tells them.
void Session::on_describe() {
  const RegionView regions = services_.segment.regions();
  const std::int64_t found = regions.find(frame_.key);
  if (found < 0) return answer(Errc::key_rejected);
  const auto index = static_cast<std::uint32_t>(found);
  const RegionEntry& entry = regions.entry(index);
  std::uint64_t offset;
  Errc verdict = regions.judge(entry, frame_.key, 0, OpCode::read, entry.base, 0, visitor_, offset);
  if (verdict == Errc::access)
    verdict = regions.judge(entry, frame_.key, 0, OpCode::write, entry.base, 0, visitor_, offset);
  if (verdict != Errc::ok) return answer(verdict);
  std::byte content[kDescriptionBytes];
  if (!services_.device || !services_.device->describe(index, content)) return answer(Errc::not_supported);
  answer_data(content);
}

// Where the content goes of an answer to frame_ in one frame, as many bytes as it asks for.
std::byte* Session::answer_room() {
  flush_acks();
  std::byte* at = output_.append(Lane::answers, kHeaderBytes + frame_.total);
  encode({.type = FrameType::data,
          .flags = frame_flag::kLast,
          .length = static_cast<std::uint32_t>(frame_.total)},
         at);
  return at + kHeaderBytes;
}

void Session::answer_data(const std::byte* content) { std::memcpy(answer_room(), content, frame_.total); }

void Session::on_atomic(const std::byte* payload) {
  const bool fetches = frame_.type != FrameType::atomic;
  if (const auto* known = done_before()) {
    if (known->error != Errc::ok || !fetches) return answer(known->error);
    return known->result.size() == frame_.total ? answer_data(known->result.data()) : answer(Errc::protocol);
  }
  prepare_to_remember(fetches ? frame_.total : 0);
  std::byte result[kMaxAtomicBytes];
  const Admitted target = admit(op_of(frame_.type));
  const Errc outcome =
      target.error != Errc::ok ? target.error : apply(target, payload, fetches ? result : nullptr);
  const bool data = outcome == Errc::ok && fetches;
  remember(outcome, data ? std::span<const std::byte>(result, frame_.total) : std::span<const std::byte>());
  if (data)
    answer_data(result);
  else
    answer(outcome);
}

// All or nothing: what is wrong shows before the first element is touched.
Errc Session::apply(const Admitted& target, const std::byte* payload, std::byte* result) noexcept {
  const auto op = static_cast<AtomicOp>(frame_.atomic_op);
  const auto type = static_cast<DataType>(frame_.data_type);
  if (!atomic_supported(op, type)) return Errc::not_supported;
  if (needs_compare(op) != (frame_.type == FrameType::compare)) return Errc::invalid;
  if (op == AtomicOp::atomic_read && !result) return Errc::invalid;

  const RegionView regions = services_.segment.regions();
  const RegionEntry& entry = regions.entry(target.region);
  iovec pieces[RegionView::kMaxRegionPieces];
  const std::size_t count = regions.pieces(entry, target.offset, frame_.total, pieces);
  for (std::size_t i = 0; i < count; ++i)
    if ((reinterpret_cast<std::uintptr_t>(pieces[i].iov_base) | pieces[i].iov_len) % size_of(type) != 0)
      return Errc::invalid;  // misaligned, or an element that straddles two buffers

  if (services_.device) services_.device->claim_atomics(target.region);
  const std::byte* compare = frame_.type == FrameType::compare ? payload + frame_.total : nullptr;
  std::size_t done = 0;
  bool modified = false;
  for (std::size_t i = 0; i < count; ++i) {
    Errc error = Errc::ok;
    const bool there = guarded([&] {
      error = apply_atomic(op, type, static_cast<std::byte*>(pieces[i].iov_base), pieces[i].iov_len,
                           payload + (op == AtomicOp::atomic_read ? 0 : done),
                           compare ? compare + done : nullptr, result ? result + done : nullptr, &modified);
    });
    if (!there) return Errc::bounds;
    if (error != Errc::ok) return error;
    done += pieces[i].iov_len;
  }
  Errc outcome = Errc::ok;
  if (frame_.flags & frame_flag::kCommit) outcome = make_durable(target, frame_.total);
  if (outcome == Errc::ok) {
    if (op != AtomicOp::atomic_read) tell_stored(target, OpCode::atomic);
    if (frame_.data != 0) {  // of an array
      ArrayCounts& arrays = flow_ ? flow_->arrays() : arrays_;
      modified = arrays.applied(frame_.data, frame_.flags & frame_flag::kLast, modified);
    }
    if (modified) count_write(entry);
  }
  return outcome;
}

Errc Session::make_durable(const Admitted& target, std::uint64_t length) const noexcept {
  const RegionView regions = services_.segment.regions();
  iovec pieces[RegionView::kMaxRegionPieces];
  const std::size_t count = regions.pieces(regions.entry(target.region), target.offset, length, pieces);
  for (std::size_t i = 0; i < count; ++i) {
    const auto address = reinterpret_cast<std::uintptr_t>(pieces[i].iov_base);
    const std::uintptr_t start = address / page_size() * page_size();
    if (::msync(reinterpret_cast<void*>(start), address + pieces[i].iov_len - start, MS_SYNC) != 0)
      return errno == ENOMEM ? Errc::bounds : Errc::io;
  }
  return Errc::ok;
}

}  // namespace fab
