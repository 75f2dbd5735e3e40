#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>

#include "fabric/messages/receive_queue.h"
#include "fabric/types/types.h"

namespace fab::shm {

// The eager ring of a channel: small messages of the initiator, which go ahead of the frames. Its cells are
// two cache lines with header and bytes, so that the receiver sees an 8-byte message with one line. The bytes
// of longer messages have memory of their own. A message that goes as a frame instead carries its number, so
// that the receiver takes both kinds in the order in which they were sent.
struct EagerCell {
  std::atomic<std::uint32_t> turn;  // 1 + the number of the message, written last
  std::uint16_t length;             // bytes
  std::uint8_t flags;               // frame_flag
  std::uint8_t zero;
  std::uint64_t tag, data;
  std::uint32_t group;
  std::uint32_t offset;  // in the payload memory, of more bytes than kCellBytes
  std::byte bytes[96];
};
static_assert(sizeof(EagerCell) == 128 && offsetof(EagerCell, bytes) == 32);
inline constexpr std::size_t kCells = 256;
inline constexpr std::uint32_t kTellTaken = 32;  // cells that are given back at once, at least
inline constexpr std::size_t kCellBytes = sizeof(EagerCell::bytes);
inline constexpr std::size_t kPayloadBytes = 256 * 1024;
inline constexpr std::size_t kLargestMessage = 8 * 1024;  // beyond it one copy by the receiver is faster

struct EagerIndices {
  alignas(64) std::atomic<std::uint32_t> taken;   // number of the next message that the receiver wants
  alignas(64) std::atomic<std::uint32_t> polled;  // the receiver looks without being told
};

// What both sides see.
struct EagerMemory {
  EagerIndices& indices;
  EagerCell* cells;     // kCells
  std::byte* payloads;  // kPayloadBytes
};

class EagerWriter {
 public:
  explicit EagerWriter(const EagerMemory& memory) noexcept : memory_(memory) {}

  // False: longer than kLargestMessage, or there is no room.
  bool push(const Transfer& transfer) noexcept;
  // The number of a message that goes another way.
  std::uint32_t skip() noexcept {
    ends_[next_ % kCells] = end_;
    return next_++;
  }
  bool polled() const noexcept { return memory_.indices.polled.load(std::memory_order_relaxed) != 0; }
  bool all_taken() const noexcept { return memory_.indices.taken.load(std::memory_order_acquire) == next_; }

 private:
  bool fits(std::uint64_t end) const noexcept {
    return next_ - taken_ < kCells && end - free_ <= kPayloadBytes;
  }
  void look_at_taken() noexcept;

  const EagerMemory memory_;
  std::uint32_t next_ = 0;
  std::uint32_t taken_ = 0;  // as last seen
  // The payload memory is used in order, and its bytes are counted from the beginning. In use are those from
  // `free_` to `end_`; `ends_` is what `end_` was after each message that was not taken yet.
  std::uint64_t end_ = 0, free_ = 0;
  std::uint64_t ends_[kCells] = {};
};

class EagerReader {
 public:
  explicit EagerReader(const EagerMemory& memory) noexcept : memory_(memory) {}

  bool ready() const noexcept {
    return memory_.cells[next_ % kCells].turn.load(std::memory_order_acquire) == next_ + 1;
  }
  // Of a message that is ready(): fills in what it says of itself, and returns its bytes, which stay until
  // skip(). Null: no writer may say that. The writer may write all the while, so what counts is the copy.
  const std::byte* look(MessageHead& head) const noexcept;
  std::uint32_t next() const noexcept { return next_; }
  void skip() noexcept {
    if (++next_ % kTellTaken == 0) tell_taken();
  }
  // The writer may use the cells of all that was skipped.
  void tell_taken() noexcept { memory_.indices.taken.store(next_, std::memory_order_release); }
  void poll(bool on) noexcept { memory_.indices.polled.store(on ? 1 : 0, std::memory_order_seq_cst); }

 private:
  const EagerMemory memory_;
  std::uint32_t next_ = 0;
};

}  // namespace fab::shm
