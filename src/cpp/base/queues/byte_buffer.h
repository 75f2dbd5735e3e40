#pragma once

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <memory>
#include <span>

namespace fab {

// A queue of bytes that lie in one piece, and move when there is no room behind them. Its memory grows with
// what it holds, and what was let go of is reused. For one thread.
class ByteBuffer final {
 public:
  std::span<std::byte> bytes() noexcept { return {memory_.get() + first_, size()}; }
  std::size_t size() const noexcept { return end_ - first_; }

  // Room behind the bytes, for at least so many more; valid until the next call, as all pointers into it are.
  std::span<std::byte> room(std::size_t least) {  // throws std::bad_alloc
    if (first_ == end_) first_ = end_ = 0;
    if (capacity_ - end_ < least) make_room(least);
    return {memory_.get() + end_, capacity_ - end_};
  }
  void add(std::size_t count) noexcept { end_ += count; }  // of the room, which were written
  void append(const void* bytes, std::size_t count) {      // throws std::bad_alloc
    std::memcpy(room(count).data(), bytes, count);
    add(count);
  }
  void let_go(std::size_t count) noexcept { first_ += count; }  // of the first bytes

 private:
  void make_room(std::size_t least) {
    const std::size_t count = size();
    // Each byte that is moved stands for one that was let go of, so a byte is moved once on average.
    if (first_ >= count && capacity_ - count >= least) {
      std::memmove(memory_.get(), memory_.get() + first_, count);
    } else {
      const std::size_t capacity = std::max(2 * count, count + least);
      auto grown = std::make_unique_for_overwrite<std::byte[]>(capacity);
      std::copy_n(memory_.get() + first_, count, grown.get());
      memory_ = std::move(grown);
      capacity_ = capacity;
    }
    first_ = 0;
    end_ = count;
  }

  std::unique_ptr<std::byte[]> memory_;
  std::size_t capacity_ = 0, first_ = 0, end_ = 0;
};

}  // namespace fab
