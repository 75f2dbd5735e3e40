#pragma once

#include <array>
#include <atomic>
#include <bit>
#include <cstdint>
#include <set>
#include <tuple>

#include "base/memory/mapping.h"
#include "fabric/registration/cache_entry.h"

namespace fab {

// The entries of a cache, and the search for a live one that holds a given range. The search takes no lock,
// its time does not grow with the number of entries, and it waits for far memory about once.
//
// An entry's size class is the smallest power of two that it fits in, so it lies in one or two blocks of that
// size. A hash table with open addressing has the entry under the first of these blocks, and a link to it
// under the second. A look-up asks once for each size class in use that is large enough. It never finds a
// wrong entry, but it may miss one while others come and go. Whoever finds nothing therefore looks again
// under the owner's lock, which all changes need.
//
// An entry keeps its place while it is in use. When a table is half full, a larger one takes over, and the
// owner moves idle entries into it. Look-ups search the older tables for as long as anything is left in them.
class CacheTable {
 public:
  using Number = std::uint32_t;  // a place: the table, and the place in that table

  CacheTable() { open_table(0); }
  CacheTable(const CacheTable&) = delete;
  CacheTable& operator=(const CacheTable&) = delete;

  struct Taken {
    CacheEntry* entry = nullptr;
    Number number = 0;
    std::uint64_t before = 0;  // the entry's state before the lease
  };
  // Finds an entry that holds `range` (of 1 to 2**47 bytes) and is for `use`, and takes a lease on it.
  Taken take(AddressRange range, std::uint16_t use) const noexcept;
  CacheEntry& entry(Number number) const noexcept { return tables_[level_of(number)][place_of(number)]; }
  CacheEntryDetails& details(Number number) const noexcept {
    return reinterpret_cast<CacheEntryDetails*>(tables_[level_of(number)].details.data())[place_of(number)];
  }
  unsigned newest() const noexcept { return newest_.load(std::memory_order_relaxed); }
  bool is_newest(Number number) const noexcept { return level_of(number) == newest(); }

  // The functions below need the owner's lock.

  // Makes an entry that has one lease and is not live. Throws std::bad_alloc or std::system_error when memory
  // runs out.
  Number allocate(AddressRange range, std::uint16_t use);
  // After insert() look-ups find the entry as long as it is live; erase() ends that. The caller sets and
  // clears CacheEntry::kLive.
  // insert() throws std::bad_alloc, and changes nothing then.
  void insert(Number number);
  void erase(Number number) noexcept;
  // Ends an entry that is neither in the table nor leased.
  void free(Number number) noexcept { unclaim(number); }
  // Puts `to`, which is not in the table, in the place of `from`, which is in it and is free afterwards. They
  // have the same range and use.
  void replace(Number from, Number to) noexcept;
  // Calls `visit(Number)` for each entry in the table that overlaps `range`. It may put in and take out
  // entries.
  template <class Visit>
  void visit(AddressRange range, const Visit& visit) const {
    for (std::uint64_t classes = classes_.load(std::memory_order_relaxed); classes; classes &= classes - 1) {
      const int k = std::countr_zero(classes);
      const std::uint64_t longest = std::uint64_t{1} << k;
      Key at{k, range.start < longest ? 0 : range.start - longest, 0};
      for (auto next = in_order_.lower_bound(at); next != in_order_.end(); next = in_order_.upper_bound(at)) {
        at = *next;
        const auto [size_class, start, number] = at;
        if (size_class != k || start >= range.end()) break;
        if (entry(number).range().overlaps(range)) visit(number);
      }
    }
  }

 private:
  using Key = std::tuple<int, std::uint64_t, Number>;  // size class, start
  static constexpr int kSmallest = 6;                  // the smallest size class: ranges of up to 2**6 bytes
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

  // A look-up ends at the first place with state 0: nothing was ever put behind such a place.
  struct Table {
    Mapping entries, details;
    std::uint32_t mask = 0;
    // log2 of the bytes from place to place. Large tables put two entries on a cache line, because they do
    // not fit into a nearby cache. Small tables do not: two threads would often share a line there.
    std::uint32_t stride = 6;
    std::uint32_t taken = 0;    // places of entries and links
    std::uint32_t touched = 0;  // places that are taken or were, whose state is not 0
    CacheEntry& operator[](std::uint32_t i) const noexcept {
      return *reinterpret_cast<CacheEntry*>(entries.data() + (std::size_t{i & mask} << stride));
    }
  };
  // Level l has 2**(kFewestBits + l) places.
  static constexpr unsigned kFewestBits = 10, kPlaceBits = 26, kLevels = kPlaceBits - kFewestBits + 1;
  static constexpr unsigned kFirstDense = 6;
  static constexpr Number kNoLink = ~Number{0};
  static constexpr std::uint64_t kFormer = CacheEntry::kQueued;  // the state of a place that was taken before
  static unsigned level_of(Number number) noexcept { return number >> kPlaceBits; }
  static std::uint32_t place_of(Number number) noexcept { return number & ((1u << kPlaceBits) - 1); }

  Number number_of(const Table& table, std::uint32_t i) const noexcept {
    return static_cast<Number>(&table - tables_.data()) << kPlaceBits | (i & table.mask);
  }

  bool search(const Table& table, std::uint32_t hash, AddressRange range, std::uint16_t use,
              Taken& taken) const noexcept;
  void open_table(unsigned level);
  void link_up(Number number) noexcept;
  Number claim(std::uint32_t hash) noexcept;
  void unclaim(Number number) noexcept;

  std::atomic<unsigned> newest_{0};
  std::atomic<std::uint32_t> older_{0};    // bit l: something is left in the table of level l
  std::atomic<std::uint64_t> classes_{0};  // bit k: there are entries of size class k
  std::array<Table, kLevels> tables_;

  std::uint64_t generation_ = 0;
  std::array<std::uint32_t, 64> class_sizes_{};
  std::set<Key> in_order_;
};

}  // namespace fab
