#include "fabric/session/target.h"

#include <sys/mman.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "base/bytes/wire.h"
#include "base/memory/fault_guard.h"
#include "base/memory/guarded_copy.h"
#include "base/memory/mapping.h"
#include "fabric/memory/atomics.h"
#include "fabric/noncoherent/access_observer.h"

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

// Judges the whole range that the frame is about. For a stripe that is the range of the whole put or get.
Target::Admitted Target::admit(const FrameHeader& frame, OpCode op) const noexcept {
  if (end_.peer_gave_up) return {.error = Errc::peer_lost};
  const RegionView regions = this->regions();
  const std::int64_t found = regions.find(frame.key);
  if (found < 0) return {.error = Errc::key_rejected};
  Admitted target{.region = static_cast<std::uint32_t>(found)};
  const RegionEntry& entry = regions.entry(target.region);
  target.state = entry.state.load(std::memory_order_seq_cst);
  const bool stripe = frame.flags & frame_flag::kStripe;
  const std::uint64_t before = stripe ? frame.data : 0, whole = stripe ? frame.id : frame.total;
  target.error = regions.judge(entry, {frame.key, target.state, op, frame.remote - before, whole},
                               end_.requester, target.offset);
  target.offset += before;
  if (target.error == Errc::ok && (frame.flags & frame_flag::kCommit) &&
      !(entry.flags & region_flag::kPersistent))
    target.error = Errc::invalid;
  if (target.error == Errc::ok && (entry.flags & region_flag::kObserved) && end_.services.observer)
    end_.services.observer->admitted(target.region, op, target.offset, frame.total);
  return target;
}

void Target::tell_stored(const FrameHeader& frame, const Admitted& target, const RegionEntry& entry,
                         OpCode op) const noexcept {
  if ((entry.flags & region_flag::kObserved) && end_.services.observer)
    end_.services.observer->stored(target.region, op, target.offset, frame.total);
}

void Target::begin_put(const FrameHeader& frame) noexcept {
  put_.open = true;
  put_.done = frame.flags & frame_flag::kStriped ? frame.total : 0;
  put_.before.reset();
  if (!(frame.flags & frame_flag::kLast)) put_.first = frame;
  if (const auto* known = end_.extension.outcome(frame)) {
    put_.before = known->error;
    put_.target = {.error = Errc::key_rejected};  // nothing of the put is stored
  } else if (!end_.extension.may_come(frame)) {
    put_.before = Errc::no_memory;  // refused: nothing is stored, and nothing is remembered
    put_.target = {.error = Errc::no_memory};
  } else {
    put_.target = admit(frame, OpCode::write);
  }
}

Errc Target::on_write(const FrameHeader& frame, Reader& reader) {
  if (!put_.open) {
    begin_put(frame);
  } else {
    const FrameHeader& first = put_.first;
    const bool same = frame.key == first.key && frame.remote == first.remote && frame.total == first.total &&
                      frame.data == first.data && frame.id == first.id &&
                      ((frame.flags ^ first.flags) & ~frame_flag::kLast) == 0;
    if (!same) return Errc::protocol;
  }
  const std::uint64_t left = frame.total - put_.done;
  const bool last = frame.flags & frame_flag::kLast;
  if (frame.length > left || last != (frame.length == left)) return Errc::protocol;

  Admitted& target = put_.target;
  if (end_.peer_gave_up && target.error == Errc::ok) target.error = Errc::peer_lost;
  if (target.error != Errc::ok) return Errc::ok;
  const RegionEntry& entry = regions().entry(target.region);
  if (entry.state.load(std::memory_order_seq_cst) != target.state) {
    target.error = Errc::key_rejected;  // the region was closed or disabled meanwhile
    return Errc::ok;
  }
  reader.store_in_region(
      {pieces_, regions().pieces(entry, target.offset + put_.done, frame.length, pieces_)});
  return Errc::ok;
}

void Target::end_write(const FrameHeader& frame, const Reader& reader) {
  put_.done += frame.length;
  if (reader.faulted()) put_.target.error = Errc::bounds;
  if (frame.flags & frame_flag::kLast) end_put(frame);
}

void Target::end_put(const FrameHeader& frame) {
  put_.open = false;
  if (put_.before) return answer(frame, *put_.before);
  end_.extension.make_room(frame, 0);
  const Admitted& target = put_.target;
  Errc outcome = target.error;
  const bool stripe = frame.flags & frame_flag::kStripe;
  if (outcome == Errc::ok && (frame.flags & frame_flag::kCommit) && !stripe)
    outcome = make_durable(target, frame.total);
  if (outcome == Errc::ok) {
    const RegionEntry& entry = regions().entry(target.region);
    tell_stored(frame, target, entry, OpCode::write);
    if (frame.flags & frame_flag::kRemoteData) deliver(frame.total, frame.data);
    if (!stripe) count(entry, Effects::stored);  // last, so that whoever reads the counter finds the entry
  }
  end_.extension.record(frame, outcome);
  answer(frame, outcome);
}

// A notice tells of a put that is done, so it needs the rights of a put. The region may have been disabled
// since, or may be closing: its entry stays until the notices of it are read (DomainCore::retired).
void Target::on_notify(const FrameHeader& frame) noexcept {
  const RegionView regions = this->regions();
  const std::int64_t found = regions.find(frame.key);
  if (found < 0) return;
  const RegionEntry& entry = regions.entry(static_cast<std::uint32_t>(found));
  std::uint64_t offset = 0;
  const std::uint64_t state = entry.state.load(std::memory_order_seq_cst);
  const Errc verdict = regions.judge(entry, {frame.key, state, OpCode::write, frame.remote, frame.total},
                                     end_.requester, offset);
  const RegionTable* const table = end_.services.table;
  const bool enabled = verdict != Errc::key_rejected;
  if (enabled ? verdict == Errc::ok
              : table && table->had_put_rights(frame.key, frame.remote, frame.total, end_.requester))
    deliver(frame.total, frame.data);
}

void Target::forget(std::uint32_t region, Reader& reader) noexcept {
  if (!put_.open || put_.target.error != Errc::ok || put_.target.region != region) return;
  put_.target.error = Errc::key_rejected;
  if (reader.in_region()) reader.drain();
}

void Target::end_probe(const FrameHeader& frame) {
  if (frame.total == 0) return answer(frame, Errc::ok);
  std::memset(end_.answers.room(frame.total), 0, frame.total);
}

void Target::count(const RegionEntry& entry, Effects effects) noexcept {
  if (is_counted(entry, end_.requester.rights) &&
      raise_counters(end_.services.segment, entry, end_.requester.rights, effects))
    end_.services.wake_domain();
}

void Target::deliver(std::uint64_t length, std::uint64_t data) noexcept {
  constexpr auto kFlags =
      completion_flag::kRma | completion_flag::kRemoteWrite | completion_flag::kRemoteData;
  const Source source = end_.services.sender->reported();
  end_.services.completions.push_remote(
      {.length = length, .data = data, .source = source.id, .flags = kFlags | source.flags});
}

void Target::on_read(const FrameHeader& frame) {
  const Admitted target = admit(frame, OpCode::read);
  if (target.error != Errc::ok) return answer(frame, target.error);
  // Of a get in stripes the first one stands for all.
  if (!(frame.flags & frame_flag::kStripe) || frame.data == 0)
    count(regions().entry(target.region), Effects::fetched);
  if (frame.total > kMaxCopiedAnswer) {
    end_.answers.flush();
    return end_.output.region_payload(target.region, target.offset, frame.total);
  }
  const SessionOutput::Range range{target.offset, frame.total};
  std::byte content[kMaxCopiedAnswer];
  answer_copy(frame, target.region, {&range, 1}, content);
}

// Answers with a copy of the ranges, one after the other, that is made in `content`.
void Target::answer_copy(const FrameHeader& frame, std::uint32_t region,
                         std::span<const SessionOutput::Range> ranges, std::byte* content) {
  const RegionView regions = this->regions();
  const RegionEntry& entry = regions.entry(region);
  std::byte* at = content;
  for (const auto& range : ranges) {
    iovec pieces[RegionView::kMaxRegionPieces];
    const std::size_t count = regions.pieces(entry, range.offset, range.length, pieces);
    for (std::size_t i = 0; i < count; ++i) {
      if (!copy_guarded(at, pieces[i].iov_base, pieces[i].iov_len)) return answer(frame, Errc::bounds);
      at += pieces[i].iov_len;
    }
  }
  end_.answers.give({content, frame.total});
}

// Serves all ranges or none: if one is refused, the initiator asks again for each of them.
Errc Target::on_rows(const FrameHeader& asked, const std::byte* payload) {
  FrameHeader frame = asked;  // as if one range were asked for
  const std::size_t count = asked.length / kRowBytes;
  std::vector<SessionOutput::Range> ranges(count);
  std::uint64_t total = 0;
  Admitted target;
  Errc verdict = Errc::ok;
  for (std::size_t i = 0; i < count && verdict == Errc::ok; ++i) {
    std::uint64_t range[2];
    std::memcpy(range, payload + i * kRowBytes, sizeof range);
    frame.remote = to_little(range[0]);
    frame.total = to_little(range[1]);
    if (frame.total > asked.total - total) return Errc::protocol;
    total += frame.total;
    target = admit(frame, OpCode::read);
    verdict = target.error;
    ranges[i] = {target.offset, frame.total};
  }
  if (verdict != Errc::ok) {
    answer(asked, verdict);
    return Errc::ok;
  }
  if (total != asked.total) return Errc::protocol;
  for (std::size_t i = 0; i < count; ++i) this->count(regions().entry(target.region), Effects::fetched);
  if (total > count * kMaxCopiedAnswer) {
    end_.answers.flush();
    end_.output.region_payload(target.region, std::move(ranges), total);
    return Errc::ok;
  }
  std::byte content[kMaxRows * kMaxCopiedAnswer];
  answer_copy(asked, target.region, ranges, content);
  return Errc::ok;
}

// The region is described whatever its rights are, because the description tells them.
void Target::on_describe(const FrameHeader& frame) {
  const RegionView regions = this->regions();
  const std::int64_t found = regions.find(frame.key);
  if (found < 0) return answer(frame, Errc::key_rejected);
  const auto index = static_cast<std::uint32_t>(found);
  const RegionEntry& entry = regions.entry(index);
  std::uint64_t offset;
  Errc verdict = regions.judge(entry, {frame.key, 0, OpCode::read, entry.base, 0}, end_.requester, offset);
  if (verdict == Errc::access)
    verdict = regions.judge(entry, {frame.key, 0, OpCode::write, entry.base, 0}, end_.requester, offset);
  if (verdict != Errc::ok) return answer(frame, verdict);
  std::byte content[kDescriptionBytes];
  // A device reaches memory without a word to those who count.
  const bool counted = end_.requester.rights.counters.load(std::memory_order_relaxed) != 0;
  const Errc outcome =
      counted || !end_.services.device ? Errc::not_supported : end_.services.device->describe(index, content);
  if (outcome != Errc::ok) return answer(frame, outcome);
  end_.answers.give(content);
}

void Target::on_atomic(const FrameHeader& frame, const std::byte* payload) {
  const bool fetches = frame.type != FrameType::atomic;
  if (const auto* known = end_.extension.outcome(frame)) {
    if (known->error != Errc::ok || !fetches) return answer(frame, known->error);
    if (known->result.size() != frame.total) return answer(frame, Errc::protocol);
    return end_.answers.give(known->result);
  }
  if (!end_.extension.may_come(frame)) return answer(frame, Errc::no_memory);
  end_.extension.make_room(frame, fetches ? frame.total : 0);
  std::byte result[kMaxAtomicBytes];
  const Admitted target = admit(frame, op_of(frame.type));
  const Errc outcome =
      target.error != Errc::ok ? target.error : apply(frame, target, payload, fetches ? result : nullptr);
  const bool data = outcome == Errc::ok && fetches;
  end_.extension.record(
      frame, outcome, data ? std::span<const std::byte>(result, frame.total) : std::span<const std::byte>());
  if (data)
    end_.answers.give({result, frame.total});
  else
    answer(frame, outcome);
}

// Applies the atomic to all elements or to none: everything is checked before the first element is touched.
Errc Target::apply(const FrameHeader& frame, const Admitted& target, const std::byte* payload,
                   std::byte* result) noexcept {
  const auto op = static_cast<AtomicOp>(frame.atomic_op);
  const auto type = static_cast<DataType>(frame.data_type);
  if (!atomic_supported(op, type)) return Errc::not_supported;
  if (needs_compare(op) != (frame.type == FrameType::compare)) return Errc::invalid;
  if (op == AtomicOp::atomic_read && !result) return Errc::invalid;

  const RegionView regions = this->regions();
  const RegionEntry& entry = regions.entry(target.region);
  iovec pieces[RegionView::kMaxRegionPieces];
  const std::size_t count = regions.pieces(entry, target.offset, frame.total, pieces);
  for (std::size_t i = 0; i < count; ++i)
    if ((reinterpret_cast<std::uintptr_t>(pieces[i].iov_base) | pieces[i].iov_len) % size_of(type) != 0)
      return Errc::invalid;  // misaligned, or an element that straddles two buffers

  if (end_.services.device) end_.services.device->claim_atomics(target.region);
  const std::byte* compare = frame.type == FrameType::compare ? payload + frame.total : nullptr;
  std::size_t done = 0;
  bool modified = false;
  for (std::size_t i = 0; i < count; ++i) {
    Errc error = Errc::ok;
    const bool there = guarded([&] {
      error = apply_atomic({.op = op,
                            .type = type,
                            .operand = payload + (op == AtomicOp::atomic_read ? 0 : done),
                            .compare = compare ? compare + done : nullptr,
                            .result = result ? result + done : nullptr},
                           static_cast<std::byte*>(pieces[i].iov_base), pieces[i].iov_len, &modified);
    });
    if (!there) return Errc::bounds;
    if (error != Errc::ok) return error;
    done += pieces[i].iov_len;
  }
  Errc outcome = Errc::ok;
  if (frame.flags & frame_flag::kCommit) outcome = make_durable(target, frame.total);
  if (outcome == Errc::ok) {
    if (op != AtomicOp::atomic_read) tell_stored(frame, target, entry, OpCode::atomic);
    const bool last = frame.data == 0 || (frame.flags & frame_flag::kLast);
    if (frame.data != 0)  // a piece of this array
      modified = end_.extension.arrays().applied(frame.data, last, modified);
    this->count(entry, effects(modified, last && frame.type != FrameType::atomic));
  }
  return outcome;
}

Errc Target::make_durable(const Admitted& target, std::uint64_t length) const noexcept {
  const RegionView regions = this->regions();
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
