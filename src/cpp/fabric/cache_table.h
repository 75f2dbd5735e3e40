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

// The entries of a cache, and the search for the live one that holds a given range: without a lock, in a time
// that does not grow with their number.
//
// An entry's size class is the smallest power of two that it fits in, so it lies in one or two blocks of that
// size; a hash table holds it under each of them. A look-up asks once for each size class in use that is large
// enough. It may miss an entry while others are inserted or erased, never find a wrong one: whoever finds
// nothing looks again under the lock of the owner, which all changes need.
class CacheTable {
 public:
  using Number = std::uint32_t;  // of an entry

  CacheTable() { rebuild(kFewestSlots); }
  CacheTable(const CacheTable&) = delete;
  CacheTable& operator=(const CacheTable&) = delete;

  struct Taken {
    CacheEntry* entry = nullptr;
    Number number = 0;
    std::uint64_t before = 0;  // its state before the lease
  };
  // An entry that holds `range` (of 1 to 2**47 bytes) and is for `use`, with one lease more; or none.
  Taken take(AddressRange range, std::uint16_t use) const noexcept;
  CacheEntry& entry(Number number) const noexcept {
    const Place at = place(number);
    return reinterpret_cast<CacheEntry*>(entries_[at.chunk].data())[at.offset];
  }
  CacheEntryDetails& details(Number number) const noexcept {
    const Place at = place(number);
    return reinterpret_cast<CacheEntryDetails*>(details_[at.chunk].data())[at.offset];
  }

  // The rest needs the owner's lock.
  Number allocate();
  void free(Number number) { free_.push_back(number); }
  void insert(Number number);
  void erase(Number number);
  std::vector<Number> overlapping(AddressRange range) const;

 private:
  static constexpr int kSmallest = 6;  // size class of the shortest ranges: 2**6 bytes
  static int size_class(std::uint64_t length) noexcept {
    const auto bits = static_cast<int>(std::bit_width(length - 1));
    return bits < kSmallest ? kSmallest : bits;
  }
  static std::uint32_t hash(int size_class, std::uint64_t block, std::uint16_t use) noexcept {
    std::uint64_t x = (block << 6 | static_cast<unsigned>(size_class)) ^ std::uint64_t{use} << 48;
    x = (x ^ x >> 32) * 0x9e37'79b9'7f4a'7c15;
    x = (x ^ x >> 29) * 0xbf58'476d'1ce4'e5b9;
    return static_cast<std::uint32_t>(x >> 32);
  }
  template <class Each>
  void for_each_block(Number number, const Each& each) const;

  // Open addressing. A slot has the upper 6 bits of the hash and the number + 1 of the entry; 0 is free. A
  // quarter of the slots at least is free, one of a former entry is not.
  struct Slots {
    Mapping memory;
    std::uint64_t mask = 0;
    std::atomic<std::uint32_t>& operator[](std::uint64_t i) const noexcept {
      return reinterpret_cast<std::atomic<std::uint32_t>*>(memory.data())[i & mask];
    }
  };
  static constexpr std::uint64_t kFewestSlots = 1024;
  static constexpr unsigned kNumberBits = 26;
  static constexpr std::uint32_t kFormer = ~std::uint32_t{0};
  static constexpr std::uint32_t kNumberMask = (std::uint32_t{1} << kNumberBits) - 1;
  static constexpr Number kMostEntries = kNumberMask - 1;
  static std::uint32_t slot_of(std::uint32_t hash, Number number) noexcept {
    return (hash >> kNumberBits << kNumberBits) | (number + 1);
  }
  void rebuild(std::uint64_t slots);
  void put(const Slots& slots, Number number) noexcept;

  // Chunk c has kFirstChunk << c entries. Entries made one after the other lie on different cache lines.
  struct Place {
    unsigned chunk;
    std::uint32_t offset;
  };
  static constexpr std::uint32_t kFirstChunk = 1024;
  static Place place(Number number) noexcept {
    const std::uint32_t from_first = number + kFirstChunk;
    const auto chunk = static_cast<unsigned>(std::bit_width(from_first / kFirstChunk)) - 1;
    const std::uint32_t offset = from_first - (kFirstChunk << chunk);
    return {.chunk = chunk,
            .offset = (offset & ~(kFirstChunk - 1)) | (offset << 1 & (kFirstChunk - 2)) |
                      (offset / (kFirstChunk / 2) & 1)};
  }

  std::atomic<const Slots*> slots_{nullptr};
  std::atomic<std::uint64_t> classes_{0};  // bit k: there are entries of size class k
  std::array<Mapping, 17> entries_, details_;

  std::vector<std::unique_ptr<const Slots>> all_slots_;  // smaller ones stay, for look-ups still in them
  std::uint64_t slots_taken_ = 0, slots_former_ = 0;
  std::array<std::uint32_t, 64> class_sizes_{};
  std::set<std::tuple<int, std::uint64_t, Number>> in_order_;  // size class, start, number
  std::vector<Number> free_;
  Number allocated_ = 0;
};

}  // namespace fab
