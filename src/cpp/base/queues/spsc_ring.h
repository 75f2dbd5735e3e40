#pragma once

#include <sys/uio.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>

namespace fab {

// A stream of bytes through shared memory, with one writer and one reader, each in any process.
//
// Memory order. `written` and `read` count bytes since the start and only grow; each has one storing side.
// The writer copies bytes in, then stores `written` with release; the reader loads it with acquire, so it
// sees the bytes. The reader copies bytes out, then stores `read`; the writer loads it with acquire, so it
// overwrites only what was read. A writer that goes to sleep on a full ring raises `writer_waits` and then
// looks at `read` once more, while the reader stores `read` and then looks at `writer_waits`: these four are
// sequentially consistent, so one of the two sees the other.
//
// Trust. Each side keeps its own index in private memory and checks what it loads of the other's index, which
// may not go back, nor past what is possible. A ring that breaks this is broken() for good and moves nothing
// more.
struct RingIndices {
  alignas(64) std::atomic<std::uint64_t> written;
  alignas(64) std::atomic<std::uint64_t> read;
  alignas(64) std::atomic<std::uint32_t> writer_waits;
};

class RingWriter {
 public:
  // The size of `bytes` is a power of two. Both indices are zero.
  RingWriter(RingIndices& indices, std::span<std::byte> bytes) noexcept : indices_(indices), bytes_(bytes) {}

  // Puts in what fits of the pieces, in order, and publishes it; returns how many bytes.
  std::size_t write(const iovec* pieces, std::size_t count) noexcept;
  // True if there is room for so many bytes. Otherwise the reader is asked to tell when it has read some.
  bool wait_for_room(std::size_t bytes = 1) noexcept;
  bool broken() const noexcept { return broken_; }
  std::uint64_t seen_read() const noexcept { return read_; }  // how far the reader was when last looked at
  bool all_read() const noexcept { return indices_.read.load(std::memory_order_acquire) == written_; }

 private:
  std::size_t room() noexcept;

  RingIndices& indices_;
  std::span<std::byte> bytes_;
  std::uint64_t written_ = 0, read_ = 0;
  bool broken_ = false;
};

class RingReader {
 public:
  RingReader(RingIndices& indices, std::span<std::byte> bytes) noexcept : indices_(indices), bytes_(bytes) {}

  bool readable() noexcept { return available() != 0; }
  // Places in the stream: how far the writer has come, and this reader.
  std::uint64_t seen_written() noexcept { return available(), written_; }
  std::uint64_t position() const noexcept { return read_; }
  // Takes what is there into the places, in order; returns how many bytes.
  std::size_t read(const iovec* places, std::size_t count) noexcept;
  // After read(): true if the writer asked to be told of room.
  bool writer_waits() noexcept;
  bool broken() const noexcept { return broken_; }

 private:
  std::size_t available() noexcept;

  RingIndices& indices_;
  std::span<std::byte> bytes_;
  std::uint64_t written_ = 0, read_ = 0;
  bool broken_ = false;
};

}  // namespace fab
