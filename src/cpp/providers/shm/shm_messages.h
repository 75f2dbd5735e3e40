#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>

#include "fabric/frame.h"
#include "fabric/piece_cursor.h"

namespace fab::shm {

// Small messages beside a channel's ring, for the initiator's messages only: cells of two cache lines that
// carry header and bytes, so that the receiver sees an 8-byte message with one line. Messages that go through
// the ring instead carry their number, so that both together stay in the order of sending.
struct MessageCell {
  std::atomic<std::uint32_t> turn;  // 1 + the number of the message, written last
  std::uint8_t length;              // of `bytes`
  std::uint8_t flags;               // frame_flag
  std::uint16_t zero;
  std::uint64_t tag, data;
  std::uint32_t group;
  std::byte bytes[100];
};
static_assert(sizeof(MessageCell) == 128 && offsetof(MessageCell, bytes) == 28);
inline constexpr std::size_t kCells = 64;
inline constexpr std::size_t kCellBytes = sizeof(MessageCell::bytes);

struct MessageIndices {
  alignas(64) std::atomic<std::uint32_t> taken;   // number of the next message that the receiver wants
  alignas(64) std::atomic<std::uint32_t> polled;  // the receiver looks without being told
};

class MessageWriter {
 public:
  MessageWriter(MessageIndices& indices, MessageCell* cells) noexcept : indices_(indices), cells_(cells) {}

  // False: longer than a cell, or no cell is free.
  bool push(const FrameHeader& header, PieceCursor from) noexcept;
  // The number of a message that goes another way.
  std::uint32_t skip() noexcept { return next_++; }
  bool polled() const noexcept { return indices_.polled.load(std::memory_order_relaxed) != 0; }

  bool all_taken() const noexcept { return indices_.taken.load(std::memory_order_acquire) == next_; }

 private:
  bool room() noexcept;

  MessageIndices& indices_;
  MessageCell* const cells_;
  std::uint32_t next_ = 0;
  std::uint32_t taken_ = 0;  // as last seen
};

class MessageReader {
 public:
  MessageReader(MessageIndices& indices, MessageCell* cells) noexcept : indices_(indices), cells_(cells) {}

  bool ready() const noexcept {
    return cells_[next_ % kCells].turn.load(std::memory_order_acquire) == next_ + 1;
  }
  // Of a message that is ready(): its header, as if it had come as a frame, and its bytes (kCellBytes have
  // room). False: nonsense. The writer may write all the while: what counts is the copy.
  bool take(FrameHeader& header, std::byte* bytes) noexcept;
  std::uint32_t next() const noexcept { return next_; }
  void skip() noexcept { indices_.taken.store(++next_, std::memory_order_release); }
  void poll(bool on) noexcept { indices_.polled.store(on ? 1 : 0, std::memory_order_seq_cst); }

 private:
  MessageIndices& indices_;
  MessageCell* const cells_;
  std::uint32_t next_ = 0;
};

}  // namespace fab::shm
