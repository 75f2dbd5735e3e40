#pragma once

#include <algorithm>
#include <cstddef>
#include <memory>
#include <span>

#include "base/lifetime.h"
#include "base/queues/ring_queue.h"

namespace fab {

// A queue of bytes in chunks that do not move. Bytes are appended, then taken for sending, then released,
// each in order. What one call appends is contiguous.
class ByteQueue {
 public:
  std::byte* append(std::size_t size) {
    if (chunks_.empty() || chunks_.back().size - chunks_.back().filled < size) add_chunk(size);
    Chunk& chunk = chunks_.back();
    std::byte* at = chunk.data.get() + chunk.filled;
    chunk.filled += size;
    size_ += size;
    return at;
  }
  // Takes back the last `size` bytes of those that the last call of append() has appended.
  void unappend(std::size_t size) noexcept {
    chunks_.back().filled -= size;
    size_ -= size;
  }
  // Takes the next contiguous bytes, at most `limit`.
  std::span<const std::byte> take(std::size_t limit) noexcept FAB_LIFETIME_BOUND {
    while (taking_ + 1 < chunks_.size() && chunks_[taking_].taken == chunks_[taking_].filled) ++taking_;
    Chunk& chunk = chunks_[taking_];
    const std::size_t size = std::min(limit, chunk.filled - chunk.taken);
    const std::span<const std::byte> bytes(chunk.data.get() + chunk.taken, size);
    chunk.taken += size;
    return bytes;
  }
  void release(std::size_t size) noexcept {
    size_ -= size;
    while (size) {
      Chunk& chunk = chunks_.front();
      const std::size_t part = std::min(size, chunk.filled - chunk.released);
      chunk.released += part;
      size -= part;
      if (chunk.released < chunk.filled) return;
      if (chunks_.size() == 1 && chunk.size == kChunk) {  // start over in bytes that are in the cache
        chunk.filled = chunk.taken = chunk.released = 0;
        return;
      }
      chunks_.pop_front();
      if (taking_) --taking_;
    }
  }
  std::size_t size() const noexcept { return size_; }  // appended and not released
  void clear() noexcept {
    chunks_.clear();
    taking_ = size_ = 0;
  }

 private:
  static constexpr std::size_t kChunk = 64 * 1024;
  struct Chunk {
    std::unique_ptr<std::byte[]> data;
    std::size_t size = 0, filled = 0, taken = 0, released = 0;
  };
  void add_chunk(std::size_t least) {
    const std::size_t size = std::max(least, kChunk);
    chunks_.push_back({.data = std::make_unique_for_overwrite<std::byte[]>(size), .size = size});
  }
  RingQueue<Chunk> chunks_;
  std::size_t taking_ = 0;  // index of the chunk that take() stands in
  std::size_t size_ = 0;
};

}  // namespace fab
