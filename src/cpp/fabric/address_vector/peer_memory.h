#pragma once

#include <array>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

#include "base/locks/thread_safety.h"
#include "base/memory/mapping.h"

// Where an AddressVector keeps what it knows: a header and, per section, an array that grows by chunks, each
// twice as long as the one before. Nothing moves once it is there, and nothing holds a pointer, so the same
// bytes serve as memory of one process and as a file that several processes map (docs/address-vectors.md).
namespace fab {

enum class PeerSection : unsigned {
  entries,
  words,
  vacant0,
  vacant1,
  vacant2,
  buckets,
  overflow,
  user_ids,
  auths
};
inline constexpr unsigned kPeerSections = 9, kPeerChunks = 27;

// One peer. Written under the lock of writers; `generation` says whether the rest counts.
struct PeerEntry {
  std::atomic<std::uint32_t> generation;  // 0: vacant
  std::atomic<std::uint32_t> form;        // the number of the shape (kFormMask), and the bits below
  std::atomic<std::uint32_t> record;      // first word of what differs from the shape
};
static_assert(sizeof(PeerEntry) == 12);
inline constexpr std::uint32_t kFormMask = 0xffff, kFormRaw = 0xffff;  // kFormRaw: length, then all bytes
inline constexpr std::uint32_t kFormTouched = 1u << 31;  // what a run says of this index holds no longer
inline constexpr std::uint32_t kFormUserId = 1u << 30;   // PeerSection::user_ids has what is reported

// Any number of consecutive addresses: `services` ports of one node, then those of the next node.
struct PeerRun {
  std::atomic<std::uint64_t> first, count;  // indices
  std::atomic<std::uint32_t> generation;    // of all these addresses
  std::atomic<std::uint32_t> services;      // ports of a node; 0: the first node is not complete yet
  std::array<std::atomic<std::uint64_t>, 4> address;  // the first one, packed, with zeros behind
  std::atomic<std::uint32_t> length, unused;
};

inline constexpr unsigned kMaxShapes = 256, kMaxRuns = 64, kRecordClasses = 64;

inline constexpr std::uint64_t kPeerMagic = 0x3176612d62617966;  // "fyab-av1"

struct PeerHeader {
  // --- written once; magic and version stay where they are in all versions
  std::uint64_t magic, seed;
  std::uint32_t version, format, rx_bits, user_ids, type, ep_per_node;
  std::uint64_t map_address;
  // --- for writers; `writing` is not 0 while one has the lock, and stays so if it dies
  std::atomic<std::uint32_t> writing;
  std::atomic<std::uint32_t> next_generation;
  std::atomic<std::uint64_t> changes;     // AddressVector::changes()
  std::atomic<std::uint64_t> used, live;  // 1 + the highest index ever given; peers
  std::atomic<std::uint64_t> words;       // taken from PeerSection::words
  std::atomic<std::uint64_t> lowest;      // no vacancy below this word of PeerSection::vacant2
  std::array<std::atomic<std::uint32_t>, kRecordClasses> free_records;  // lists, by length in words
  // --- index by part: a linear hash table
  std::atomic<std::uint32_t> index_version;  // odd while it is being changed
  std::atomic<std::uint64_t> buckets, indexed;
  std::atomic<std::uint32_t> overflow_used, overflow_free;
  // --- shapes and runs
  std::atomic<std::uint32_t> shapes, runs;
  std::array<std::atomic<std::uint32_t>, kMaxShapes> shape_at;  // word of the shape
  std::array<PeerRun, kMaxRuns> run;
  // --- of a file: its length, and where the chunks are in it (0: not there)
  std::atomic<std::uint64_t> file_length;
  std::array<std::array<std::atomic<std::uint64_t>, kPeerChunks>, kPeerSections> extents;
};
static_assert(offsetof(PeerHeader, version) == 16 && std::atomic<std::uint64_t>::is_always_lock_free);

// Header and chunks. find() is lock-free; make() belongs to writers, one at a time.
class FAB_CAPABILITY("address vector") PeerMemory {
 public:
  virtual ~PeerMemory() = default;
  PeerMemory(const PeerMemory&) = delete;
  PeerMemory& operator=(const PeerMemory&) = delete;

  PeerHeader& header() noexcept { return *header_; }
  const PeerHeader& header() const noexcept { return *header_; }
  std::byte* find(unsigned section, unsigned chunk) const noexcept {
    std::byte* found = at_[section][chunk].load(std::memory_order_acquire);
    return found ? found : attach(section, chunk);
  }
  std::byte* make(unsigned section, unsigned chunk, std::size_t bytes) FAB_REQUIRES(this) {
    if (chunk < kPeerChunks)
      if (std::byte* found = find(section, chunk)) return found;
    return create(section, chunk, bytes);
  }

  // The writers' lock: nobody else changes anything while it is held.
  class FAB_SCOPED_CAPABILITY Lock {
   public:
    explicit Lock(PeerMemory& memory) FAB_ACQUIRE(memory) : memory_(memory) { memory_.lock(); }
    ~Lock() FAB_RELEASE() { memory_.unlock(); }
    Lock(const Lock&) = delete;
    Lock& operator=(const Lock&) = delete;

   private:
    PeerMemory& memory_;
  };
  // Does nothing: says that the lock is held, where the memory is known by another name.
  void assert_held() const noexcept FAB_ASSERT_HELD(this) {}
  virtual bool writable() const noexcept { return true; }

 protected:
  PeerMemory() = default;
  virtual void lock() FAB_ACQUIRE() = 0;
  virtual void unlock() noexcept FAB_RELEASE() = 0;
  virtual std::byte* attach(unsigned section, unsigned chunk) const noexcept = 0;
  virtual std::byte* create(unsigned section, unsigned chunk, std::size_t bytes)
      FAB_REQUIRES(this) = 0;  // throws Error
  void set(unsigned section, unsigned chunk, std::byte* memory) const noexcept {
    at_[section][chunk].store(memory, std::memory_order_release);
  }

  PeerHeader* header_ = nullptr;

 private:
  mutable std::array<std::array<std::atomic<std::byte*>, kPeerChunks>, kPeerSections> at_{};
};

std::unique_ptr<PeerMemory> make_private_peer_memory();

// Bytes of a chunk, the same in every process.
template <class T, unsigned kFirstBits>
constexpr std::size_t peer_chunk_bytes(unsigned chunk) noexcept {
  return sizeof(T) << (kFirstBits + chunk);
}

// The array of one section. Chunk i holds 1 << (kFirstBits + i) items; kFirstBits makes the first chunk about
// a page.
template <class T, PeerSection kSection>
class PeerColumn {
 public:
  static constexpr unsigned kFirstBits = static_cast<unsigned>(std::bit_width(4096 / sizeof(T))) - 1;
  explicit PeerColumn(PeerMemory& memory) noexcept : memory_(memory) {}

  static constexpr unsigned chunk_of(std::uint64_t index) noexcept {
    return static_cast<unsigned>(std::bit_width((index >> kFirstBits) + 1)) - 1;
  }
  static constexpr std::uint64_t start_of(unsigned chunk) noexcept {
    return ((std::uint64_t{1} << chunk) - 1) << kFirstBits;
  }
  T* find(std::uint64_t index) const noexcept {  // null where nothing was made
    const unsigned chunk = chunk_of(index);
    if (chunk >= kPeerChunks) return nullptr;
    std::byte* found = memory_.find(static_cast<unsigned>(kSection), chunk);
    return found ? reinterpret_cast<T*>(found) + (index - start_of(chunk)) : nullptr;
  }
  // No item from this index on was made. What counts items may be damaged, so walks end here at the latest.
  std::uint64_t room() const noexcept {
    unsigned chunk = 0;
    while (chunk < kPeerChunks && memory_.find(static_cast<unsigned>(kSection), chunk)) ++chunk;
    return start_of(chunk);
  }
  T& make(std::uint64_t index) {  // under the lock of the memory
    memory_.assert_held();
    const unsigned chunk = chunk_of(index);
    std::byte* made =
        memory_.make(static_cast<unsigned>(kSection), chunk, peer_chunk_bytes<T, kFirstBits>(chunk));
    return reinterpret_cast<T*>(made)[index - start_of(chunk)];
  }

 private:
  PeerMemory& memory_;
};

}  // namespace fab
