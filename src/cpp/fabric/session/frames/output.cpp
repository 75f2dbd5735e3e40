#include "fabric/session/frames/output.h"

#include <algorithm>
#include <cstring>
#include <new>
#include <utility>

#include "base/memory/guarded_copy.h"

namespace fab {
namespace {

alignas(64) constexpr std::byte kZeros[64 * 1024] = {};

}  // namespace

std::byte* SessionOutput::append(Lane lane, std::size_t bytes) {
  LaneQueue& queue = of(lane);
  queue.items.reserve(queue.items.size() + 2);  // one may follow as its payload
  std::byte* at = queue.bytes.append(bytes);
  if (queue.items.empty() || queue.items.back().source != Source::copied) queue.items.push_back({});
  queue.items.back().left += bytes;
  if (lane == Lane::requests) requests_queued_ += bytes;
  return at;
}

void SessionOutput::unappend(Lane lane, std::size_t bytes) noexcept {
  LaneQueue& queue = of(lane);
  queue.bytes.unappend(bytes);
  queue.items.back().left -= bytes;
  if (queue.items.back().left == 0) queue.items.pop_back();
  if (lane == Lane::requests) requests_queued_ -= bytes;
}

void SessionOutput::user_payload(const FrameHeader& first, const PieceCursor& source) noexcept {
  const std::uint64_t frames = (first.total + kMaxPayload - 1) / kMaxPayload;
  Item item{
      .source = Source::user, .serial = next_serial_++, .left = first.total, .frame_left = first.length};
  item.cursor = source;
  item.next = first;
  of(Lane::requests).items.push_back(std::move(item));
  requests_queued_ += first.total + (frames - 1) * sizeof(FrameHeader);
}

void SessionOutput::zeros(std::uint64_t length) noexcept {
  of(Lane::requests)
      .items.push_back(
          {.source = Source::zero, .serial = next_serial_++, .left = length, .frame_left = length});
  requests_queued_ += length;
}

void SessionOutput::region_payload(std::uint32_t region, std::uint64_t offset, std::uint64_t length) {
  Item item{
      .source = Source::region, .serial = next_serial_++, .region = region, .left = length, .offset = offset};
  item.next = {.type = FrameType::data};
  of(Lane::answers).items.push_back(std::move(item));
}

void SessionOutput::region_payload(std::uint32_t region, std::vector<Range> ranges, std::uint64_t length) {
  region_payload(region, 0, length);
  waiting_ranges_ += ranges.size();
  of(Lane::answers).items.back().ranges = std::move(ranges);
}

std::uint32_t SessionOutput::message_payload(const PieceCursor& source, std::uint64_t length) {
  if (next_serial_ == 0) next_serial_ = 1;
  Item item{.source = Source::message, .serial = next_serial_++, .left = length};
  item.cursor = source;
  item.next = {.type = FrameType::data};
  const std::uint32_t serial = item.serial;
  of(Lane::answers).items.push_back(std::move(item));
  return serial;
}

bool SessionOutput::holds(std::uint32_t serial) const noexcept {
  for (std::size_t i = 0; i < staged_.size(); ++i)
    if (staged_[i].serial == serial && staged_[i].length != 0 && staged_[i].source != Source::header)
      return true;
  const RingQueue<Item>& items = of(Lane::answers).items;
  for (std::size_t i = 0; i < items.size(); ++i)
    if (items[i].serial == serial && items[i].source == Source::message) return true;
  return false;
}

// Answers go first because peers wait for them, but every second frame is left to requests.
bool SessionOutput::next_lane(Lane& lane) const noexcept {
  const auto& answers = of(Lane::answers).items;
  const auto& requests = of(Lane::requests).items;
  if (!requests.empty() && requests[0].frame_left != 0)
    lane = Lane::requests;  // a frame is not torn apart
  else
    lane = !answers.empty() && (requests.empty() || !answer_was_last_) ? Lane::answers : Lane::requests;
  return !answers.empty() || !requests.empty();
}

void SessionOutput::stage_piece(Piece piece) {
  staged_bytes_ += piece.length;
  if (!staged_.empty()) {
    Piece& last = staged_.back();
    if (piece.source == Source::copied && last.source == Source::copied && last.lane == piece.lane &&
        last.data + last.length == piece.data) {
      last.length += piece.length;
      return;
    }
  }
  staged_.push_back(std::move(piece));
}

void SessionOutput::stage_copied(Lane lane, Item& item) {
  const auto bytes = of(lane).bytes.take(item.left);
  item.left -= bytes.size();
  stage_piece({.data = bytes.data(), .length = bytes.size(), .source = Source::copied, .lane = lane});
}

bool SessionOutput::stage_header(Lane lane, const Item& item) {
  if (headers_used_ == kHeaders) return false;
  std::byte* at = headers_[(header_at_ + headers_used_++) % kHeaders];
  encode(item.next, at);
  stage_piece({.data = at,
               .length = sizeof(FrameHeader),
               .source = Source::header,
               .lane = lane,
               .serial = item.serial});
  return true;
}

void SessionOutput::stage_user(Item& item) {
  const bool zero = item.source == Source::zero;
  const iovec piece =
      zero ? iovec{const_cast<std::byte*>(kZeros), item.frame_left} : item.cursor.here(item.frame_left);
  stage_piece({.data = static_cast<const std::byte*>(piece.iov_base),
               .length = piece.iov_len,
               .source = item.source,
               .lane = Lane::requests,
               .serial = item.serial});
  if (!zero) item.cursor.advance(piece.iov_len);
  item.frame_left -= piece.iov_len;
  item.left -= piece.iov_len;
}

void SessionOutput::stage_region(Item& item) {
  const auto stage_range = [&](const Range& range) {
    iovec pieces[RegionView::kMaxRegionPieces];
    const std::size_t count =
        regions_.pieces(regions_.entry(item.region), range.offset, range.length, pieces);
    for (std::size_t i = 0; i < count; ++i)
      stage_piece({.data = static_cast<const std::byte*>(pieces[i].iov_base),
                   .length = pieces[i].iov_len,
                   .source = Source::region,
                   .lane = Lane::answers,
                   .serial = item.serial,
                   .region = item.region});
  };
  if (item.ranges.empty()) stage_range({item.offset, item.next.length});
  waiting_ranges_ -= item.ranges.size();
  for (const Range& range : std::exchange(item.ranges, {})) stage_range(range);
  item.offset += item.next.length;
  item.left -= item.next.length;
}

void SessionOutput::stage_message(Item& item) {
  for (std::uint64_t left = item.next.length; left;) {
    const iovec piece = item.cursor.here(left);
    stage_piece({.data = static_cast<const std::byte*>(piece.iov_base),
                 .length = piece.iov_len,
                 .source = Source::message,
                 .lane = Lane::answers,
                 .serial = item.serial});
    item.cursor.advance(piece.iov_len);
    left -= piece.iov_len;
  }
  item.left -= item.next.length;
}

bool SessionOutput::stage(Lane lane) {
  LaneQueue& queue = of(lane);
  Item& item = queue.items.front();
  const auto next_length = [&] {
    return static_cast<std::uint32_t>(std::min<std::uint64_t>(item.left, kMaxPayload));
  };
  bool finished = true;
  switch (item.source) {
    case Source::copied:
      stage_copied(lane, item);
      finished = item.left == 0;
      break;
    case Source::user:
    case Source::zero:
      if (item.frame_left == 0) {
        item.next.length = next_length();
        if (item.next.length == item.left) item.next.flags |= frame_flag::kLast;
        if (!stage_header(lane, item)) return false;
        item.frame_left = item.next.length;
      } else {
        stage_user(item);
      }
      finished = item.left == 0;
      break;
    case Source::region:
    case Source::message:
      item.next.length = next_length();
      item.next.flags = item.left == 0 ? frame_flag::kLast : std::uint8_t{0};
      if (!stage_header(lane, item)) return false;
      item.source == Source::region ? stage_region(item) : stage_message(item);
      finished = item.next.flags == frame_flag::kLast;
      break;
    case Source::header:
      if (!stage_header(lane, item)) return false;
      break;
    case Source::owned:
    case Source::nothing:
      break;
  }
  if (finished) queue.items.pop_front();
  answer_was_last_ = lane == Lane::answers;
  return true;
}

std::size_t SessionOutput::output(iovec* out, std::size_t max) {
  Lane lane;
  while (staged_.size() < max && staged_bytes_ < kStagedBytes && next_lane(lane) && stage(lane)) {
  }
  std::size_t count = 0;
  for (std::size_t i = 0; i < staged_.size() && count < max; ++i) {
    const Piece& piece = staged_[i];
    if (piece.length == 0) continue;
    const std::size_t part =
        piece.source == Source::zero ? std::min(piece.length, sizeof kZeros) : piece.length;
    out[count++] = {const_cast<std::byte*>(piece.data), part};
    if (part < piece.length) break;
  }
  return count;
}

void SessionOutput::sent(std::size_t bytes) noexcept {
  staged_bytes_ -= bytes;
  while (!staged_.empty()) {
    Piece& piece = staged_.front();
    const std::size_t part = std::min(bytes, piece.length);
    if (piece.source != Source::zero) piece.data += part;
    piece.length -= part;
    bytes -= part;
    if (piece.lane == Lane::requests) requests_sent_ += part;
    if (piece.source == Source::copied) of(piece.lane).bytes.release(part);
    if (piece.length) return;
    if (piece.source == Source::header) {
      header_at_ = (header_at_ + 1) % kHeaders;
      --headers_used_;
    }
    staged_.pop_front();
  }
}

void SessionOutput::end_answer(std::uint32_t serial, Errc error) noexcept {
  const FrameHeader fail{.type = FrameType::fail, .data = static_cast<std::uint64_t>(error)};
  bool ended = false;
  for (std::size_t i = 0; i < staged_.size(); ++i) {
    Piece& piece = staged_[i];
    if (piece.serial != serial || piece.length == 0) continue;
    const bool whole_header = piece.source == Source::header && piece.length == sizeof(FrameHeader);
    if (!ended && !whole_header) continue;  // the rest of the frame that has begun, which is finished
    if (!ended) {
      encode(fail, const_cast<std::byte*>(piece.data));
      ended = true;
    } else {
      staged_bytes_ -= piece.length;
      piece.length = 0;
    }
  }
  RingQueue<Item>& items = of(Lane::answers).items;
  for (std::size_t i = 0; i < items.size(); ++i) {
    if (items[i].serial != serial) continue;
    waiting_ranges_ -= items[i].ranges.size();
    items[i].ranges.clear();
    items[i].source = ended ? Source::nothing : Source::header;
    items[i].next = fail;
    return;
  }
}

bool SessionOutput::forget(std::uint32_t index) noexcept {
  for (std::size_t i = 0; i < staged_.size(); ++i) {
    if (staged_[i].source != Source::region || staged_[i].region != index || staged_[i].length == 0) continue;
    end_answer(staged_[i].serial, Errc::key_rejected);
    Piece& piece = staged_[i];
    if (piece.length == 0) continue;
    std::unique_ptr<std::byte[]> copy(new (std::nothrow) std::byte[piece.length]);
    if (!copy) return false;
    // The answer is given up already, so it does not matter which bytes there are, as long as they say
    // nothing.
    if (!copy_guarded(copy.get(), piece.data, piece.length)) std::memset(copy.get(), 0, piece.length);
    piece.data = copy.get();
    piece.owned = std::move(copy);
    piece.source = Source::owned;
  }
  RingQueue<Item>& items = of(Lane::answers).items;
  for (std::size_t i = 0; i < items.size(); ++i)
    if (items[i].source == Source::region && items[i].region == index)
      end_answer(items[i].serial, Errc::key_rejected);
  return true;
}

SessionOutput::Fault SessionOutput::fault() noexcept {
  if (staged_.empty()) return Fault::none;
  const Piece& culprit = staged_.front();
  const std::uint32_t serial = culprit.serial;
  const bool request = culprit.source == Source::user;
  if (!request && culprit.source != Source::region && culprit.source != Source::message) return Fault::none;
  if (request) {
    RingQueue<Item>& items = of(Lane::requests).items;
    if (!items.empty() && items.front().serial == serial) items.front().source = Source::zero;
  } else {
    end_answer(serial, Errc::bounds);
  }
  for (std::size_t i = 0; i < staged_.size(); ++i) {
    Piece& piece = staged_[i];
    const bool of_users =
        piece.source == Source::region || piece.source == Source::user || piece.source == Source::message;
    if (piece.serial != serial || !of_users) continue;
    piece.source = Source::zero;
    piece.data = kZeros;
  }
  return request ? Fault::request : Fault::answer;
}

void SessionOutput::clear() noexcept {
  for (LaneQueue& lane : lanes_) {
    lane.bytes.clear();
    lane.items.clear();
  }
  staged_.clear();
  staged_bytes_ = header_at_ = headers_used_ = waiting_ranges_ = 0;
}

}  // namespace fab
