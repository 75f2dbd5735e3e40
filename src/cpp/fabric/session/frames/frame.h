#pragma once

#include <cstddef>
#include <cstdint>

namespace fab {

// What travels on a byte stream between two contexts (docs/wire.md): fixed 48-byte little-endian headers,
// each followed by `length` payload bytes. Requests are answered in the order in which they were sent, so
// answers name no request.
enum class FrameType : std::uint8_t {
  write = 1,      // part of a put: payload goes to [remote + done so far); `total` bytes in all
  read = 2,       // asks for [remote, remote + total)
  atomic = 3,     // payload: operands of `total` bytes; answered like a write
  fetch = 4,      // payload: operands, none for atomic_read; answered by data
  compare = 5,    // payload: operands, then comparands; answered by data
  notify = 6,     // remote data for bytes that the sender moved itself; not answered
  message = 7,    // a whole message: `key` is its tag, `remote` its group and, from bit 32, its number among
                  // the messages of this stream and of its eager ring; answered if kAcknowledge is set
  announce = 8,   // a message of `total` bytes, number `id`, that stays with the sender; payload: where it
                  // lies (address and length of each piece), if that can be read directly; not answered
  pull = 9,       // asks for the first `total` bytes of announced message `id`; answered by data
  join = 10,      // this stream carries requests of flow (`key`, `remote`), as its rail `data` (RailNumber);
                  // answered
  fence = 11,     // rail `data` of the stream's flow is dead; answered
  settled = 12,   // the sender knows the outcome of all numbers below `total`, and of announced message `id`
  describe = 13,  // asks what the sender's device needs to reach the region `key` by itself; answered by data
                  // of kDescriptionBytes, whose form is its link's
  rows = 14,      // asks for several ranges of the region `key`, `total` bytes in all; payload: where each
                  // begins and its length; answered by data, one range after the other
  probe = 15,  // payload that nobody reads, at most kMaxProbe bytes; answered by `total` such bytes of data,
               // at most kMaxProbe, or like a write if `total` is 0
  ack = 16,    // the oldest `total` unanswered requests succeeded
  fail = 17,   // the oldest unanswered request failed with Errc `data`
  data = 18,   // part of the answer to the oldest unanswered request, which it completes when kLast is set;
               // maybe empty
  release = 19,  // the peer's announced message `id` was received or is not wanted; `data`: its Errc
  credit = 20,   // `total` bytes of kMessageWindow are free again for eager messages
  ping = 32,     // answered by pong
  pong = 33,
};

namespace frame_flag {
inline constexpr std::uint8_t kLast = 1;        // last part of its request or answer
inline constexpr std::uint8_t kRemoteData = 2;  // `data` goes to the target's completion queue
inline constexpr std::uint8_t kCommit = 4;      // answer once durable
inline constexpr std::uint8_t kTagged = 8;
inline constexpr std::uint8_t kAcknowledge = 16;  // of a message: answer by ack
inline constexpr std::uint8_t kStripe = 32;       // of a put or get: part of a larger one
inline constexpr std::uint8_t kStriped = 64;      // ends a put whose stripes have all been stored; no payload
inline constexpr std::uint8_t kRejoin = 128;      // of a join: refuse it if the flow is not known
}  // namespace frame_flag

struct FrameHeader {
  FrameType type{};
  std::uint8_t flags = 0;
  std::uint8_t atomic_op = 0;
  std::uint8_t data_type = 0;
  std::uint32_t length = 0;
  std::uint64_t key = 0;
  std::uint64_t remote = 0;
  std::uint64_t total = 0;
  std::uint64_t data = 0;
  // The number of an announced message, or of a request that is done once. Of a stripe: the length of the
  // whole put or get, in which the stripe begins at `data`.
  std::uint64_t id = 0;
};
inline constexpr std::size_t kHeaderBytes = 48;
static_assert(sizeof(FrameHeader) == kHeaderBytes);

inline constexpr std::uint32_t kMaxPayload = 4u << 20;  // of one frame; longer requests are sent in parts

// What one side may have outstanding. The stream of a peer that goes beyond is ended, so that the answers
// which it does not fetch take little memory.
inline constexpr std::size_t kMaxOutstanding = 8192;      // requests without an answer
inline constexpr std::size_t kMaxResultBytes = 8u << 20;  // former values that they ask for (fetch, compare)
inline constexpr std::size_t kMaxMessage = 16 * 1024;     // bytes of an eager message
// Bytes that eager messages, with their overhead, may fill in the peer's buffers.
inline constexpr std::uint64_t kMessageWindow = 1u << 20;
inline constexpr std::size_t kPieceBytes = 16;           // address and length of a piece
inline constexpr std::size_t kMaxAnnouncedPieces = 256;  // in one announcement
inline constexpr std::size_t kMaxCopiedAnswer = 256;     // longer reads are answered from the region's memory
inline constexpr std::size_t kDescriptionBytes = 128;
inline constexpr std::size_t kRowBytes = 16;              // where a range begins, and its length
inline constexpr std::size_t kMaxRows = 256;              // in one request
inline constexpr std::uint64_t kMaxRowsBytes = 1u << 20;  // of all rows of one request
inline constexpr std::size_t kMaxProbe = 64 * 1024;       // bytes of a probe in one direction

// Whether this is a request with a number, which is done once however often it comes.
constexpr bool happens_once(const FrameHeader& frame) noexcept {
  const bool change = frame.type == FrameType::write ||
                      (frame.type >= FrameType::atomic && frame.type <= FrameType::compare) ||
                      frame.type == FrameType::message;
  return change && frame.id != 0 && !(frame.flags & frame_flag::kStripe);
}

// Write and read a header in the byte order of the wire. decode() checks type, flags and length, and returns
// false for a header that no peer may send.
void encode(const FrameHeader& header, std::byte* out) noexcept;
bool decode(const std::byte* in, FrameHeader& header) noexcept;

}  // namespace fab
