#include "fabric/session/frames/reader.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "base/memory/guarded_copy.h"
#include "fabric/memory/atomics.h"

namespace fab {
namespace {

constexpr std::size_t kHeader = sizeof(FrameHeader);
constexpr std::size_t kStaging = 64 * 1024;
// The least bytes of a payload, or of a piece of one, that is received in place. Shorter payloads are stored
// when they are complete, so that a scalar is stored in one go.
constexpr std::size_t kInPlace = 8 * 1024;
constexpr std::size_t kScattered = 1024;  // of a piece, where several pieces are received in place together
constexpr std::size_t kLongFrame = 16 * 1024;
static_assert(kStaging >= kHeader + 2 * kMaxAtomicBytes && kStaging >= kHeader + kMaxMessage);

enum class Payload : std::uint8_t { none, content, to_sink };

// How the payload of each type of frame is handled. Content is read by whoever serves the frame, so it has to
// be complete before.
constexpr std::array<Payload, 256> kPayloads = [] {
  std::array<Payload, 256> kinds{};
  for (const FrameType type : {FrameType::atomic, FrameType::fetch, FrameType::compare, FrameType::message,
                               FrameType::announce, FrameType::rows})
    kinds[static_cast<std::size_t>(type)] = Payload::content;
  for (const FrameType type : {FrameType::write, FrameType::data, FrameType::probe})
    kinds[static_cast<std::size_t>(type)] = Payload::to_sink;
  return kinds;
}();

}  // namespace

Reader::Reader() : staging_(std::make_unique_for_overwrite<std::byte[]>(kStaging)) {}

std::size_t Reader::input(iovec* out, std::size_t max) noexcept {
  std::size_t count = 0;
  direct_ = 0;
  if (left_ && kind_ != Sink::drain) {
    const bool several = kind_ == Sink::landing && max > 2;
    PieceCursor cursor = sink_;
    do {
      const std::size_t left = left_ - direct_;
      const iovec piece = cursor.here(left);
      if (piece.iov_len < std::min(several ? kScattered : kInPlace, left)) break;
      direct_ += piece.iov_len;
      cursor.advance(piece.iov_len);
      out[count++] = piece;
    } while (several && count < max - 1 && direct_ < left_);
    if (count && direct_ < left_) return count;
  }
  if (taken_ == filled_) {
    taken_ = filled_ = 0;
  } else if (taken_ + needed_ > kStaging) {
    std::memmove(staging_.get(), staging_.get() + taken_, filled_ - taken_);
    filled_ -= taken_;
    taken_ = 0;
  }
  std::size_t room = kStaging - filled_;
  if (long_frames_ && direct_ == left_) {
    // After the data of a long answer comes an empty frame that ends it, before the next header.
    const std::size_t headers = frame_.type == FrameType::data ? kHeader : 0;
    room = std::min(room, needed_ - (filled_ - taken_) + headers);
  }
  out[count++] = {staging_.get() + filled_, room};
  return count;
}

void Reader::arrived(std::size_t bytes) noexcept {
  if (const std::size_t direct = std::min(bytes, std::exchange(direct_, 0))) {
    sink_.skip(direct);
    left_ -= static_cast<std::uint32_t>(direct);
    bytes -= direct;
  }
  filled_ += bytes;
}

Reader::Event Reader::begin_frame() noexcept {
  needed_ = kHeader;
  const std::size_t available = filled_ - taken_;
  if (available < kHeader) return Event::nothing;
  const std::byte* at = staging_.get() + taken_;
  if (!decode(at, frame_)) return Event::nonsense;
  if (frame_.length >= kLongFrame)
    long_frames_ = true;
  else if (frame_.type != FrameType::data || frame_.length != 0)
    long_frames_ = put_open_;
  const Payload payload = kPayloads[static_cast<std::size_t>(frame_.type)];
  if (payload == Payload::content || frame_.length <= kInPlace) needed_ += frame_.length;
  if (available < needed_) return Event::nothing;
  needed_ = kHeader;
  taken_ += kHeader;
  ++frames_;
  if (payload == Payload::to_sink) {
    if (frame_.type == FrameType::write) put_open_ = !(frame_.flags & frame_flag::kLast);
    in_payload_ = true;
    left_ = frame_.length;
    kind_ = Sink::drain;
    faulted_ = false;
  } else if (payload == Payload::content) {
    content_ = at + kHeader;
    taken_ += frame_.length;
  }
  return Event::frame;
}

void Reader::drain() noexcept {
  kind_ = Sink::drain;
  direct_ = 0;
}

bool Reader::fault() noexcept {
  if (direct_ == 0) return false;
  faulted_ = true;
  drain();
  return true;
}

// Stores bytes of the payload that have come into staging_.
void Reader::store(std::size_t bytes) noexcept {
  while (bytes) {
    iovec piece{nullptr, bytes};
    if (kind_ != Sink::drain) {
      piece = sink_.here(bytes);
      if (piece.iov_len == 0) {
        drain();  // the list of pieces is shorter than the payload
        continue;
      }
      const std::byte* from = staging_.get() + taken_;
      if (!copy_guarded(piece.iov_base, from, piece.iov_len)) {
        faulted_ = true;
        drain();
        continue;
      }
      sink_.advance(piece.iov_len);
    }
    taken_ += piece.iov_len;
    bytes -= piece.iov_len;
    left_ -= static_cast<std::uint32_t>(piece.iov_len);
  }
}

void Reader::clear() noexcept {
  in_payload_ = put_open_ = false;
  left_ = 0;
  taken_ = filled_ = direct_ = 0;
}

}  // namespace fab
