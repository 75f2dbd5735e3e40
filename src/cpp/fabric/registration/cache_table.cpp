#include "fabric/registration/cache_table.h"

#include <new>
#include <utility>

namespace fab {

bool CacheTable::search(const Table& table, std::uint32_t hash, AddressRange range, std::uint16_t use,
                        Taken& taken) const noexcept {
  for (std::uint32_t i = hash;; ++i) {
    CacheEntry* found = &table[i];
    const std::uint64_t state = found->state.load(std::memory_order_acquire);
    if (state == 0) return false;
    if (!(state & CacheEntry::kLive) || !found->serves(range, use)) continue;
    Number number = number_of(table, i);
    if (state & CacheEntry::kLink) {
      number = static_cast<Number>(found->last_use.load(std::memory_order_acquire));
      if (found->state.load(std::memory_order_acquire) != state) continue;
      found = &entry(number);
    }
    if (const std::uint64_t before = found->take(range, use)) {
      taken = {.entry = found, .number = number, .before = before};
      return true;
    }
  }
}

CacheTable::Taken CacheTable::take(AddressRange range, std::uint16_t use) const noexcept {
  Taken taken;
  const int smallest = size_class(range.length);
  const unsigned newest = newest_.load(std::memory_order_acquire);
  const std::uint64_t classes = classes_.load(std::memory_order_acquire) >> smallest << smallest;
  const auto hash_for = [&](std::uint64_t left) {
    const int k = std::countr_zero(left);
    return hash(k, range.start >> k, use);
  };
  std::uint64_t left = classes;
  if (left && search(tables_[newest], hash_for(left), range, use, taken)) return taken;
  // The places of the other classes are fetched together, so that their delays overlap.
  if (left) left &= left - 1;
  for (std::uint64_t next = left; next; next &= next - 1)
    __builtin_prefetch(&tables_[newest][hash_for(next)], 1);
  for (; left; left &= left - 1)
    if (search(tables_[newest], hash_for(left), range, use, taken)) return taken;
  for (std::uint32_t older = older_.load(std::memory_order_acquire); older; older &= older - 1)
    for (left = classes; left; left &= left - 1)
      if (search(tables_[static_cast<unsigned>(std::countr_zero(older))], hash_for(left), range, use, taken))
        return taken;
  return {};
}

void CacheTable::open_table(unsigned level) {
  if (level == kLevels) throw std::bad_alloc();
  Table& table = tables_[level];
  const std::size_t count = std::size_t{1} << (kFewestBits + level);
  table.details = Mapping::anonymous(count * sizeof(CacheEntryDetails));
  table.stride = level < kFirstDense ? 6 : 5;
  // Places are chosen by hash, so small pages would miss the TLB nearly always.
  table.entries = Mapping::anonymous(count << table.stride, true);
  table.mask = static_cast<std::uint32_t>(count - 1);
  const unsigned before = newest_.exchange(level, std::memory_order_acq_rel);
  if (tables_[before].taken > 0 && level != before) older_.fetch_or(1u << before, std::memory_order_release);
}

// Takes a place in the newest table for an entry or link that is looked up under `hash`.
CacheTable::Number CacheTable::claim(std::uint32_t hash) noexcept {
  Table& table = tables_[newest_.load(std::memory_order_relaxed)];
  std::uint32_t i = hash;
  while (table[i].state.load(std::memory_order_relaxed) & CacheEntry::kTaken) ++i;
  table.touched += table[i].state.load(std::memory_order_relaxed) == 0;
  ++table.taken;
  return number_of(table, i);
}

void CacheTable::unclaim(Number number) noexcept {
  const unsigned level = level_of(number);
  Table& table = tables_[level];
  std::uint32_t i = place_of(number);
  const auto state = [&](std::uint32_t at) { return table[at].state.load(std::memory_order_relaxed); };
  table[i].state.store(kFormer, std::memory_order_release);
  if (--table.taken == 0 && level != newest_.load(std::memory_order_relaxed))
    older_.fetch_and(~(1u << level), std::memory_order_release);
  // Former places at the end of a run become empty, so that look-ups end sooner.
  for (; state(i + 1) == 0 && state(i) == kFormer; --i) {
    table[i].state.store(0, std::memory_order_release);
    --table.touched;
  }
}

CacheTable::Number CacheTable::allocate(AddressRange range, std::uint16_t use) {
  const unsigned level = newest_.load(std::memory_order_relaxed);
  const Table& table = tables_[level];
  if (2 * (table.taken + 2) > table.mask || 4 * table.touched > 3 * table.mask) open_table(level + 1);
  const int k = size_class(range.length);
  const Number number = claim(hash(k, range.start >> k, use));
  entry(number).describe(range, use);
  generation_ += CacheEntry::kGeneration;
  entry(number).state.store(generation_ | CacheEntry::kTaken | 1, std::memory_order_release);
  return number;
}

void CacheTable::insert(Number number) {
  const AddressRange range = entry(number).range();
  const int k = size_class(range.length);
  in_order_.emplace(k, range.start, number);
  if (class_sizes_[static_cast<std::size_t>(k)]++ == 0)
    classes_.fetch_or(std::uint64_t{1} << k, std::memory_order_release);
  link_up(number);
}

// Makes the entry's link, if its range lies in two blocks.
void CacheTable::link_up(Number number) noexcept {
  const AddressRange range = entry(number).range();
  const int k = size_class(range.length);
  const std::uint64_t last = (range.end() - 1) >> k;
  if (last == range.start >> k) {
    details(number).link = kNoLink;
    return;
  }
  const std::uint16_t use = entry(number).use();
  const Number link = details(number).link = claim(hash(k, last, use));
  entry(link).describe(range, use);
  entry(link).last_use.store(number, std::memory_order_release);
  generation_ += CacheEntry::kGeneration;
  entry(link).state.store(generation_ | CacheEntry::kTaken | CacheEntry::kLink | CacheEntry::kLive,
                          std::memory_order_release);
}

void CacheTable::erase(Number number) noexcept {
  const AddressRange range = entry(number).range();
  const int k = size_class(range.length);
  in_order_.erase({k, range.start, number});
  if (--class_sizes_[static_cast<std::size_t>(k)] == 0)
    classes_.fetch_and(~(std::uint64_t{1} << k), std::memory_order_release);
  if (details(number).link != kNoLink) unclaim(details(number).link);
}

void CacheTable::replace(Number from, Number to) noexcept {
  const AddressRange range = entry(from).range();
  auto place = in_order_.extract({size_class(range.length), range.start, from});
  std::get<Number>(place.value()) = to;
  in_order_.insert(std::move(place));
  if (details(from).link != kNoLink) unclaim(details(from).link);
  free(from);
  link_up(to);
}

}  // namespace fab
