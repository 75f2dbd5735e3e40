#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/address_range.h"

namespace fab {

// What memory is registered for: entries of a cache serve those who ask for exactly the same.
struct MemoryUse {
  std::uint16_t rights = 0;  // access::
  std::uint16_t interface = 0;  // the kind of memory as in fi_mr(3), FI_HMEM_*: 0 is the memory of the system
  std::string_view auth_key;
};

// One enrolled range. Entries are used again but never freed while their cache lives, so a look-up without a
// lock may meet one that is just becoming another: whoever takes a lease does it by compare-and-swap on
// `state`, which holds a generation, and every other word is read with acquire order and written, before the
// state says `live`, with release order.
struct alignas(64) CacheEntry {
  static constexpr std::uint64_t kLeases = 0xffff'ffff;          // how many are using it
  static constexpr std::uint64_t kQueued = std::uint64_t{1} << 32;  // stands in the queue for eviction
  static constexpr std::uint64_t kLive = std::uint64_t{1} << 33;    // look-ups find it
  static constexpr std::uint64_t kGeneration = std::uint64_t{1} << 34;

  std::atomic<std::uint64_t> state;
  std::atomic<std::uint64_t> last_use;  // in ticks, of the latest lease that ended
  std::atomic<std::uint64_t> start, length;
  std::atomic<const std::string*> auth_key;  // one of the cache's collection, which only grows; null: none
  std::atomic<std::uint32_t> use;
  std::uint32_t number;        // its place in the pool
  std::uint64_t queued_use;    // last_use when it was queued; guarded by the cache's mutex
  void* handle;                // of the enroller; does not change while there is a lease

  AddressRange range() const noexcept {
    return {.start = start.load(std::memory_order_acquire), .length = length.load(std::memory_order_acquire)};
  }
  static constexpr std::uint32_t packed(const MemoryUse& wanted) noexcept {
    return std::uint32_t{wanted.rights} | std::uint32_t{wanted.interface} << 16;
  }
  bool is_for(const MemoryUse& wanted) const noexcept {
    if (use.load(std::memory_order_acquire) != packed(wanted)) return false;
    const std::string* key = auth_key.load(std::memory_order_acquire);
    return key ? *key == wanted.auth_key : wanted.auth_key.empty();
  }
  // Takes a lease if the entry is live and serves; returns the state before that, or 0.
  std::uint64_t take(AddressRange wanted, const MemoryUse& wanted_use) noexcept {
    std::uint64_t seen = state.load(std::memory_order_acquire);
    do {
      if (!(seen & kLive) || !range().contains(wanted) || !is_for(wanted_use)) return 0;
    } while (!state.compare_exchange_weak(seen, seen + 1, std::memory_order_acq_rel, std::memory_order_acquire));
    return seen;
  }
};
static_assert(sizeof(CacheEntry) == 64, "one cache line");

}  // namespace fab
