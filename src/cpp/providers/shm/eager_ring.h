#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>

#include "fabric/messages/receive_queue.h"
#include "fabric/types/types.h"

namespace fab::shm {

// The eager ring of a channel carries small messages of the initiator ahead of the frames. A cell is two
// cache lines with header and bytes, so that the receiver reads an 8-byte message from one line. Bytes that
// do not fit into a cell are in the payload memory. A message that goes as a frame instead has a number too,
// so that the receiver takes both kinds in the order in which they were sent.
struct EagerCell {
  std::atomic<std::uint32_t> turn;  // 1 + the number of the message, written last
  std::uint16_t length;             // bytes
  std::uint8_t flags;               // frame_flag
  std::uint8_t zero;
  std::uint64_t tag, data;
  std::uint32_t group;
  std::uint32_t offset;  // in the payload memory, if there are more bytes than kCellBytes
  std::byte bytes[96];
};
static_assert(sizeof(EagerCell) == 128 && offsetof(EagerCell, bytes) == 32);
inline constexpr std::size_t kCells = 256;
inline constexpr std::uint32_t kTellTaken = 32;  // the reader gives cells back after so many messages
inline constexpr std::size_t kCellBytes = sizeof(EagerCell::bytes);
inline constexpr std::size_t kPayloadBytes = 256 * 1024;
inline constexpr std::size_t kLargestMessage = 8 * 1024;  // for more, one copy by the receiver is faster

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

  // False: the message is longer than kLargestMessage, or there is no room.
  bool push(const Transfer& transfer) noexcept;
  // Gives a number to a message that goes as a frame.
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
  // The payload memory is used in order. Positions in it are counted from the first message on; modulo
  // kPayloadBytes they are offsets. Bytes from `free_` to `end_` are in use. `ends_` keeps what `end_` was
  // after each message that is not taken yet.
  std::uint64_t end_ = 0, free_ = 0;
  std::uint64_t ends_[kCells] = {};
};

class EagerReader {
 public:
  explicit EagerReader(const EagerMemory& memory) noexcept : memory_(memory) {}

  bool ready() const noexcept {
    return memory_.cells[next_ % kCells].turn.load(std::memory_order_acquire) == next_ + 1;
  }
  // Fills in the head of the message that is ready(), and returns its bytes, which stay until skip(). Null:
  // no writer may send such a message. The writer can change the cell at any time, so only `head` counts,
  // which is a copy.
  const std::byte* look(MessageHead& head) const noexcept;
  std::uint32_t next() const noexcept { return next_; }
  void skip() noexcept {
    if (++next_ % kTellTaken == 0) tell_taken();
  }
  // Gives the cells of all skipped messages back to the writer.
  void tell_taken() noexcept { memory_.indices.taken.store(next_, std::memory_order_release); }
  void poll(bool on) noexcept { memory_.indices.polled.store(on ? 1 : 0, std::memory_order_seq_cst); }

 private:
  const EagerMemory memory_;
  std::uint32_t next_ = 0;
};

}  // namespace fab::shm
