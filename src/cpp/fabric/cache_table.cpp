#include "fabric/cache_table.h"

#include <memory>
#include <new>

namespace fab {

CacheTable::CacheTable() {
  all_slots_.push_back(std::make_unique<const Slots>(make_slots(512)));
  slots_.store(all_slots_.back().get(), std::memory_order_release);
}

CacheTable::Slots CacheTable::make_slots(std::uint64_t count) const {
  return {.memory = Mapping::anonymous(count * sizeof(std::uint64_t)), .mask = count - 1};
}

CacheTable::Taken CacheTable::take(AddressRange range, const MemoryUse& use) const noexcept {
  const Slots& slots = *slots_.load(std::memory_order_acquire);
  const std::uint32_t packed = CacheEntry::packed(use);
  std::uint64_t classes =
      classes_.load(std::memory_order_acquire) >> size_class(range.length) << size_class(range.length);
  for (; classes; classes &= classes - 1) {
    const int k = std::countr_zero(classes);
    const std::uint32_t wanted = hash(k, range.start >> k, packed);
    for (std::uint64_t i = wanted;; ++i) {
      const std::uint64_t slot = slots[i].load(std::memory_order_acquire);
      if (slot == 0) break;
      if (slot >> 32 != wanted) continue;
      CacheEntry& entry = at(static_cast<std::uint32_t>(slot) - 1);
      if (const std::uint64_t before = entry.take(range, use)) return {.entry = &entry, .before = before};
    }
  }
  return {};
}

CacheEntry& CacheTable::allocate() {
  if (!free_.empty()) {
    CacheEntry& entry = at(free_.back());
    free_.pop_back();
    return entry;
  }
  const auto chunk = static_cast<unsigned>(std::bit_width(allocated_ / kFirstChunk + 1)) - 1;
  if (chunk == chunks_.size()) throw std::bad_alloc();
  if (chunks_[chunk].size() == 0)
    chunks_[chunk] = Mapping::anonymous(std::size_t{kFirstChunk} << chunk << 6);
  CacheEntry& entry = at(allocated_);
  entry.number = allocated_++;
  return entry;
}

template <class Each>
void CacheTable::for_each_block(const CacheEntry& entry, const Each& each) {
  const AddressRange range = entry.range();
  const int k = size_class(range.length);
  const std::uint64_t first = range.start >> k, last = (range.end() - 1) >> k;
  const std::uint32_t use = entry.use.load(std::memory_order_relaxed);
  for (std::uint64_t block = first; block <= last; ++block) each(hash(k, block, use));
}

void CacheTable::put(const Slots& slots, std::uint32_t hash, std::uint32_t number) noexcept {
  std::uint64_t i = hash;
  while (slots[i].load(std::memory_order_relaxed) != 0) ++i;
  slots[i].store(std::uint64_t{hash} << 32 | (number + 1), std::memory_order_release);
}

void CacheTable::remove(const Slots& slots, std::uint32_t hash, std::uint32_t number) noexcept {
  std::uint64_t gap = hash;
  while (slots[gap].load(std::memory_order_relaxed) != (std::uint64_t{hash} << 32 | (number + 1))) ++gap;
  // What stands behind moves up, unless it would stand before the place where a look-up for it starts.
  for (std::uint64_t i = gap + 1;; ++i) {
    const std::uint64_t slot = slots[i].load(std::memory_order_relaxed);
    if (slot == 0) break;
    const std::uint64_t from_home = (i - (slot >> 32)) & slots.mask;
    if (from_home < i - gap) continue;
    slots[gap].store(slot, std::memory_order_release);
    gap = i;
  }
  slots[gap].store(0, std::memory_order_release);
}

void CacheTable::insert(const CacheEntry& entry) {
  const Slots* slots = slots_.load(std::memory_order_relaxed);
  if (2 * (slots_used_ + 2) > slots->mask + 1) {
    auto larger = std::make_unique<const Slots>(make_slots(2 * (slots->mask + 1)));
    for (std::uint64_t i = 0; i <= slots->mask; ++i)
      if (const std::uint64_t slot = (*slots)[i].load(std::memory_order_relaxed))
        put(*larger, static_cast<std::uint32_t>(slot >> 32), static_cast<std::uint32_t>(slot) - 1);
    all_slots_.push_back(std::move(larger));
    slots = all_slots_.back().get();
    slots_.store(slots, std::memory_order_release);
  }
  const AddressRange range = entry.range();
  const int k = size_class(range.length);
  in_order_.emplace(k, range.start, entry.number);
  for_each_block(entry, [&](std::uint32_t hash) {
    put(*slots, hash, entry.number);
    ++slots_used_;
  });
  if (class_sizes_[static_cast<std::size_t>(k)]++ == 0)
    classes_.fetch_or(std::uint64_t{1} << k, std::memory_order_release);
}

void CacheTable::erase(const CacheEntry& entry) {
  const AddressRange range = entry.range();
  const int k = size_class(range.length);
  in_order_.erase({k, range.start, entry.number});
  const Slots& slots = *slots_.load(std::memory_order_relaxed);
  for_each_block(entry, [&](std::uint32_t hash) {
    remove(slots, hash, entry.number);
    --slots_used_;
  });
  if (--class_sizes_[static_cast<std::size_t>(k)] == 0)
    classes_.fetch_and(~(std::uint64_t{1} << k), std::memory_order_release);
}

std::vector<CacheEntry*> CacheTable::overlapping(AddressRange range) const {
  std::vector<CacheEntry*> found;
  std::uint64_t classes = classes_.load(std::memory_order_relaxed);
  for (; classes; classes &= classes - 1) {
    const int k = std::countr_zero(classes);
    const std::uint64_t longest = std::uint64_t{1} << k;
    const std::uint64_t from = range.start < longest ? 0 : range.start - longest;
    for (auto next = in_order_.lower_bound({k, from, 0}); next != in_order_.end(); ++next) {
      const auto& [size_class, start, number] = *next;
      if (size_class != k || start >= range.end()) break;
      if (at(number).range().overlaps(range)) found.push_back(&at(number));
    }
  }
  return found;
}

}  // namespace fab
