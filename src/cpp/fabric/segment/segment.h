#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "base/deadline.h"
#include "base/memory/mapping.h"
#include "base/process/process.h"
#include "fabric/segment/region_table.h"
#include "fabric/types/auth_key.h"

namespace fab {

// The memory of a domain that processes of the same user on the node may map: identity, doorbells, access
// slots, counters and the region table. All offsets are fixed; pages cost memory only once used. Everything
// in it may be written by any process of the user, so readers check indices and lengths before use.
inline constexpr std::uint64_t kSegmentMagic = 0x31676573'62616670;  // "pfabseg1"
inline constexpr std::uint32_t kSegmentVersion = 7;
inline constexpr std::uint32_t kMaxContexts = 64;
inline constexpr std::uint32_t kMaxSlots = 4096;
inline constexpr std::uint32_t kMaxCounters = 65536;

// How to wake the progress of one context: raise `work`, then, if it sleeps, write one byte to its doorbell
// pipe.
struct alignas(64) ContextCell {
  std::atomic<std::uint32_t> work;      // raised after something was put where the context must look
  std::atomic<std::uint32_t> sleeping;  // 1 while nobody polls
  // Low half: descriptor + 1 of the pipe's write end in the owner, opened through /proc; 0: the context is
  // closed. High half: raised with each pipe, because descriptors are used again.
  std::atomic<std::uint64_t> doorbell;
};

// A process as one word: process numbers have 22 bits, and start times do not outgrow 41.
struct SlotOwner {
  static constexpr unsigned kPidBits = 22;
  static constexpr std::uint64_t kClaiming = std::uint64_t{1} << 63;  // all else is still the last owner's

  static constexpr std::uint64_t pack(const ProcessId& process) noexcept {
    return (process.start_time << kPidBits | static_cast<std::uint32_t>(process.pid)) & ~kClaiming;
  }
  static constexpr ProcessId unpack(std::uint64_t word) noexcept {
    return {static_cast<std::int32_t>(word & ((1U << kPidBits) - 1)), (word & ~kClaiming) >> kPidBits};
  }
};

// One for each context of another process (or of this one) that moves bytes in and out of the domain's memory
// itself.
struct alignas(128) AccessSlot {
  std::atomic<std::uint64_t> owner;  // a SlotOwner, 0: free; one word, so that nobody sees half a claim
  // Index + 1 of the region being accessed, 0 if none. A region is not taken away while a slot of a living
  // process shows it.
  std::atomic<std::uint64_t> active;
  // Where the claimant's messages are: see providers/shm/layout.h.
  std::atomic<std::int32_t> channel_fd;
  std::atomic<std::uint32_t> channel_epoch;  // raised after channel_fd was taken back: another is another's
  std::uint32_t target_context;
  // Written through the owner's memory, by cross-memory attach, in front of what the claimant puts there.
  std::atomic<std::uint64_t> proof;
};

struct alignas(64) CounterCell {
  std::atomic<std::uint64_t> value;
  std::atomic<std::uint64_t> errors;
  std::atomic<std::uint32_t>
      waiters;  // whoever changes the cell wakes SegmentHeader::waiter_cell if this is not 0
};

// Which authorization keys a context takes: who has one finds its number.
struct KeyTags {
  struct Tag {
    std::uint32_t number;    // Visitor::auth
    std::uint8_t proof[32];  // HMAC of salt, cell and number under the key; all zero: none is asked for
  };
  std::atomic<std::uint32_t> count;
  Tag tags[kMaxAuthKeys];
};

struct SegmentHeader {
  std::uint64_t magic;
  std::uint32_t version;
  std::int32_t pid;
  std::uint64_t start_time;
  std::uint8_t domain_id[16];
  std::uint8_t auth_salt[16];
  std::uint64_t mapped_at;  // where the owner has this header
  std::atomic<std::uint32_t> closed;
  std::atomic<std::uint32_t> slots_used;   // all slots from here on are free
  std::atomic<std::uint32_t> waiter_cell;  // the context that those lead who wait for a counter
  ContextCell contexts[kMaxContexts];
  struct alignas(64) {
    Port of[kMaxContexts];
  } ports;  // apart from the cells, whose cache lines are written all the time
  KeyTags keys[kMaxContexts];
};

class Segment {
 public:
  // Makes the segment of a domain of this process.
  static Segment create(const std::uint8_t (&domain_id)[16]);
  // Maps another one by its owner and descriptor number; throws Error(unreachable) saying why it cannot be
  // used (gone, not ours to open, another version, another domain by now).
  static Segment attach(const ProcessId& owner, int fd, const std::uint8_t (&domain_id)[16]);

  SegmentHeader& header() const noexcept { return *reinterpret_cast<SegmentHeader*>(mapping_.data()); }
  AccessSlot* slots() const noexcept { return at<AccessSlot>(kSlotsOffset); }
  CounterCell* counters() const noexcept { return at<CounterCell>(kCountersOffset); }
  std::byte* region_area() const noexcept { return mapping_.data() + kRegionsOffset; }
  RegionView regions() const noexcept { return RegionView(region_area()); }
  int fd() const noexcept { return file_.get(); }
  // The owner's address of what lies at `here` in this mapping.
  void* in_owner(const void* here) const noexcept {
    const auto offset = static_cast<std::uint64_t>(static_cast<const std::byte*>(here) - mapping_.data());
    return reinterpret_cast<void*>(header().mapped_at + offset);
  }

  const Port& port(std::uint32_t cell) const noexcept { return header().ports.of[cell % kMaxContexts]; }

  // Claims a free slot for this process, or one whose process is dead. -1: all kMaxSlots are in use.
  int claim_slot(const ProcessId& claimant) const;
  // Frees a slot if its process is dead.
  static void free_if_dead(AccessSlot& slot) noexcept;
  // Waits until no living process accesses region `index`; false: out of time. Slots of dead processes are
  // freed on the way.
  bool wait_unused(std::uint32_t index, Deadline deadline) const;
  // Process id of one that accesses region `index`; 0: nobody does.
  std::int32_t user_of(std::uint32_t index) const;

 private:
  template <class T>
  T* at(std::size_t offset) const noexcept {
    return reinterpret_cast<T*>(mapping_.data() + offset);
  }
  static constexpr std::size_t kSlotsOffset = 64 * 1024;
  static constexpr std::size_t kCountersOffset = kSlotsOffset + kMaxSlots * sizeof(AccessSlot);
  static constexpr std::size_t kRegionsOffset = kCountersOffset + kMaxCounters * sizeof(CounterCell);
  static constexpr std::size_t kSize = kRegionsOffset + RegionView::kAreaBytes;
  static_assert(sizeof(SegmentHeader) <= kSlotsOffset);

  OwnFd file_;
  Mapping mapping_;
};

// Counts one remote write on every counter of `entry`, after its data. True if somebody waits for one of
// them: the caller then wakes the waiter cell (from another process: by its doorbell; inside:
// EndpointServices::wake_domain). Only endpoints opened for it count (MR-60).
[[nodiscard]] bool raise_counters(const Segment& target, const RegionEntry& entry, const Port& port) noexcept;

// Tells in `segment` which keys context `cell` takes, at most kMaxAuthKeys.
void set_auth_keys(Segment& segment, std::uint32_t cell, std::span<const AuthKey> keys);
// Visitor::auth of who comes to that context with `secret`; nothing: it may not.
std::optional<std::uint32_t> authorized(const Segment& segment, std::uint32_t cell,
                                        const std::string& secret);

}  // namespace fab
