#pragma once

#include <algorithm>
#include <string_view>

#include "fabric/address_vector/peer_memory.h"
#include "fabric/types/name.h"

namespace fab {

// Which peers may have a given part: hash → indices, in a linear hash table of buckets of one cache line. It
// grows by one bucket at a time, so no insertion waits for a rehash. Writers hold the memory's lock. Readers
// take none: they look at index_version before and after, and search again if it changed.
class PeerIndex {
 public:
  explicit PeerIndex(PeerMemory& memory) : memory_(memory), buckets_(memory), overflow_(memory) {}

  static std::uint32_t hash(std::uint64_t seed, std::string_view link, std::uint16_t context,
                            std::string_view bytes) noexcept;

  // Prefetches what insert() and erase() will touch.
  void prefetch(std::uint32_t hash) const noexcept {
    const std::uint64_t count = memory_.header().buckets.load(std::memory_order_relaxed);
    if (const Bucket* bucket = count ? buckets_.find(bucket_of(hash, count)) : nullptr)
      __builtin_prefetch(bucket, 1);
  }
  void insert(std::uint32_t hash, std::uint32_t index);
  void erase(std::uint32_t hash, std::uint32_t index) noexcept;
  void clear() noexcept;  // forgets everything, keeps the memory
  // Calls visit(index) for each peer that may have the part. False if writers kept changing the table: then
  // the calls prove nothing.
  template <class Visit>
  bool visit(std::uint32_t hash, Visit&& visit) const {
    for (int attempt = 0; attempt < kAttempts; ++attempt) {
      const auto version = memory_.header().index_version.load(std::memory_order_acquire);
      if (version & 1) continue;
      walk(hash, visit);
      std::atomic_thread_fence(std::memory_order_acquire);
      if (memory_.header().index_version.load(std::memory_order_relaxed) == version) return true;
    }
    return false;
  }

 private:
  static constexpr int kAttempts = 10'000;
  static constexpr unsigned kSlots = 7;
  static constexpr std::uint64_t kFirst = 1;  // bucket of an empty table
  struct alignas(64) Bucket {
    std::array<std::atomic<std::uint64_t>, kSlots>
        slots;                                // hash in the upper half, 1 + index below; 0: empty
    std::atomic<std::uint32_t> next, unused;  // 1 + number in the overflow section; 0: none
  };
  static_assert(sizeof(Bucket) == 64);
  class Change;

  static std::uint64_t bucket_of(std::uint32_t hash, std::uint64_t buckets) noexcept {
    const std::uint64_t half = std::bit_floor(buckets);
    const std::uint64_t at = hash & (2 * half - 1);
    return at < buckets ? at : hash & (half - 1);
  }
  const Bucket* next(const Bucket& bucket) const noexcept {
    const std::uint32_t number = bucket.next.load(std::memory_order_acquire);
    return number ? overflow_.find(number - 1) : nullptr;
  }
  template <class Visit>
  void walk(std::uint32_t hash, Visit&& visit) const {
    const std::uint64_t count = memory_.header().buckets.load(std::memory_order_acquire);
    if (count == 0) return;
    const auto look = [&](const Bucket& bucket) {
      for (const auto& slot : bucket.slots) {
        const std::uint64_t value = slot.load(std::memory_order_relaxed);
        if (value && value >> 32 == hash) visit(static_cast<std::uint32_t>(value) - 1);
      }
    };
    const Bucket* at = buckets_.find(bucket_of(hash, count));
    if (!at) return;
    look(*at);
    at = next(*at);
    if (!at) return;
    for (std::uint64_t steps = most_steps(); at && steps; at = next(*at), --steps) look(*at);
  }
  // Limits a search, because a table that is being changed, or is damaged, may lead in circles.
  std::uint64_t most_steps() const noexcept {
    return 2 + std::min<std::uint64_t>(memory_.header().overflow_used.load(std::memory_order_relaxed),
                                       overflow_.room());
  }
  void put(std::uint64_t bucket, std::uint64_t value);
  void split();

  PeerMemory& memory_;
  PeerColumn<Bucket, PeerSection::buckets> buckets_;
  PeerColumn<Bucket, PeerSection::overflow> overflow_;
};

}  // namespace fab
