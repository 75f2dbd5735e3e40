#pragma once

#include <atomic>
#include <cstdint>
#include <span>
#include <vector>

#include "base/lifetime.h"
#include "base/locks/mutex.h"
#include "fabric/segment/grant_limits.h"
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
  std::uint64_t address;  // of the first byte in the owner; RegionView::pieces() knows the others
  std::uint64_t file_offset;
  std::uint32_t access;
  std::uint32_t flags;  // region_flag
  std::int32_t file;    // descriptor number, in the owner, of the memory file behind the region; -1: none
  std::uint32_t piece_count;  // 1, or the number of buffers that the region runs through
  std::uint32_t piece_block;  // where the pieces are listed, if there are several
  std::uint32_t endpoint;     // ContextRights::endpoint that the region is bound to; 0: any
  // 1 + indices of the counters that remote writes raise. A 0 ends the list, which may grow.
  std::atomic<std::uint32_t> counters[8];
  std::uint32_t auth;   // the Requester::auth that is needed; with kAuthSet: one bit for each that suffices
  std::uint32_t spans;  // how many spans are reachable, with region_flag::kSpans
  std::uint32_t spans_block;
};
static_assert(sizeof(RegionEntry) == 128);
inline constexpr std::uint32_t kAuthSet = 1u << 31;  // in RegionEntry::auth
inline constexpr std::uint32_t kMostInAuthSet = 30;  // the highest Requester::auth that such a set can hold
// In RegionEntry::auth: what is asked for stands in the owner's GrantLimitTable. No requester has this
// number, so the entry costs the judgement of all others nothing.
inline constexpr std::uint32_t kAuthLimited = 1u << 30;
constexpr bool admits(std::uint32_t auth, std::uint32_t shown) noexcept {
  return (auth & kAuthSet) == 0 ? shown == auth : shown <= kMostInAuthSet && ((auth >> shown) & 1) != 0;
}

namespace region_flag {
inline constexpr std::uint32_t kPersistent = 1;
inline constexpr std::uint32_t kRmaEvent = 2;  // in RMA_EVENT mode: starts disabled, takes counters
// The library sets the flags below.
inline constexpr std::uint32_t kSpans = 1u << 16;     // only some spans of the region are reachable
inline constexpr std::uint32_t kObserved = 1u << 17;  // accesses come as messages, so the owner sees each
// Other processes cannot read the memory through this process's addresses (DmaBuf).
inline constexpr std::uint32_t kOwnPages = 1u << 18;
inline constexpr std::uint32_t kGrant = 1u << 19;       // a further key to a part of another entry's memory
inline constexpr std::uint32_t kWasEnabled = 1u << 20;  // so there may have been puts
}  // namespace region_flag

// What remote requests that come in through one context may do.
struct ContextRights {
  std::atomic<std::uint32_t> endpoint;  // number of the endpoint; never 0, never used again
  std::atomic<std::uint32_t> events;    // 1: remote writes through it count
  // Counters of the context itself, as index + 1; 0: none. Low half: it counts puts, and atomics that modify
  // memory. High half: gets, and atomics that fetch.
  std::atomic<std::uint64_t> counters;
  static constexpr unsigned kReadCounter = 32;  // bits below it
};

// Who makes a request, as far as judge() must know.
struct Requester {
  const ContextRights& rights;
  std::uint32_t auth;  // number, within the domain, of the authorization key that it proved; 0: the domain's
  // Only the owner of the table knows what follows; without it no limited grant admits the requester.
  const GrantLimitTable* limits = nullptr;
  const std::vector<Part>* names = nullptr;  // the parts that it has proven to be
};

// What a request wants of a region.
struct RegionAccess {
  std::uint64_t key;
  std::uint64_t state;  // that the entry is expected to have; 0: any generation
  OpCode op;
  std::uint64_t remote, length;  // where, as peers address the region, and how many bytes
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
  // Index of the live entry with `key`, or -1. It may be stale by the time it is used: show the access in the
  // access slot, then judge.
  std::int64_t find(std::uint64_t key) const noexcept;

  // The verdict on one request. Before the call the access is made visible to the owner: by
  // AccessSlot::active, or within the owner by the context's lock. On ok, `offset` is where the request
  // starts within the region. Checks the key first, then rights, then bounds (fi_mr(3)).
  Errc judge(const RegionEntry& entry, const RegionAccess& wanted, const Requester& requester,
             std::uint64_t& offset) const noexcept;

  // Splits [offset, offset + length) of a judged region into owner addresses. Returns how many; at most
  // kMaxRegionPieces.
  std::size_t pieces(const RegionEntry& entry, std::uint64_t offset, std::uint64_t length,
                     iovec* out) const noexcept;

 protected:
  struct AreaHeader {
    // Which of the kIndexSizes key indices is in force and, above that, how often that has changed. The count
    // tells an index that comes into force again from its earlier contents.
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
  // Judges all but whether the region is enabled.
  Errc judge_rights(const RegionEntry& entry, const RegionAccess& wanted, const Requester& requester,
                    std::uint64_t& offset) const noexcept;
  bool within_limits(const RegionEntry& entry, const Requester& requester) const noexcept;

  std::byte* area_;
};

inline Errc RegionView::judge_rights(const RegionEntry& entry, const RegionAccess& wanted,
                                     const Requester& requester, std::uint64_t& offset) const noexcept {
  const std::uint64_t remote = wanted.remote, length = wanted.length;
  if (!admits(entry.auth, requester.auth) && !within_limits(entry, requester)) return Errc::key_rejected;
  if (entry.endpoint != 0 && entry.endpoint != requester.rights.endpoint.load(std::memory_order_relaxed))
    return Errc::key_rejected;
  const std::uint32_t needed = wanted.op == OpCode::read ? access::kRemoteRead : access::kRemoteWrite;
  if ((entry.access & needed) == 0) return Errc::access;
  offset = remote - entry.base;
  if (remote < entry.base || offset > entry.length || length > entry.length - offset) return Errc::bounds;
  if ((entry.flags & region_flag::kSpans) != 0 && !reachable(entry, offset, length)) return Errc::bounds;
  return Errc::ok;
}

inline Errc RegionView::judge(const RegionEntry& entry, const RegionAccess& wanted,
                              const Requester& requester, std::uint64_t& offset) const noexcept {
  const std::uint64_t now = entry.state.load(std::memory_order_seq_cst);
  if (status_of(now) != RegionStatus::enabled || (wanted.state != 0 && wanted.state != now) ||
      entry.key.load(std::memory_order_relaxed) != wanted.key)
    return Errc::key_rejected;
  return judge_rights(entry, wanted, requester, offset);
}

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
  // Remote writes to the region raise counter `counter` of the segment. Throws Error(too_big) for a ninth.
  void bind_counter(std::uint32_t index, std::uint32_t counter);
  // Only requests through this ContextRights::endpoint reach the region. To be called before the region is
  // enabled.
  void bind_endpoint(std::uint32_t index, std::uint32_t endpoint);
  // An entry that is enabled again has a new generation, so that accesses that began before do not go on.
  void set_enabled(std::uint32_t index, bool enabled);
  // Restricts a region to `spans` of it, which are in rising order and do not touch. The region is not
  // enabled, and nobody accesses it. Throws Error(too_big) beyond kMaxRegionPieces.
  void set_spans(std::uint32_t index, std::span<const RegionSpan> spans);
  // Sets RegionEntry::auth of a region that is not enabled.
  void set_auth(std::uint32_t index, std::uint32_t auth) noexcept;
  // From now on the limits decide in place of RegionEntry::auth. The region is not enabled; they go with it.
  void set_limits(std::uint32_t index, GrantLimits limits);
  // Whether there may be notices of puts into the region: peers may move bytes there themselves.
  bool told_of(std::uint32_t index) const noexcept {
    const RegionEntry& slot = entry(index);
    return (slot.access & access::kRemoteWrite) != 0 &&
           (slot.flags & (region_flag::kObserved | region_flag::kOwnPages)) == 0;
  }
  // Whether the requester had the rights for a put that is told of now: the region may have been disabled
  // since, or be closing.
  bool had_put_rights(std::uint64_t key, std::uint64_t remote, std::uint64_t length,
                      const Requester& requester) const noexcept;
  const GrantLimitTable& limits() const noexcept FAB_LIFETIME_BOUND { return limits_; }
  // A region is closed in two steps: after start_close() no access begins; the caller waits until none is
  // under way, then calls finish_close().
  void start_close(std::uint32_t index);
  void finish_close(std::uint32_t index) noexcept;
  std::uint32_t size() const noexcept { return live_.load(std::memory_order_relaxed); }

 private:
  // Keys of 8 bytes are random, so that nobody can guess them; shorter ones are counted up, so that the key
  // of a closed region does not come back soon. Another region may have the result.
  std::uint64_t choose_key(std::uint32_t size) FAB_REQUIRES(mutex_);
  // Prefetches the key's slot of the index, which with many regions is not in the cache.
  void fetch_ahead(std::uint64_t key) const noexcept;
  void grow_index() FAB_REQUIRES(mutex_);
  std::uint32_t take_block() FAB_REQUIRES(mutex_);
  void insert_key(std::uint64_t key, std::uint32_t entry) FAB_REQUIRES(mutex_);

  mutable Mutex mutex_;  // held while an entry changes, unless only its state does
  std::vector<std::uint32_t> free_entries_ FAB_GUARDED_BY(mutex_);
  std::vector<std::uint32_t> free_blocks_ FAB_GUARDED_BY(mutex_);
  std::uint32_t entries_used_ FAB_GUARDED_BY(mutex_) = 0;
  std::uint32_t blocks_used_ FAB_GUARDED_BY(mutex_) = 0;
  std::uint32_t index_filled_ FAB_GUARDED_BY(mutex_) = 0;
  std::uint64_t prepared_key_ FAB_GUARDED_BY(mutex_) = kNoKey;  // the next key of 8 bytes
  std::uint64_t next_key_ FAB_GUARDED_BY(mutex_) = 0;           // the next shorter key
  std::atomic<std::uint32_t> live_{0};
  GrantLimitTable limits_;
};

}  // namespace fab
