#include "fabric/address_vector.h"

#include <algorithm>
#include <bit>
#include <functional>

#include "fabric/error.h"
#include "fabric/name.h"

namespace fab {
namespace {

std::uint64_t hash_of(const Part& part) {
  const std::hash<std::string_view> hash;
  return (hash(part.link) * 31 + part.context) * 31 + hash(part.bytes);
}

}  // namespace

AddressVector::AddressVector() = default;

AddressVector::~AddressVector() {
  for (auto& chunk : chunks_) delete[] chunk.load(std::memory_order_relaxed);
}

// Chunk i starts at index (64 << i) - 64.
AddressVector::Entry* AddressVector::entry(std::uint64_t index) const noexcept {
  if (index >= used_.load(std::memory_order_acquire)) return nullptr;
  const unsigned chunk = static_cast<unsigned>(std::bit_width((index >> kFirstChunkBits) + 1)) - 1;
  const std::uint64_t start = ((std::uint64_t{1} << chunk) - 1) << kFirstChunkBits;
  return chunks_[chunk].load(std::memory_order_acquire) + (index - start);
}

AddressVector::Entry& AddressVector::allocate(std::uint64_t index) {
  const unsigned chunk = static_cast<unsigned>(std::bit_width((index >> kFirstChunkBits) + 1)) - 1;
  if (chunk >= kChunks) throw Error(Errc::no_memory, "the address vector is full");
  if (!chunks_[chunk].load(std::memory_order_relaxed))
    chunks_[chunk].store(new Entry[std::size_t{1} << (kFirstChunkBits + chunk)], std::memory_order_release);
  used_.store(index + 1, std::memory_order_release);
  return *entry(index);
}

std::uint32_t AddressVector::generation(PeerId peer) const noexcept {
  const Entry* found = entry(peer);
  return found ? found->generation.load(std::memory_order_acquire) : 0;
}

PeerId AddressVector::insert(std::string name) {
  const Name decoded = Name::decode(name);
  const std::lock_guard lock(mutex_);
  PeerId peer;
  Entry* slot;
  if (free_.empty()) {
    peer = used_.load(std::memory_order_relaxed);
    slot = &allocate(peer);
  } else {
    std::ranges::pop_heap(free_, std::greater<>());
    peer = free_.back();
    free_.pop_back();
    slot = entry(peer);
  }
  for (const Part& part : decoded.parts) by_part_.emplace(hash_of(part), peer);
  slot->name = std::move(name);
  if (next_generation_ == 0) next_generation_ = 1;
  slot->generation.store(next_generation_++, std::memory_order_release);
  live_.fetch_add(1, std::memory_order_relaxed);
  return peer;
}

void AddressVector::remove(PeerId peer) {
  const std::lock_guard lock(mutex_);
  Entry* slot = entry(peer);
  if (!slot || slot->generation.load(std::memory_order_relaxed) == 0)
    throw Error(Errc::invalid, "peer " + std::to_string(static_cast<std::int64_t>(peer)) +
                                   " is not in the address vector (never inserted, or removed)");
  for (const Part& part : Name::decode(slot->name).parts) {
    const auto [first, last] = by_part_.equal_range(hash_of(part));
    for (auto at = first; at != last; ++at)
      if (at->second == peer) {
        by_part_.erase(at);
        break;
      }
  }
  slot->generation.store(0, std::memory_order_release);
  slot->name = {};
  free_.push_back(peer);
  std::ranges::push_heap(free_, std::greater<>());
  live_.fetch_sub(1, std::memory_order_relaxed);
}

std::string AddressVector::lookup(PeerId peer) const {
  const std::lock_guard lock(mutex_);
  const Entry* slot = entry(peer);
  if (!slot || slot->generation.load(std::memory_order_relaxed) == 0)
    throw Error(Errc::invalid, "peer " + std::to_string(static_cast<std::int64_t>(peer)) +
                                   " is not in the address vector (never inserted, or removed)");
  return slot->name;
}

PeerId AddressVector::find(const Part& part) const {
  const std::lock_guard lock(mutex_);
  const auto [first, last] = by_part_.equal_range(hash_of(part));
  PeerId lowest = kNoPeer;
  for (auto at = first; at != last; ++at) {
    const auto parts = Name::decode(entry(at->second)->name).parts;
    if (std::ranges::find(parts, part) != parts.end()) lowest = std::min(lowest, at->second);
  }
  return lowest;
}

}  // namespace fab
