#include "fabric/segment/region_table.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "base/bytes/hex.h"
#include "base/bytes/mix.h"
#include "base/bytes/random.h"
#include "base/locks/mutex.h"

namespace fab {
namespace {

// A slot of the key index holds the entry's number + 1 and, above it, bits of the key's hash. A search then
// reads hardly any entry but the one that it seeks: with many regions, each entry read is a cache miss.
constexpr std::uint32_t kTombstone = ~0u, kNumberBits = 22, kNumberMask = (1u << kNumberBits) - 1;
static_assert(RegionView::kMaxRegions < kNumberMask);

constexpr std::uint32_t tag_of(std::uint64_t mixed) noexcept {
  return static_cast<std::uint32_t>(mixed >> (64 - (32 - kNumberBits))) << kNumberBits;
}

constexpr std::uint64_t state_of(std::uint64_t generation, RegionStatus status) noexcept {
  return generation << 2 | static_cast<std::uint64_t>(status);
}

// The mask that turns a hash into a slot of an index of this size.
std::uint64_t mask_of(std::uint32_t size) noexcept {
  return (std::uint64_t{RegionView::kFirstIndexSlots} << size) - 1;
}

}  // namespace

RegionEntry& RegionView::entry(std::uint32_t index) const noexcept {
  return reinterpret_cast<RegionEntry*>(area_ + kEntriesOffset)[index & (kMaxRegions - 1)];
}

std::atomic<std::uint32_t>* RegionView::index(std::uint32_t size) const noexcept {
  const std::size_t before = mask_of(size) - mask_of(0);  // slots of the smaller indices, which lie in front
  return reinterpret_cast<std::atomic<std::uint32_t>*>(area_ + 4096) + before;
}

RegionPiece* RegionView::piece_block(std::uint32_t block) const noexcept {
  return reinterpret_cast<RegionPiece*>(area_ + kPiecesOffset) +
         std::size_t{block & (kPieceBlocks - 1)} * kMaxRegionPieces;
}

std::int64_t RegionView::find(std::uint64_t key) const noexcept {
  for (;;) {
    const std::uint64_t in_force = area_header().index.load(std::memory_order_acquire);
    const std::uint32_t size = AreaHeader::size_of(in_force);
    const auto* slots = index(size);
    const std::uint64_t mask = mask_of(size);
    // The bound matters only where another process wrote nonsense: the owner keeps half of the slots free.
    const std::uint64_t mixed = mix(key);
    const std::uint32_t tag = tag_of(mixed);
    for (std::uint64_t probe = 0, at = mixed; probe <= mask; ++probe, ++at) {
      const std::uint32_t slot = slots[at & mask].load(std::memory_order_acquire);
      if (slot == 0) break;
      const std::uint32_t number = (slot & kNumberMask) - 1;
      if ((slot & ~kNumberMask) != tag || number >= kMaxRegions) continue;
      const RegionEntry& candidate = entry(number);
      if (candidate.key.load(std::memory_order_relaxed) == key &&
          status_of(candidate.state.load(std::memory_order_acquire)) != RegionStatus::vacant)
        return number;
    }
    // If the index was filled anew meanwhile, maybe in the same place, the search has seen parts of both.
    if (area_header().index.load(std::memory_order_acquire) == in_force) return -1;
  }
}

bool RegionView::within_limits(const RegionEntry& entry, const Requester& requester) const noexcept {
  if (entry.auth != kAuthLimited || !requester.limits) return false;
  return requester.limits->admits(static_cast<std::uint32_t>(&entry - &this->entry(0)), requester);
}

bool RegionView::reachable(const RegionEntry& entry, std::uint64_t offset,
                           std::uint64_t length) const noexcept {
  if (length == 0) return true;
  const RegionSpan* span = span_block(entry.spans_block);
  for (std::uint32_t i = 0; i < entry.spans && i < kMaxRegionPieces; ++i)
    if (offset >= span[i].offset && offset - span[i].offset < span[i].length)
      return length <= span[i].length - (offset - span[i].offset);
  return false;
}

std::size_t RegionView::pieces(const RegionEntry& entry, std::uint64_t offset, std::uint64_t length,
                               iovec* out) const noexcept {
  const auto pointer = [](std::uint64_t address) { return reinterpret_cast<void*>(address); };
  if (entry.piece_count <= 1) {
    out[0] = {pointer(entry.address + offset), static_cast<std::size_t>(length)};
    return length ? 1 : 0;
  }
  std::size_t count = 0;
  const RegionPiece* piece = piece_block(entry.piece_block);
  for (std::uint32_t i = 0; i < entry.piece_count && i < kMaxRegionPieces && length; ++i) {
    if (offset >= piece[i].length) {
      offset -= piece[i].length;
      continue;
    }
    const std::uint64_t part = std::min(length, piece[i].length - offset);
    out[count++] = {pointer(piece[i].address + offset), static_cast<std::size_t>(part)};
    length -= part;
    offset = 0;
  }
  return count;
}

std::uint64_t RegionTable::choose_key(std::uint32_t size) {
  if (size < 8) return next_key_++ & ((std::uint64_t{1} << (size * 8)) - 1);
  const std::uint64_t following = random_u64();
  fetch_ahead(following);
  return std::exchange(prepared_key_, following);
}

void RegionTable::fetch_ahead(std::uint64_t key) const noexcept {
  const std::uint32_t size = index_size();
  __builtin_prefetch(&index(size)[mix(key) & mask_of(size)], 1);
}

namespace {

// Reserves room for `all` numbers in a free list, so that giving one back needs no memory.
void make_room(std::vector<std::uint32_t>& free, std::size_t all) {
  if (free.capacity() < all) free.reserve(std::max(all, free.capacity() * 2));
}

}  // namespace

std::uint32_t RegionTable::take_block() {
  if (free_blocks_.empty()) {
    if (blocks_used_ == kPieceBlocks)
      throw Error(Errc::no_memory,
                  "all " + std::to_string(kPieceBlocks) + " regions of several buffers or spans are in use");
    make_room(free_blocks_, blocks_used_ + 1);
    return blocks_used_++;
  }
  const std::uint32_t block = free_blocks_.back();
  free_blocks_.pop_back();
  return block;
}

std::uint32_t RegionTable::insert(const RegionRecord& record) {
  const LockGuard lock(mutex_);
  std::uint64_t key = record.key;
  if (key == kNoKey) {
    do key = choose_key(record.key_size);
    while (key == kNoKey || find(key) >= 0);
  } else if (find(key) >= 0) {
    throw Error(Errc::no_key, "key " + hex(record.key) + " is in use by another region of this domain; " +
                                  "close that region or choose another key");
  }
  const bool vector = record.buffers.size() > 1;
  if (free_entries_.empty() && entries_used_ == kMaxRegions)
    throw Error(Errc::no_memory, "all " + std::to_string(kMaxRegions) + " regions of the domain are in use");
  if ((index_filled_ + 1) * 2 > (kFirstIndexSlots << index_size())) grow_index();

  if (free_entries_.empty()) make_room(free_entries_, entries_used_ + 1);
  const std::uint32_t block = vector ? take_block() : 0;

  std::uint32_t index = entries_used_;
  if (free_entries_.empty())
    ++entries_used_;
  else {
    index = free_entries_.back();
    free_entries_.pop_back();
  }
  RegionEntry& slot = entry(index);
  slot.base = record.base;
  slot.address = reinterpret_cast<std::uint64_t>(record.buffers.front().iov_base);
  slot.length = 0;
  for (const iovec& buffer : record.buffers) slot.length += buffer.iov_len;
  slot.access = record.access;
  slot.flags = record.flags | (record.enabled ? region_flag::kWasEnabled : 0);
  slot.file = record.file;
  slot.file_offset = record.file_offset;
  slot.piece_count = static_cast<std::uint32_t>(record.buffers.size());
  slot.endpoint = 0;
  slot.auth = record.auth;
  for (auto& counter : slot.counters) counter.store(0, std::memory_order_relaxed);
  if (vector) {
    slot.piece_block = block;
    RegionPiece* piece = piece_block(slot.piece_block);
    for (const iovec& buffer : record.buffers)
      *piece++ = {reinterpret_cast<std::uint64_t>(buffer.iov_base), buffer.iov_len};
  }
  const std::uint64_t generation = (slot.state.load(std::memory_order_relaxed) >> 2) + 1;
  slot.key.store(key, std::memory_order_relaxed);
  slot.state.store(state_of(generation, record.enabled ? RegionStatus::enabled : RegionStatus::disabled),
                   std::memory_order_seq_cst);
  insert_key(key, index);
  live_.fetch_add(1, std::memory_order_relaxed);
  return index;
}

void RegionTable::insert_key(std::uint64_t key, std::uint32_t entry_index) {
  const std::uint32_t size = index_size();
  auto* slots = index(size);
  const std::uint64_t mask = mask_of(size);
  const std::uint64_t mixed = mix(key);
  for (std::uint64_t at = mixed;; ++at) {
    const std::uint32_t slot = slots[at & mask].load(std::memory_order_relaxed);
    if (slot != 0 && slot != kTombstone) continue;
    if (slot == 0) ++index_filled_;
    slots[at & mask].store(tag_of(mixed) | (entry_index + 1), std::memory_order_release);
    return;
  }
}

// Copies the keys to the next larger index, or, if mostly tombstones fill this one, to the next smaller one.
// Readers see the new index once it is filled; a reader that misses in the old one looks again.
void RegionTable::grow_index() {
  const std::uint32_t size = index_size();
  const auto* old = index(size);
  const std::uint64_t old_slots = std::uint64_t{kFirstIndexSlots} << size;
  const bool crowded = std::uint64_t{live_.load(std::memory_order_relaxed)} * 4 > old_slots;
  // The largest index is never filled anew from itself: with at most kMaxRegions keys the next smaller one
  // suffices.
  const std::uint32_t next = size + 1 < kIndexSizes && (crowded || size == 0) ? size + 1 : size - 1;
  auto* slots = index(next);
  const std::uint64_t mask = mask_of(next);
  // Readers may still search these slots, from when this index was in force before. Who meets a slot that was
  // cleared learns by it, as every store here releases, that the index has changed since.
  for (std::uint64_t i = 0; i <= mask; ++i) slots[i].store(0, std::memory_order_release);
  index_filled_ = 0;
  for (std::uint64_t i = 0; i < old_slots; ++i) {
    const std::uint32_t slot = old[i].load(std::memory_order_relaxed);
    if (slot == 0 || slot == kTombstone) continue;
    std::uint64_t at = mix(entry((slot & kNumberMask) - 1).key.load(std::memory_order_relaxed));
    while (slots[at & mask].load(std::memory_order_relaxed) != 0) ++at;
    slots[at & mask].store(slot, std::memory_order_release);
    ++index_filled_;
  }
  area_header().show(next);
}

void RegionTable::bind_counter(std::uint32_t index, std::uint32_t counter) {
  const LockGuard lock(mutex_);
  for (auto& slot : entry(index).counters)
    if (slot.load(std::memory_order_relaxed) == 0) {
      slot.store(counter + 1, std::memory_order_release);
      return;
    }
  throw Error(Errc::too_big, "a region takes at most 8 counters");
}

void RegionTable::bind_endpoint(std::uint32_t index, std::uint32_t endpoint) {
  const LockGuard lock(mutex_);
  entry(index).endpoint = endpoint;
}

void RegionTable::set_spans(std::uint32_t index, std::span<const RegionSpan> spans) {
  if (spans.size() > kMaxRegionPieces)
    throw Error(Errc::too_big, "the region is backed in " + std::to_string(spans.size()) +
                                   " places that are apart from each other; a region takes " +
                                   std::to_string(kMaxRegionPieces));
  const LockGuard lock(mutex_);
  RegionEntry& slot = entry(index);
  if ((slot.flags & region_flag::kSpans) == 0) slot.spans_block = take_block();
  slot.flags |= region_flag::kSpans;
  slot.spans = static_cast<std::uint32_t>(spans.size());
  std::ranges::copy(spans, span_block(slot.spans_block));
}

void RegionTable::set_auth(std::uint32_t index, std::uint32_t auth) noexcept {
  const LockGuard lock(mutex_);
  entry(index).auth = auth;
}

bool RegionTable::had_put_rights(std::uint64_t key, std::uint64_t remote, std::uint64_t length,
                                 const Requester& requester) const noexcept {
  const LockGuard lock(mutex_);
  const std::int64_t found = find(key);
  if (found < 0) return false;
  const RegionEntry& slot = entry(static_cast<std::uint32_t>(found));
  std::uint64_t offset = 0;
  return (slot.flags & region_flag::kWasEnabled) != 0 &&
         judge_rights(slot, {key, 0, OpCode::write, remote, length}, requester, offset) == Errc::ok;
}

void RegionTable::set_limits(std::uint32_t index, GrantLimits limits) {
  const LockGuard lock(mutex_);
  limits_.add(index, std::move(limits));
  entry(index).auth = kAuthLimited;
}

void RegionTable::set_enabled(std::uint32_t index, bool enabled) {
  RegionEntry& slot = entry(index);
  if (enabled) {
    const LockGuard lock(mutex_);
    slot.flags |= region_flag::kWasEnabled;
  }
  const std::uint64_t generation = (slot.state.load(std::memory_order_relaxed) >> 2) + (enabled ? 1 : 0);
  slot.state.store(state_of(generation, enabled ? RegionStatus::enabled : RegionStatus::disabled),
                   std::memory_order_seq_cst);
}

void RegionTable::start_close(std::uint32_t index) {
  RegionEntry& slot = entry(index);
  fetch_ahead(slot.key.load(std::memory_order_relaxed));
  slot.state.store(state_of(slot.state.load(std::memory_order_relaxed) >> 2, RegionStatus::closing),
                   std::memory_order_seq_cst);
}

void RegionTable::finish_close(std::uint32_t entry_index) noexcept {
  const LockGuard lock(mutex_);
  RegionEntry& closing = entry(entry_index);
  const std::uint32_t size = index_size();
  auto* slots = index(size);
  const std::uint64_t mask = mask_of(size);
  const std::uint64_t mixed = mix(closing.key.load(std::memory_order_relaxed));
  std::uint64_t at = mixed;
  while (slots[at & mask].load(std::memory_order_relaxed) != (tag_of(mixed) | (entry_index + 1))) ++at;
  slots[at & mask].store(kTombstone, std::memory_order_release);
  // Tombstones right before a free slot are of no use to a search, which ends at that slot.
  for (; slots[(at + 1) & mask].load(std::memory_order_relaxed) == 0 &&
         slots[at & mask].load(std::memory_order_relaxed) == kTombstone;
       --at) {
    slots[at & mask].store(0, std::memory_order_release);
    --index_filled_;
  }
  if (closing.piece_count > 1) free_blocks_.push_back(closing.piece_block);
  if (closing.flags & region_flag::kSpans) free_blocks_.push_back(closing.spans_block);
  if (closing.auth == kAuthLimited) limits_.remove(entry_index);
  closing.state.store(state_of(closing.state.load(std::memory_order_relaxed) >> 2, RegionStatus::vacant),
                      std::memory_order_release);
  free_entries_.push_back(entry_index);
  live_.fetch_sub(1, std::memory_order_relaxed);
}

}  // namespace fab
