#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/memory/address_range.h"

namespace fab {

// What memory is registered for. An entry of a cache serves only requests for exactly the same use.
struct MemoryUse {
  std::uint16_t rights = 0;  // bits of access::
  // The kind of memory, FI_HMEM_* of fi_mr(3): 0 is memory of the system.
  std::uint16_t interface = 0;
  std::string_view auth_key = {};
};

// Numbers the uses that a cache has met. The list only grows, so it is read without a lock.
class MemoryUses {
 public:
  std::optional<std::uint16_t> find(const MemoryUse& use) const noexcept {
    const std::uint32_t wanted = packed(use);
    const std::uint16_t count = count_.load(std::memory_order_acquire);
    for (std::uint16_t i = 0; i < count; ++i)
      if (packed_[i] == wanted && auth_keys_[i] == use.auth_key) return i;
    return std::nullopt;
  }
  // The caller holds the lock of the cache. Returns nothing if kMost uses are known already.
  std::optional<std::uint16_t> add(const MemoryUse& use) {
    if (const auto known = find(use)) return known;
    const std::uint16_t count = count_.load(std::memory_order_relaxed);
    if (count == kMost) return std::nullopt;
    packed_[count] = packed(use);
    auth_keys_[count] = use.auth_key;
    count_.store(static_cast<std::uint16_t>(count + 1), std::memory_order_release);
    return count;
  }

 private:
  static constexpr std::uint16_t kMost = 256;
  static constexpr std::uint32_t packed(const MemoryUse& use) noexcept {
    return std::uint32_t{use.rights} | std::uint32_t{use.interface} << 16;
  }
  std::atomic<std::uint16_t> count_{0};
  std::array<std::uint32_t, kMost> packed_{};
  std::array<std::string, kMost> auth_keys_;
};

// The half of an enrolled range that a hit needs. It is small because a hit among many entries costs little
// more than fetching it from memory.
//
// An entry may be used again for another range, but is never freed while its cache lives. A look-up without a
// lock may therefore meet an entry that is just becoming another one. So a lease is taken by compare-and-swap
// on `state`, which has a generation. The other words are read with acquire order; they are written with
// release order, while the entry is not live.
struct CacheEntry {
  static constexpr std::uint64_t kLeases = 0xffff'ffff;             // the number of leases
  static constexpr std::uint64_t kQueued = std::uint64_t{1} << 32;  // is in the queue for eviction
  static constexpr std::uint64_t kLive = std::uint64_t{1} << 33;    // look-ups find it
  static constexpr std::uint64_t kLink = std::uint64_t{1} << 34;    // leads to an entry with the same range
  static constexpr std::uint64_t kTaken = std::uint64_t{1} << 35;   // the place is not free
  static constexpr std::uint64_t kGeneration = std::uint64_t{1} << 36;

  std::atomic<std::uint64_t> state;
  // The tick at which the latest lease ended. In a link: the number of the entry that it leads to.
  std::atomic<std::uint64_t> last_use;
  std::atomic<std::uint64_t> start;
  std::atomic<std::uint64_t> length_and_use;  // bytes << 16 | number of the use

  std::uint64_t length() const noexcept { return length_and_use.load(std::memory_order_acquire) >> 16; }
  AddressRange range() const noexcept {
    return {.start = start.load(std::memory_order_acquire), .length = length()};
  }
  std::uint16_t use() const noexcept {
    return static_cast<std::uint16_t>(length_and_use.load(std::memory_order_acquire));
  }
  // To be called only while the entry is not live.
  void describe(AddressRange range, std::uint16_t use) noexcept {
    start.store(range.start, std::memory_order_release);
    length_and_use.store(range.length << 16 | use, std::memory_order_release);
  }
  bool serves(AddressRange wanted, std::uint16_t wanted_use) const noexcept {
    return use() == wanted_use && range().contains(wanted);
  }
  // Takes a lease if the entry is live and serves. Returns the state before the lease, or 0 without one.
  std::uint64_t take(AddressRange wanted, std::uint16_t wanted_use) noexcept {
    std::uint64_t seen = state.load(std::memory_order_acquire);
    do {
      if ((seen & (kLive | kLink)) != kLive || !serves(wanted, wanted_use)) return 0;
    } while (
        !state.compare_exchange_weak(seen, seen + 1, std::memory_order_acq_rel, std::memory_order_acquire));
    return seen;
  }
};
static_assert(sizeof(CacheEntry) == 32, "two to a cache line");

// The half of an enrolled range that a hit does not need. The cache's mutex guards it; whoever has a lease
// may read `handle` without that.
struct CacheEntryDetails {
  void* handle;              // as the enroller returned it
  std::uint64_t queued_use;  // last_use when the entry was queued
  std::uint32_t link;        // number of the entry's link, for CacheTable only
  std::uint32_t next_gone;   // the next one in RegistrationCache::Gone
};

}  // namespace fab
