#include "fabric/address_vector/peer_index.h"

#include <cstring>
#include <vector>

namespace fab {
namespace {

constexpr std::uint64_t kLoad = 6;  // values per bucket of kSlots

__extension__ using Wide = unsigned __int128;

std::uint64_t join(std::uint64_t a, std::uint64_t b) noexcept {
  const auto product = static_cast<Wide>(a ^ 0x9E3779B97F4A7C15u) * (b ^ 0xD1B54A32D192ED03u);
  return static_cast<std::uint64_t>(product) ^ static_cast<std::uint64_t>(product >> 64);
}

std::uint64_t mix_bytes(std::uint64_t sum, std::string_view bytes) noexcept {
  while (bytes.size() >= 8) {
    std::uint64_t word;
    std::memcpy(&word, bytes.data(), 8);
    sum = join(sum, word);
    bytes.remove_prefix(8);
  }
  std::uint64_t rest = bytes.size();
  for (const char c : bytes) rest = (rest << 8) | static_cast<unsigned char>(c);
  return join(sum, rest);
}

}  // namespace

class PeerIndex::Change {
 public:
  explicit Change(PeerHeader& header) noexcept : version_(header.index_version) {
    version_.store(version_.load(std::memory_order_relaxed) | 1, std::memory_order_relaxed);
    std::atomic_thread_fence(std::memory_order_release);
  }
  ~Change() { version_.store(version_.load(std::memory_order_relaxed) + 1, std::memory_order_release); }
  Change(const Change&) = delete;
  Change& operator=(const Change&) = delete;

 private:
  std::atomic<std::uint32_t>& version_;
};

std::uint32_t PeerIndex::hash(std::uint64_t seed, std::string_view link, std::uint16_t context,
                              std::string_view bytes) noexcept {
  const std::uint64_t sum = mix_bytes(mix_bytes(seed + context, link), bytes);
  return static_cast<std::uint32_t>(sum ^ (sum >> 32));
}

// A new overflow bucket goes right behind the first bucket, so that many equal parts cost no more than few.
void PeerIndex::put(std::uint64_t bucket, std::uint64_t value) {
  Bucket& first = buckets_.make(bucket);
  auto* second = const_cast<Bucket*>(next(first));
  for (Bucket* at : {&first, second})
    for (std::size_t i = 0; at && i < kSlots; ++i)
      if (at->slots[i].load(std::memory_order_relaxed) == 0)
        return at->slots[i].store(value, std::memory_order_relaxed);
  PeerHeader& header = memory_.header();
  std::uint32_t number = header.overflow_free.load(std::memory_order_relaxed);
  Bucket* added = number ? overflow_.find(number - 1) : nullptr;
  if (added) {
    header.overflow_free.store(added->next.load(std::memory_order_relaxed), std::memory_order_relaxed);
  } else {
    number = header.overflow_used.load(std::memory_order_relaxed) + 1;
    added = &overflow_.make(number - 1);
    header.overflow_used.store(number, std::memory_order_relaxed);
  }
  for (auto& slot : added->slots) slot.store(0, std::memory_order_relaxed);
  added->slots[0].store(value, std::memory_order_relaxed);
  added->next.store(first.next.load(std::memory_order_relaxed), std::memory_order_relaxed);
  first.next.store(number, std::memory_order_release);
}

void PeerIndex::insert(std::uint32_t hash, std::uint32_t index) {
  PeerHeader& header = memory_.header();
  const Change change(header);
  std::uint64_t count = header.buckets.load(std::memory_order_relaxed);
  if (count == 0) header.buckets.store(count = kFirst, std::memory_order_relaxed);
  put(bucket_of(hash, count), (std::uint64_t{hash} << 32) | (index + 1));
  const std::uint64_t indexed = header.indexed.fetch_add(1, std::memory_order_relaxed) + 1;
  if (indexed > count * kLoad) split();
}

// Splits one bucket in two: the values whose hash has the next bit set go to a new bucket at the end.
void PeerIndex::split() {
  PeerHeader& header = memory_.header();
  const std::uint64_t count = header.buckets.load(std::memory_order_relaxed);
  if (count >= std::uint64_t{1} << 31) return;
  buckets_.make(count);
  Bucket& old = buckets_.make(count - std::bit_floor(count));
  std::vector<std::uint64_t> values;
  std::uint32_t chain = old.next.load(std::memory_order_relaxed);
  const auto take = [&](Bucket& bucket) {
    for (auto& slot : bucket.slots)
      if (const std::uint64_t value = slot.exchange(0, std::memory_order_relaxed)) values.push_back(value);
  };
  take(old);
  old.next.store(0, std::memory_order_relaxed);
  for (std::uint64_t steps = most_steps(); chain && steps; --steps) {
    Bucket* bucket = overflow_.find(chain - 1);
    if (!bucket) break;
    take(*bucket);
    const std::uint32_t next = bucket->next.load(std::memory_order_relaxed);
    bucket->next.store(header.overflow_free.load(std::memory_order_relaxed), std::memory_order_relaxed);
    header.overflow_free.store(chain, std::memory_order_relaxed);
    chain = next;
  }
  header.buckets.store(count + 1, std::memory_order_release);
  for (const std::uint64_t value : values)
    put(bucket_of(static_cast<std::uint32_t>(value >> 32), count + 1), value);
}

void PeerIndex::erase(std::uint32_t hash, std::uint32_t index) noexcept {
  PeerHeader& header = memory_.header();
  const Change change(header);
  const std::uint64_t count = header.buckets.load(std::memory_order_relaxed);
  const std::uint64_t value = (std::uint64_t{hash} << 32) | (std::uint64_t{index} + 1);
  if (count == 0) return;
  std::uint64_t steps = most_steps();
  for (const Bucket* at = buckets_.find(bucket_of(hash, count)); at && steps; at = next(*at), --steps)
    for (const auto& slot : at->slots)
      if (slot.load(std::memory_order_relaxed) == value) {
        const_cast<std::atomic<std::uint64_t>&>(slot).store(0, std::memory_order_relaxed);
        header.indexed.fetch_sub(1, std::memory_order_relaxed);
        return;
      }
}

void PeerIndex::clear() noexcept {
  PeerHeader& header = memory_.header();
  const Change change(header);
  const std::uint64_t count = header.buckets.load(std::memory_order_relaxed);
  for (std::uint64_t i = 0; i < count; ++i) {
    Bucket* bucket = buckets_.find(i);
    if (!bucket) break;
    for (auto& slot : bucket->slots) slot.store(0, std::memory_order_relaxed);
    bucket->next.store(0, std::memory_order_relaxed);
  }
  header.overflow_used.store(0, std::memory_order_relaxed);
  header.overflow_free.store(0, std::memory_order_relaxed);
  header.buckets.store(0, std::memory_order_relaxed);
  header.indexed.store(0, std::memory_order_relaxed);
}

}  // namespace fab
