#include "fabric/cache_table.h"

#include <new>

namespace fab {

CacheTable::Taken CacheTable::take(AddressRange range, std::uint16_t use) const noexcept {
  const Slots& slots = *slots_.load(std::memory_order_acquire);
  const int smallest = size_class(range.length);
  for (std::uint64_t classes = classes_.load(std::memory_order_acquire) >> smallest << smallest; classes;
       classes &= classes - 1) {
    const int k = std::countr_zero(classes);
    const std::uint32_t wanted = hash(k, range.start >> k, use);
    for (std::uint64_t i = wanted;; ++i) {
      const std::uint32_t slot = slots[i].load(std::memory_order_acquire);
      if (slot == 0) break;
      if ((slot ^ wanted) >> kNumberBits != 0 || slot == kFormer) continue;
      const Number number = (slot & kNumberMask) - 1;
      CacheEntry& found = entry(number);
      if (const std::uint64_t before = found.take(range, use))
        return {.entry = &found, .number = number, .before = before};
    }
  }
  return {};
}

CacheTable::Number CacheTable::allocate() {
  if (!free_.empty()) {
    const Number number = free_.back();
    free_.pop_back();
    return number;
  }
  if (allocated_ == kMostEntries) throw std::bad_alloc();
  const unsigned chunk = place(allocated_).chunk;
  if (entries_[chunk].size() == 0) {
    const std::size_t count = std::size_t{kFirstChunk} << chunk;
    details_[chunk] = Mapping::anonymous(count * sizeof(CacheEntryDetails));
    entries_[chunk] = Mapping::anonymous(count * sizeof(CacheEntry));
  }
  return allocated_++;
}

template <class Each>
void CacheTable::for_each_block(Number number, const Each& each) const {
  const AddressRange range = entry(number).range();
  const int k = size_class(range.length);
  const std::uint64_t last = (range.end() - 1) >> k;
  for (std::uint64_t block = range.start >> k; block <= last; ++block)
    each(hash(k, block, entry(number).use()));
}

void CacheTable::put(const Slots& slots, Number number) noexcept {
  for_each_block(number, [&](std::uint32_t hash) {
    std::uint64_t i = hash;
    while (slots[i].load(std::memory_order_relaxed) != 0) ++i;
    slots[i].store(slot_of(hash, number), std::memory_order_release);
    ++slots_taken_;
  });
}

void CacheTable::rebuild(std::uint64_t count) {
  const Slots* slots = slots_.load(std::memory_order_relaxed);
  if (slots && count == slots->mask + 1) {
    for (std::uint64_t i = 0; i < count; ++i) (*slots)[i].store(0, std::memory_order_release);
  } else {
    auto larger = std::make_unique<Slots>();
    larger->memory = Mapping::anonymous(count * sizeof(std::uint32_t));
    larger->mask = count - 1;
    slots = larger.get();
    all_slots_.push_back(std::move(larger));
  }
  slots_taken_ = slots_former_ = 0;
  for (const auto& [size_class, start, number] : in_order_) put(*slots, number);
  slots_.store(slots, std::memory_order_release);
}

void CacheTable::insert(Number number) {
  const std::uint64_t count = slots_.load(std::memory_order_relaxed)->mask + 1;
  if (4 * (slots_taken_ + slots_former_ + 2) > 3 * count)
    rebuild(2 * (slots_taken_ + 2) > count ? 2 * count : count);
  const AddressRange range = entry(number).range();
  const int k = size_class(range.length);
  in_order_.emplace(k, range.start, number);
  put(*slots_.load(std::memory_order_relaxed), number);
  if (class_sizes_[static_cast<std::size_t>(k)]++ == 0)
    classes_.fetch_or(std::uint64_t{1} << k, std::memory_order_release);
}

void CacheTable::erase(Number number) {
  const AddressRange range = entry(number).range();
  const int k = size_class(range.length);
  in_order_.erase({k, range.start, number});
  const Slots& slots = *slots_.load(std::memory_order_relaxed);
  for_each_block(number, [&](std::uint32_t hash) {
    std::uint32_t slot = 0;
    for (std::uint64_t i = hash; (slot = slots[i].load(std::memory_order_relaxed)) != 0; ++i) {
      if (slot != slot_of(hash, number)) continue;
      slots[i].store(kFormer, std::memory_order_release);
      --slots_taken_;
      ++slots_former_;
    }
  });
  if (--class_sizes_[static_cast<std::size_t>(k)] == 0)
    classes_.fetch_and(~(std::uint64_t{1} << k), std::memory_order_release);
}

std::vector<CacheTable::Number> CacheTable::overlapping(AddressRange range) const {
  std::vector<Number> found;
  for (std::uint64_t classes = classes_.load(std::memory_order_relaxed); classes; classes &= classes - 1) {
    const int k = std::countr_zero(classes);
    const std::uint64_t longest = std::uint64_t{1} << k;
    const std::uint64_t from = range.start < longest ? 0 : range.start - longest;
    for (auto next = in_order_.lower_bound({k, from, 0}); next != in_order_.end(); ++next) {
      const auto& [size_class, start, number] = *next;
      if (size_class != k || start >= range.end()) break;
      if (entry(number).range().overlaps(range)) found.push_back(number);
    }
  }
  return found;
}

}  // namespace fab
