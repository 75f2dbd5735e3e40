#include "fabric/session/frames/frame.h"

#include <cstring>

#include "base/bytes/wire.h"
#include "fabric/types/error.h"
#include "fabric/types/peer_id.h"
#include "fabric/types/types.h"

namespace fab {
namespace {

template <class T>
void store(std::byte* out, std::size_t at, T value) noexcept {
  value = to_little(value);
  std::memcpy(out + at, &value, sizeof value);
}

template <class T>
T load(const std::byte* in, std::size_t at) noexcept {
  T value;
  std::memcpy(&value, in + at, sizeof value);
  return to_little(value);
}

bool is_outcome(std::uint64_t code) noexcept { return code != 0 && code < 1024; }

// A put may be sent in several frames, of which all but the last have a payload.
bool write_fits(const FrameHeader& header) noexcept {
  if (header.flags & frame_flag::kStriped)
    return header.length == 0 && (header.flags & frame_flag::kLast) && !(header.flags & frame_flag::kStripe);
  if (header.length > kMaxPayload || header.length > header.total) return false;
  return (header.flags & frame_flag::kLast) || header.length != 0;
}

// A stripe lies within the whole put or get, and is shorter than it.
bool stripe_fits(const FrameHeader& header) noexcept {
  if (!(header.flags & frame_flag::kStripe)) return true;
  return (header.flags & frame_flag::kRemoteData) == 0 && header.data <= header.id &&
         header.total <= header.id - header.data && header.remote >= header.data;
}

bool atomic_fits(const FrameHeader& header) noexcept {
  if (header.atomic_op >= kAtomicOps || header.data_type >= kDataTypes || header.total > kMaxAtomicBytes)
    return false;
  const bool operand = static_cast<AtomicOp>(header.atomic_op) != AtomicOp::atomic_read;
  const std::uint64_t parts = header.type == FrameType::compare ? 2 : (operand ? 1 : 0);
  return header.length == parts * header.total;
}

std::uint8_t flags_of(FrameType type) noexcept {
  using namespace frame_flag;
  constexpr std::uint8_t kOfAll = kLast | kRemoteData | kCommit;
  switch (type) {
    case FrameType::message:
    case FrameType::announce:
      return kRemoteData | kTagged | kAcknowledge;
    case FrameType::write:
      return kOfAll | kStripe | kStriped;
    case FrameType::read:
      return kOfAll | kStripe;
    case FrameType::join:
      return kRejoin;
    case FrameType::probe:
      return 0;
    default:
      return kOfAll;
  }
}

enum class Numbers { never, maybe, always };

Numbers numbers_of(FrameType type) noexcept {
  switch (type) {
    case FrameType::announce:
    case FrameType::pull:
    case FrameType::release:
      return Numbers::always;
    case FrameType::write:
    case FrameType::read:
    case FrameType::atomic:
    case FrameType::fetch:
    case FrameType::compare:
    case FrameType::message:
    case FrameType::settled:
      return Numbers::maybe;
    default:
      return Numbers::never;
  }
}

}  // namespace

void encode(const FrameHeader& header, std::byte* out) noexcept {
  store(out, 0, static_cast<std::uint8_t>(header.type));
  store(out, 1, header.flags);
  store(out, 2, header.atomic_op);
  store(out, 3, header.data_type);
  store(out, 4, header.length);
  store(out, 8, header.key);
  store(out, 16, header.remote);
  store(out, 24, header.total);
  store(out, 32, header.data);
  store(out, 40, header.id);
}

bool decode(const std::byte* in, FrameHeader& header) noexcept {
  header = {.type = static_cast<FrameType>(load<std::uint8_t>(in, 0)),
            .flags = load<std::uint8_t>(in, 1),
            .atomic_op = load<std::uint8_t>(in, 2),
            .data_type = load<std::uint8_t>(in, 3),
            .length = load<std::uint32_t>(in, 4),
            .key = load<std::uint64_t>(in, 8),
            .remote = load<std::uint64_t>(in, 16),
            .total = load<std::uint64_t>(in, 24),
            .data = load<std::uint64_t>(in, 32),
            .id = load<std::uint64_t>(in, 40)};
  if ((header.flags & ~flags_of(header.type)) != 0) return false;
  const Numbers numbers = numbers_of(header.type);
  if ((numbers == Numbers::always && header.id == 0) || (numbers == Numbers::never && header.id != 0))
    return false;
  switch (header.type) {
    case FrameType::write:
      return write_fits(header) && stripe_fits(header);
    case FrameType::atomic:
    case FrameType::fetch:
    case FrameType::compare:
      return atomic_fits(header);
    case FrameType::data:
      return header.length <= kMaxPayload;
    case FrameType::ack:
      return header.length == 0 && header.total != 0;
    case FrameType::fail:
      return header.length == 0 && is_outcome(header.data);
    case FrameType::message:
      return header.length == header.total && header.length <= kMaxMessage &&
             (header.remote & 0xFFFFFFFF) <= kMaxGroupId;
    case FrameType::announce:
      return header.length % kPieceBytes == 0 && header.length <= kMaxAnnouncedPieces * kPieceBytes &&
             (header.remote & 0xFFFFFFFF) <= kMaxGroupId;
    case FrameType::release:
      return header.length == 0 && (header.data == 0 || is_outcome(header.data));
    case FrameType::credit:
      return header.length == 0 && header.total != 0;
    case FrameType::read:
      return header.length == 0 && stripe_fits(header) &&
             ((header.flags & frame_flag::kStripe) || header.id == 0);
    case FrameType::describe:
      return header.length == 0 && header.total == kDescriptionBytes;
    case FrameType::rows:
      return header.length != 0 && header.length % kRowBytes == 0 && header.length <= kMaxRows * kRowBytes &&
             header.total <= kMaxRowsBytes;
    case FrameType::probe:
      return header.length <= kMaxProbe && header.total <= kMaxProbe;
    case FrameType::join:
    case FrameType::fence:
    case FrameType::settled:
    case FrameType::pull:
    case FrameType::notify:
    case FrameType::ping:
    case FrameType::pong:
      return header.length == 0;
  }
  return false;
}

}  // namespace fab
