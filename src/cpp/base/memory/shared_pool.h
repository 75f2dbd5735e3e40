#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "base/locks/fork_gate.h"
#include "base/locks/mutex.h"
#include "base/memory/shared_memory.h"

namespace fab {

// Memory that peers on the node map, given out in pieces of any size: what malloc() is to a process, for
// arrays that are to be reached by peers. Any thread may call it.
//
// Pieces lie in few large files, because each file costs a descriptor. What the pool knows of them is in
// memory of this process, where no peer writes. Small pieces are blocks of one size each, cut from slabs; a
// slab is not given back. Others are ranges of whole pages; of the ranges that are free, all but a few have
// no memory.
//
// In a child of fork() the files are the parent's as well. There the pool begins anew; pieces from before
// stay where they are, as memory that both processes see.
class SharedPool final {
 public:
  static constexpr std::size_t kAlignment = 64;  // of every piece; pieces above kLargestBlock: a page

  SharedPool() noexcept;
  SharedPool(const SharedPool&) = delete;
  SharedPool& operator=(const SharedPool&) = delete;

  // Null where memory or descriptors lack. `zeroed`: all bytes of the piece are zero.
  void* allocate(std::size_t length, bool zeroed = false) noexcept;
  // Moves the piece if it has to; null and without effect where memory lacks. A null piece is allocated.
  void* reallocate(void* piece, std::size_t length) noexcept;
  void free(void* piece) noexcept;  // null: does nothing
  // The memory in which these bytes lie; null if they are not the pool's.
  std::shared_ptr<SharedMemory> holder(const void* address, std::size_t length) const noexcept;

  static constexpr std::size_t kLargestBlock = 16 * 1024;
  static constexpr std::size_t kSlab = 256 * 1024;
  static constexpr std::size_t kFile = std::size_t{256} << 20;  // the least that a file has
  // Free bytes that keep their memory for the next arrays: a page that has to be made first costs more than
  // the use of a small array.
  static constexpr std::size_t kKept = std::size_t{64} << 20;

 private:
  struct Range {
    std::size_t length = 0;
    bool written = false;  // bytes of it may be other than zero
    std::size_t kept = 0;  // about so many of its bytes have memory, while it is free
  };
  using Ranges = std::map<std::byte*, Range>;                         // by their beginning
  using Files = std::map<std::byte*, std::shared_ptr<SharedMemory>>;  // by their beginning
  using Slabs = std::map<std::byte*, std::size_t>;                    // by their beginning: class of blocks
  static constexpr std::size_t kClasses = 9;                          // blocks of 64 bytes to kLargestBlock

  std::byte* take_block(std::size_t size_class) FAB_REQUIRES(mutex_);
  Ranges::const_iterator take_range(std::size_t length) FAB_REQUIRES(mutex_);
  Ranges::iterator grow(std::size_t length) FAB_REQUIRES(mutex_);
  void give_back(Ranges::node_type range) noexcept FAB_REQUIRES(mutex_);
  void drop_if_empty(Ranges::iterator range) noexcept FAB_REQUIRES(mutex_);
  std::size_t length_of(std::byte* piece) const noexcept FAB_REQUIRES(mutex_);
  std::shared_ptr<SharedMemory> file_of(const std::byte* begin, std::size_t length) const noexcept
      FAB_REQUIRES(mutex_);
  void leave_to_parent() noexcept FAB_REQUIRES(mutex_);

  // The rest is guarded by it; taken with the fork gate held, so that no child finds it locked.
  mutable Mutex mutex_ FAB_ACQUIRED_AFTER(fork_gate);
  std::uint32_t generation_ FAB_GUARDED_BY(mutex_);
  Files files_ FAB_GUARDED_BY(mutex_);
  Ranges free_ FAB_GUARDED_BY(mutex_);   // neighbours of one file are one range
  Ranges taken_ FAB_GUARDED_BY(mutex_);  // slabs among them
  Slabs slabs_ FAB_GUARDED_BY(mutex_);
  std::array<std::vector<std::byte*>, kClasses> blocks_ FAB_GUARDED_BY(mutex_);  // that are free
  std::array<std::size_t, kClasses> blocks_made_ FAB_GUARDED_BY(mutex_){};
  std::size_t kept_ FAB_GUARDED_BY(mutex_) = 0;  // the sum of those of free_

  // What belongs to the processes that this one was forked from.
  Files former_files_ FAB_GUARDED_BY(mutex_);
  Ranges former_taken_ FAB_GUARDED_BY(mutex_);
  Slabs former_slabs_ FAB_GUARDED_BY(mutex_);
};

// The pool of this process, which is never destroyed: arrays may outlive everything else.
SharedPool& shared_pool();

}  // namespace fab
