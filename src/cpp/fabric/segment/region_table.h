#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <span>
#include <vector>

#include "fabric/types/types.h"

namespace fab {

// A region as the table keeps it, in memory that peers on the node read. Fields other than `state` and `key`
// do not change while the entry is enabled or closing, and are valid only for a reader that is counted as
// accessing it.
struct alignas(128) RegionEntry {
  std::atomic<std::uint64_t> state;  // generation << 2 | status
  std::atomic<std::uint64_t> key;
  std::uint64_t base;     // what peers add to offsets
  std::uint64_t length;   // bytes
  std::uint64_t address;  // of the first byte in the owner; with several pieces, see `pieces`
  std::uint64_t file_offset;
  std::uint32_t access;
  std::uint32_t flags;  // region_flag
  std::int32_t file;    // descriptor number, in the owner, of the memory file behind the region; -1: none
  std::uint32_t piece_count;  // 1, or the number of buffers that the region runs through
  std::uint32_t piece_block;  // where their pieces are, if more than one
  std::uint32_t endpoint;     // Port::endpoint that the region is bound to; 0: any
  std::atomic<std::uint32_t>
      counters[8];      // 1 + indices of counters that remote writes raise; 0 ends the list; may grow
  std::uint32_t auth;   // Visitor::auth that is needed; with kAuthSet, one bit for each that is enough
  std::uint32_t spans;  // region_flag::kSpans: how many
  std::uint32_t spans_block;
};
static_assert(sizeof(RegionEntry) == 128);
inline constexpr std::uint32_t kAuthSet = 1u << 31;  // in RegionEntry::auth
inline constexpr std::uint32_t kMostInAuthSet = 30;  // the highest number that fits
constexpr bool admits(std::uint32_t auth, std::uint32_t shown) noexcept {
  return (auth & kAuthSet) == 0 ? shown == auth : shown <= kMostInAuthSet && ((auth >> shown) & 1) != 0;
}

namespace region_flag {
inline constexpr std::uint32_t kPersistent = 1;
inline constexpr std::uint32_t kRmaEvent = 2;  // in RMA_EVENT mode: starts disabled, takes counters
inline constexpr std::uint32_t kObserved =
    1u << 17;  // of the table: accesses come as messages, and the owner looks at each
inline constexpr std::uint32_t kSpans = 1u
                                        << 16;  // of the table: only some spans of the region are reachable
inline constexpr std::uint32_t kOwnPages =
    1u << 18;  // of the table: other processes cannot read the memory through this one's addresses (DmaBuf)
}  // namespace region_flag

// What the judge must know of the context that a request comes in through.
struct Port {
  std::atomic<std::uint32_t> endpoint;  // number of the endpoint; never 0, never used again
  std::atomic<std::uint32_t> events;    // 1: remote writes through it count
};

// And of who asks.
struct Visitor {
  const Port& port;
  std::uint32_t auth;  // number, within the domain, of the authorization key that it proved; 0: the domain's
};

enum class RegionStatus : std::uint64_t { vacant, disabled, enabled, closing };
constexpr RegionStatus status_of(std::uint64_t state) noexcept {
  return static_cast<RegionStatus>(state & 3);
}

struct RegionPiece {
  std::uint64_t address;
  std::uint64_t length;
};
struct RegionSpan {
  std::uint64_t offset;
  std::uint64_t length;
};
static_assert(sizeof(RegionPiece) == sizeof(RegionSpan), "a block holds either");

// Reads a region table, in this process or mapped from another one: the one place where a remote request is
// judged.
class RegionView {
 public:
  static constexpr std::uint32_t kMaxRegions = 1u << 21;   // a quarter of the largest index, see grow_index()
  static constexpr std::uint32_t kFirstIndexSlots = 1024;  // the key index doubles when it is half full
  static constexpr std::uint32_t kIndexSizes = 14;         // 1024 … 8 Mi slots
  static constexpr std::uint32_t kMaxRegionPieces = 64;
  static constexpr std::uint32_t kPieceBlocks = 1u << 16;
  static constexpr std::size_t kIndexBytes = std::size_t{4} * kFirstIndexSlots << kIndexSizes;
  static constexpr std::size_t kEntriesOffset = 4096 + kIndexBytes;
  static constexpr std::size_t kPiecesOffset =
      kEntriesOffset + std::size_t{kMaxRegions} * sizeof(RegionEntry);
  static constexpr std::size_t kAreaBytes =
      kPiecesOffset + std::size_t{kPieceBlocks} * kMaxRegionPieces * sizeof(RegionPiece);

  explicit RegionView(std::byte* area) noexcept : area_(area) {}

  RegionEntry& entry(std::uint32_t index) const noexcept;
  // Index of the live entry with `key`, or -1. May be stale by the time it is used: announce the access, then
  // judge.
  std::int64_t find(std::uint64_t key) const noexcept;

  // The verdict on one request, made after the access was announced (AccessSlot::active or the context's
  // lock). On ok, `offset` is where the request starts within the region. `state` must be the value that the
  // entry is expected to have, or 0 for any generation. Order of checks: key, rights, bounds (MR-22 … MR-29).
  Errc judge(const RegionEntry& entry, std::uint64_t key, std::uint64_t state, OpCode op,
             std::uint64_t remote, std::uint64_t length, const Visitor& visitor,
             std::uint64_t& offset) const noexcept;

  // Splits [offset, offset + length) of a judged region into owner addresses. Returns how many; at most
  // kMaxRegionPieces.
  std::size_t pieces(const RegionEntry& entry, std::uint64_t offset, std::uint64_t length,
                     iovec* out) const noexcept;

 protected:
  struct AreaHeader {
    // Which of the kIndexSizes key indices is in force and, above that, how often it has changed: one that
    // comes back is not taken for the one before.
    std::atomic<std::uint64_t> index;
    static constexpr unsigned kSizeBits = 8;
    static std::uint32_t size_of(std::uint64_t word) noexcept {
      return static_cast<std::uint32_t>(word & ((1U << kSizeBits) - 1)) % kIndexSizes;
    }
    void show(std::uint32_t size) noexcept {
      const std::uint64_t changes = index.load(std::memory_order_relaxed) >> kSizeBits;
      index.store((changes + 1) << kSizeBits | size, std::memory_order_release);
    }
  };
  std::uint32_t index_size() const noexcept {
    return AreaHeader::size_of(area_header().index.load(std::memory_order_relaxed));
  }
  AreaHeader& area_header() const noexcept { return *reinterpret_cast<AreaHeader*>(area_); }
  std::atomic<std::uint32_t>* index(std::uint32_t size) const noexcept;
  RegionPiece* piece_block(std::uint32_t block) const noexcept;
  RegionSpan* span_block(std::uint32_t block) const noexcept {
    return reinterpret_cast<RegionSpan*>(piece_block(block));
  }
  bool reachable(const RegionEntry& entry, std::uint64_t offset, std::uint64_t length) const noexcept;

  std::byte* area_;
};

// What the owner of a region table puts into an entry.
struct RegionRecord {
  std::uint64_t key = 0;  // kNoKey: the table chooses one of `key_size` bytes
  std::uint32_t key_size = 8;
  std::uint64_t base = 0;
  std::span<const iovec> buffers;
  std::uint32_t access = 0;
  std::uint32_t flags = 0;
  std::int32_t file = -1;
  std::uint64_t file_offset = 0;
  std::uint32_t auth = 0;
  bool enabled = true;
};

// The owner's side. Calls are safe from any thread.
class RegionTable final : public RegionView {
 public:
  explicit RegionTable(std::byte* area) noexcept : RegionView(area) {}

  // Throws Error(no_key) if the key is in use, Error(no_memory) if the table is full.
  std::uint32_t insert(const RegionRecord& record);
  // Counts remote writes in counter cell `counter`; binds to an endpoint by its number (Port), before it is
  // enabled.
  void bind_counter(std::uint32_t index, std::uint32_t counter);
  void bind_endpoint(std::uint32_t index, std::uint32_t endpoint);
  // An entry that is enabled again has a new generation: what was begun before does not go on.
  void set_enabled(std::uint32_t index, bool enabled);
  // Restricts a region that is not enabled, and that nobody accesses, to `spans` of it, ordered and apart
  // from each other. Throws Error(too_big) beyond kMaxRegionPieces.
  void set_spans(std::uint32_t index, std::span<const RegionSpan> spans);
  void set_auth(std::uint32_t index, std::uint32_t auth) noexcept {
    entry(index).auth = auth;
  }  // while disabled
  // In two steps: after start_close() nobody new gets in; the caller waits until all are out, then calls
  // finish_close().
  void start_close(std::uint32_t index);
  void finish_close(std::uint32_t index) noexcept;
  std::uint32_t size() const noexcept { return live_.load(std::memory_order_relaxed); }

 private:
  // One that nobody can guess if it is of 8 bytes, else the next one in turn, so that it does not come back
  // soon (MR-21). Another region may have it.
  std::uint64_t choose_key(std::uint32_t size);
  // Among many regions the place of a key is far memory: asked for early, it is there when it is needed.
  void fetch_ahead(std::uint64_t key) const noexcept;
  void grow_index();
  std::uint32_t take_block();
  void insert_key(std::uint64_t key, std::uint32_t entry);

  std::mutex mutex_;
  std::vector<std::uint32_t> free_entries_, free_blocks_;
  std::uint32_t entries_used_ = 0, blocks_used_ = 0, index_filled_ = 0;
  std::uint64_t prepared_key_ = kNoKey;  // of 8 bytes, for the next region
  std::uint64_t next_key_ = 0;           // of keys shorter than 8 bytes
  std::atomic<std::uint32_t> live_{0};
};

}  // namespace fab
