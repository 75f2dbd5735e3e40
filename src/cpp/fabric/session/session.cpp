#include "fabric/session/session.h"

#include <algorithm>

#include "base/locks/tsan.h"
#include "base/memory/fault_guard.h"
#include "fabric/completion/operation.h"
#include "fabric/memory/copy_memory.h"

namespace fab {
namespace {

constexpr std::size_t kHeader = sizeof(FrameHeader);
constexpr std::size_t kStaging = 64 * 1024;
// Shorter payloads are handled when they are complete, so that a scalar is stored at once; longer ones, and
// pieces of at least this size, are received in place.
constexpr std::size_t kInPlace = 8 * 1024;
constexpr std::size_t kScattered = 1024;  // several such pieces at once, likewise
constexpr std::size_t kLongFrame = 16 * 1024;
constexpr std::size_t kMostWaitingAnswers = 2 * kMaxOutstanding + 64;
constexpr std::size_t kMostCopiedAnswers =
    kMaxOutstanding * (kHeader + kMaxCopiedAnswer) + kMaxResultBytes + 64 * 1024;
static_assert(kStaging >= kHeader + 2 * kMaxAtomicBytes);

bool is_atomic(FrameType type) noexcept {
  return type == FrameType::atomic || type == FrameType::fetch || type == FrameType::compare;
}

bool is_message(FrameType type) noexcept { return type == FrameType::message || type == FrameType::announce; }

}  // namespace

Session::Session(Services services)
    : services_(std::move(services)),
      output_(services_.segment.regions()),
      staging_(std::make_unique_for_overwrite<std::byte[]>(kStaging)) {
  arm_fault_guard();
}

Session::~Session() { fail(Errc::peer_lost); }

std::size_t Session::output(iovec* out, std::size_t max) noexcept try {
  tsan_puts.release();
  return broken_ ? 0 : output_.output(out, max);
} catch (const std::bad_alloc&) {
  broken_ = true;
  return 0;
}

bool Session::has_output() const noexcept { return !broken_ && !output_.empty(); }

void Session::sent(std::size_t bytes) noexcept {
  if (services_.slice) services_.slice->spend(bytes);
  output_.sent(bytes);
  for (; handed_over_ < requests_.size() && requests_[handed_over_].end <= output_.requests_sent();
       ++handed_over_) {
    Request& request = requests_[handed_over_];
    settle_early(request);
  }
  messages_sent();
}

// Of a request that is with the stream.
void Session::settle_early(Request& request) noexcept {
  const bool reached = request.delivery == Delivery::inject ||
                       (request.delivery == Delivery::transmit && handover_ == Handover::at_once);
  if (reached && request.operation && !request.local && request.error == Errc::ok)
    std::exchange(request.operation, nullptr)->settle(Errc::ok, request.length);
}

void Session::held() noexcept {
  handover_ = Handover::at_once;
  for (std::size_t i = 0; i < handed_over_; ++i) settle_early(requests_[i]);
  messages_sent();
}

std::size_t Session::input(iovec* out, std::size_t max) noexcept {
  std::size_t count = 0;
  direct_ = 0;
  if (payload_left_ && sink_ != Sink::drain) {
    // Several pieces at once only of memory that nobody looks at before all has come.
    const bool several = sink_ == Sink::landing && max > 2;
    PieceCursor cursor = sink_cursor();
    do {
      const std::size_t left = payload_left_ - direct_;
      const iovec piece = cursor.here(left);
      if (piece.iov_len < std::min(several ? kScattered : kInPlace, left)) break;
      direct_ += piece.iov_len;
      cursor.advance(piece.iov_len);
      out[count++] = piece;
    } while (several && count < max - 1 && direct_ < payload_left_);
    if (count && direct_ < payload_left_) return count;
  }
  if (taken_ == filled_) {
    taken_ = filled_ = 0;
  } else if (taken_ + needed_ > kStaging) {
    std::memmove(staging_.get(), staging_.get() + taken_, filled_ - taken_);
    filled_ -= taken_;
    taken_ = 0;
  }
  std::size_t room = kStaging - filled_;
  if (long_frames_ && direct_ == payload_left_) {
    // After the data of a long answer comes an empty frame that ends it, before the next header.
    const std::size_t headers = frame_.type == FrameType::data ? kHeader : 0;
    room = std::min(room, needed_ - (filled_ - taken_) + headers);
  }
  out[count++] = {staging_.get() + filled_, room};
  return count;
}

Errc Session::received(std::size_t bytes) noexcept {
  const std::uint64_t frames = frames_;
  Errc error = Errc::ok;
  try {
    error = take_in(bytes);
  } catch (const std::bad_alloc&) {
    broken_ = true;
  }
  if (services_.slice) services_.slice->spend(bytes, frames_ - frames);
  run_fetches();
  return error == Errc::ok && broken_ ? Errc::no_memory : error;
}

Errc Session::take_in(std::size_t bytes) {
  tsan_stores.acquire();
  if (const std::size_t direct = std::min(bytes, direct_)) {
    sink_cursor().skip(direct);
    payload_left_ -= static_cast<std::uint32_t>(direct);
    bytes -= direct;
    direct_ = 0;
    if (payload_left_ == 0)
      if (const Errc error = end_payload(); error != Errc::ok) return error;
  }
  filled_ += bytes;
  return consume();
}

Errc Session::consume() {
  while (!broken_) {
    const std::size_t available = filled_ - taken_;
    if (payload_left_) {
      if (available == 0) return Errc::ok;
      store(std::min<std::size_t>(available, payload_left_));
      if (payload_left_ == 0)
        if (const Errc error = end_payload(); error != Errc::ok) return error;
      continue;
    }
    needed_ = kHeader;
    if (available < kHeader) return Errc::ok;
    const std::byte* at = staging_.get() + taken_;
    if (!decode(at, frame_)) return Errc::protocol;
    if (frame_.length >= kLongFrame)
      long_frames_ = true;
    else if (frame_.type != FrameType::data || frame_.length != 0)
      long_frames_ = write_.open;
    const bool whole = is_atomic(frame_.type) || is_message(frame_.type) || frame_.length <= kInPlace;
    if (whole) needed_ += frame_.length;
    if (available < needed_) return Errc::ok;
    taken_ += kHeader;
    ++frames_;
    if (const Errc error = on_frame(at + kHeader); error != Errc::ok) return error;
    if (output_.waiting(Lane::answers) + output_.waiting_ranges() > kMostWaitingAnswers ||
        output_.copied(Lane::answers) > kMostCopiedAnswers)
      return Errc::protocol;  // more requests than a peer may have outstanding
    needed_ = kHeader;
  }
  return Errc::no_memory;
}

Errc Session::on_frame(const std::byte* payload) {
  const bool request = frame_.type < FrameType::ack;
  if (request && write_.open && frame_.type != FrameType::write) return Errc::protocol;
  if (happens_once(frame_) && !(flow_ && flow_->may_come(frame_.id))) return Errc::protocol;
  switch (frame_.type) {
    case FrameType::write:
      return on_write();
    case FrameType::read:
      on_read();
      return Errc::ok;
    case FrameType::rows:
      taken_ += frame_.length;
      return on_rows(payload);
    case FrameType::atomic:
    case FrameType::fetch:
    case FrameType::compare:
      taken_ += frame_.length;
      on_atomic(payload);
      return Errc::ok;
    case FrameType::notify:
      deliver(frame_.total, frame_.data);
      return Errc::ok;
    case FrameType::message:
      taken_ += frame_.length;
      return in_order() ? on_message(payload) : Errc::protocol;
    case FrameType::announce:
      taken_ += frame_.length;
      return in_order() ? on_announce(payload) : Errc::protocol;
    case FrameType::pull:
      return on_pull();
    case FrameType::release:
      return on_release();
    case FrameType::credit:
      return on_credit();
    case FrameType::describe:
      on_describe();
      return Errc::ok;
    case FrameType::join:
      return on_join();
    case FrameType::fence:
      return on_fence();
    case FrameType::settled:
      return on_settled();
    case FrameType::probe:
      sink_ = Sink::drain;
      payload_left_ = frame_.length;
      return payload_left_ ? Errc::ok : end_payload();
    case FrameType::ack:
      return on_ack();
    case FrameType::fail:
      return on_fail();
    case FrameType::data:
      return on_data();
    case FrameType::ping:
      tell({.type = FrameType::pong});
      return Errc::ok;
    case FrameType::pong:
      return Errc::ok;
  }
  return Errc::protocol;
}

void Session::store(std::size_t bytes) noexcept {
  while (bytes) {
    iovec piece{nullptr, bytes};
    if (sink_ != Sink::drain) {
      PieceCursor& cursor = sink_cursor();
      piece = cursor.here(bytes);
      if (piece.iov_len == 0) {
        sink_ = Sink::drain;  // the list of pieces is shorter than it said
        continue;
      }
      const std::byte* from = staging_.get() + taken_;
      if (!guarded([&] { copy_memory(piece.iov_base, from, piece.iov_len); })) {
        direct_ = piece.iov_len;
        input_fault();
        continue;
      }
      cursor.advance(piece.iov_len);
    }
    taken_ += piece.iov_len;
    bytes -= piece.iov_len;
    payload_left_ -= static_cast<std::uint32_t>(piece.iov_len);
  }
}

Errc Session::end_payload() {
  const bool last = frame_.flags & frame_flag::kLast;
  if (frame_.type == FrameType::write) {
    write_.done += frame_.length;
    if (last) end_write();
  } else if (frame_.type == FrameType::probe) {
    end_probe();
  } else {
    requests_.front().got += frame_.length;
    if (last) finish_oldest(Errc::ok);
  }
  return Errc::ok;
}

void Session::end_turn() noexcept { flush_acks(); }

void Session::ping() noexcept { tell({.type = FrameType::ping}); }

// Queues a frame for the peer. Who cannot tell it what it waits for gives the stream up.
void Session::tell(const FrameHeader& header) noexcept try {
  output_.append_header(Lane::answers, header);
} catch (const std::bad_alloc&) {
  broken_ = true;
}

void Session::forget(std::uint32_t region) noexcept {
  if (!output_.forget(region)) broken_ = true;
  if (!write_.open || write_.target.error != Errc::ok || write_.target.region != region) return;
  write_.target.error = Errc::key_rejected;
  if (payload_left_ && sink_ == Sink::region) {
    sink_ = Sink::drain;
    direct_ = 0;
  }
}

bool Session::output_fault() noexcept {
  const auto fault = output_.fault();
  if (fault == SessionOutput::Fault::request && handed_over_ < requests_.size())
    requests_[handed_over_].error = Errc::bounds;
  return fault != SessionOutput::Fault::none;
}

bool Session::input_fault() noexcept {
  if (direct_ == 0) return false;
  if (sink_ == Sink::landing)
    requests_.front().error = Errc::bounds;
  else
    write_.target.error = Errc::bounds;
  sink_ = Sink::drain;
  direct_ = 0;
  return true;
}

void Session::fail(Errc error) noexcept {
  failing_ = true;
  output_.clear();
  write_ = {};
  acks_ = 0;
  acks_of_requests_ = false;
  payload_left_ = 0;
  taken_ = filled_ = direct_ = handed_over_ = 0;
  result_bytes_ = 0;
  while (!requests_.empty()) {
    const Request request = std::move(requests_.front());
    requests_.pop_front();
    settle(request, request.local ? request.error : error);
  }
  for (; !again_.empty(); again_.pop_front()) {
    const Transfer& row = again_.front();
    settle({.operation = row.operation, .op = OpCode::read, .length = row.length}, error);
  }
  fail_messages(error);
  if (flow_) flow_->leave(*this);
  flow_.reset();
  joined_ = failing_ = false;
  output_.clear();
}

}  // namespace fab
