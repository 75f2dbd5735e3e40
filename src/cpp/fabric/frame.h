#pragma once

#include <cstddef>
#include <cstdint>

namespace fab {

// What travels on a byte stream between two contexts (docs/wire.md): fixed 48-byte little-endian headers,
// each followed by `length` payload bytes. Requests are answered in the order in which they were sent, so
// answers name no request.
enum class FrameType : std::uint8_t {
  write = 1,    // part of a put: payload goes to [remote + done so far); `total` bytes in all
  read = 2,     // asks for [remote, remote + total)
  atomic = 3,   // payload: operands of `total` bytes; answered like a write
  fetch = 4,    // payload: operands, none for atomic_read; answered by data
  compare = 5,  // payload: operands, then comparands; answered by data
  notify = 6,   // remote data for bytes that the sender moved itself; not answered
  ack = 16,     // the oldest `total` unanswered requests succeeded
  fail = 17,    // the oldest unanswered request failed with Errc `data`
  data = 18,    // part of the answer to the oldest unanswered request, which it completes when kLast is set;
                // maybe empty
  ping = 32,    // answered by pong
  pong = 33,
};

namespace frame_flag {
inline constexpr std::uint8_t kLast = 1;        // last part of its request or answer
inline constexpr std::uint8_t kRemoteData = 2;  // `data` goes to the target's completion queue
inline constexpr std::uint8_t kCommit = 4;      // answer once durable
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
  std::uint64_t reserved = 0;  // zero
};
static_assert(sizeof(FrameHeader) == 48);

inline constexpr std::uint32_t kMaxPayload = 4u << 20;  // of one frame; longer requests are sent in parts

// What one side may have outstanding; a peer that goes beyond is cut off, so that answers it does not fetch
// stay few.
inline constexpr std::size_t kMaxOutstanding = 8192;      // requests without an answer
inline constexpr std::size_t kMaxResultBytes = 8u << 20;  // their former values (fetch, compare)
inline constexpr std::size_t kMaxCopiedAnswer = 256;  // longer reads are answered from the region's memory

// The header in wire order; decode() checks type, flags and length and returns false for what no peer may
// send.
void encode(const FrameHeader& header, std::byte* out) noexcept;
bool decode(const std::byte* in, FrameHeader& header) noexcept;

}  // namespace fab
