#pragma once

#include <array>
#include <atomic>
#include <bit>
#include <cstdint>
#include <memory>
#include <set>
#include <tuple>
#include <vector>

#include "base/mapping.h"
#include "fabric/cache_entry.h"

namespace fab {

// Finds the live entry that holds a given range, without a lock, in a time that does not grow with their
// number.
//
// An entry's size class is the smallest power of two that it fits in, so it lies in one or two blocks of that
// size; a hash table holds it under each of them. A look-up asks once for each size class in use that is large
// enough. It may miss an entry that is being moved, never find a wrong one: whoever finds nothing looks again
// under the lock of the owner, which all changes need as well.
class CacheTable {
 public:
  CacheTable();

  struct Taken {
    CacheEntry* entry = nullptr;
    std::uint64_t before = 0;  // its state before the lease
  };
  // An entry that holds `range` and is for `use`, with one lease more; none: entry is null.
  Taken take(AddressRange range, const MemoryUse& use) const noexcept;

  // The rest needs the owner's lock. Entries outside of the table are neither live nor leased.
  CacheEntry& allocate();
  void free(CacheEntry& entry) { free_.push_back(entry.number); }
  void insert(const CacheEntry& entry);
  void erase(const CacheEntry& entry);
  std::vector<CacheEntry*> overlapping(AddressRange range) const;

 private:
  static constexpr int kSmallest = 6;  // size class of the shortest ranges: 2**6 bytes
  static int size_class(std::uint64_t length) noexcept {
    const int bits = static_cast<int>(std::bit_width(length - 1));
    return bits < kSmallest ? kSmallest : bits;
  }
  static std::uint32_t hash(int size_class, std::uint64_t block, std::uint32_t use) noexcept {
    std::uint64_t x = (block << 6 | static_cast<unsigned>(size_class)) ^ std::uint64_t{use} << 40;
    x = (x ^ x >> 32) * 0x9e37'79b9'7f4a'7c15;
    x = (x ^ x >> 29) * 0xbf58'476d'1ce4'e5b9;
    return static_cast<std::uint32_t>(x >> 32);
  }
  template <class Each>
  static void for_each_block(const CacheEntry& entry, const Each& each);

  // Open addressing: hash << 32 | number of the entry + 1. Never more than half full.
  struct Slots {
    Mapping memory;
    std::uint64_t mask = 0;
    std::atomic<std::uint64_t>& operator[](std::uint64_t i) const noexcept {
      return reinterpret_cast<std::atomic<std::uint64_t>*>(memory.data())[i & mask];
    }
  };
  static void put(const Slots& slots, std::uint32_t hash, std::uint32_t number) noexcept;
  static void remove(const Slots& slots, std::uint32_t hash, std::uint32_t number) noexcept;
  Slots make_slots(std::uint64_t count) const;

  // Chunk c holds kFirstChunk << c entries.
  static constexpr std::uint32_t kFirstChunk = 1024;
  CacheEntry& at(std::uint32_t number) const noexcept {
    const std::uint32_t from_first = number + kFirstChunk;
    const auto chunk = static_cast<unsigned>(std::bit_width(from_first / kFirstChunk)) - 1;
    return reinterpret_cast<CacheEntry*>(chunks_[chunk].data())[from_first - (kFirstChunk << chunk)];
  }

  std::atomic<const Slots*> slots_;
  std::atomic<std::uint64_t> classes_{0};  // bit k: there are entries of size class k
  std::array<Mapping, 22> chunks_;
  std::vector<std::unique_ptr<const Slots>> all_slots_;  // former ones stay, for look-ups still in them
  std::uint64_t slots_used_ = 0;
  std::array<std::uint32_t, 64> class_sizes_{};
  std::set<std::tuple<int, std::uint64_t, std::uint32_t>> in_order_;  // size class, start, number
  std::vector<std::uint32_t> free_;
  std::uint32_t allocated_ = 0;
};

}  // namespace fab
