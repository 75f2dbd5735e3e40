#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>

#include "fabric/messages/receive_queue.h"
#include "fabric/types/types.h"

namespace fab::shm {

// Small messages beside a channel's ring, for the initiator's messages only: cells of two cache lines that
// carry header and bytes, so that the receiver sees an 8-byte message with one line. Bytes that have no room
// there lie beside the cells. Messages that go through the ring instead carry their number, so that both
// together stay in the order of sending.
struct MessageCell {
  std::atomic<std::uint32_t> turn;  // 1 + the number of the message, written last
  std::uint16_t length;             // bytes
  std::uint8_t flags;               // frame_flag
  std::uint8_t zero;
  std::uint64_t tag, data;
  std::uint32_t group;
  std::uint32_t offset;  // of the bytes beside the cells, where they are more than kCellBytes
  std::byte bytes[96];
};
static_assert(sizeof(MessageCell) == 128 && offsetof(MessageCell, bytes) == 32);
inline constexpr std::size_t kCells = 256;
inline constexpr std::uint32_t kTellTaken = 32;  // cells that are given back at once, at least
inline constexpr std::size_t kCellBytes = sizeof(MessageCell::bytes);
inline constexpr std::size_t kBesideBytes = 256 * 1024;
inline constexpr std::size_t kLargestMessage = 8 * 1024;  // beyond it one copy by the receiver is faster

struct MessageIndices {
  alignas(64) std::atomic<std::uint32_t> taken;   // number of the next message that the receiver wants
  alignas(64) std::atomic<std::uint32_t> polled;  // the receiver looks without being told
};

// What both sides see.
struct MessageMemory {
  MessageIndices& indices;
  MessageCell* cells;  // kCells
  std::byte* beside;   // kBesideBytes
};

class MessageWriter {
 public:
  explicit MessageWriter(const MessageMemory& memory) noexcept : memory_(memory) {}

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
    return next_ - taken_ < kCells && end - free_ <= kBesideBytes;
  }
  void look_at_taken() noexcept;

  const MessageMemory memory_;
  std::uint32_t next_ = 0;
  std::uint32_t taken_ = 0;  // as last seen
  // Bytes beside the cells, counted from the beginning, used in order: up to where they are in use, up to
  // where they are free again, and what `end_` was after each message that was not taken yet.
  std::uint64_t end_ = 0, free_ = 0;
  std::uint64_t ends_[kCells] = {};
};

class MessageReader {
 public:
  explicit MessageReader(const MessageMemory& memory) noexcept : memory_(memory) {}

  bool ready() const noexcept {
    return memory_.cells[next_ % kCells].turn.load(std::memory_order_acquire) == next_ + 1;
  }
  // Of a message that is ready(): fills in what it says of itself, and returns its bytes, which stay until
  // skip(). Null: nonsense. The writer may write all the while: what counts is the copy.
  const std::byte* look(MessageHead& head) const noexcept;
  std::uint32_t next() const noexcept { return next_; }
  void skip() noexcept {
    if (++next_ % kTellTaken == 0) tell_taken();
  }
  // The writer may use the cells of all that was skipped.
  void tell_taken() noexcept { memory_.indices.taken.store(next_, std::memory_order_release); }
  void poll(bool on) noexcept { memory_.indices.polled.store(on ? 1 : 0, std::memory_order_seq_cst); }

 private:
  const MessageMemory memory_;
  std::uint32_t next_ = 0;
};

}  // namespace fab::shm
