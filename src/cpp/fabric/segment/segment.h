#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "base/deadline.h"
#include "base/memory/mapping.h"
#include "base/process/process.h"
#include "fabric/segment/region_table.h"
#include "fabric/types/auth_key.h"
#include "fabric/types/error.h"

namespace fab {

// The memory of a domain that processes of the same user on the node may map: identity, doorbells, access
// slots, counters and the region table. All offsets are fixed; pages cost memory only once used. Any process
// of the user may write any of it, so readers check indices and lengths before use.
inline constexpr std::uint64_t kSegmentMagic = 0x31676573'62616670;  // "pfabseg1"
inline constexpr std::uint32_t kMaxContexts = 64;
inline constexpr std::uint32_t kMaxSlots = 4096;
inline constexpr std::uint32_t kMaxCounters = 65536;

// How to wake the progress of one context: raise `work`, then, if it sleeps, write one byte to its doorbell
// pipe.
struct alignas(64) ContextSlot {
  std::atomic<std::uint32_t> work;      // raised after a change that the context must look at
  std::atomic<std::uint32_t> sleeping;  // 1 while nobody polls
  // Low half: descriptor + 1 of the pipe's write end in the owner, opened through /proc; 0: the context is
  // closed. High half: counts the pipes, because descriptors are used again.
  std::atomic<std::uint64_t> doorbell;
};

// A process as one word: process numbers have 22 bits, and start times fit into 41.
struct SlotOwner {
  static constexpr unsigned kPidBits = 22;
  static constexpr std::uint64_t kClaiming = std::uint64_t{1}
                                             << 63;  // the rest of the slot is a former owner's

  static constexpr std::uint64_t pack(const ProcessId& process) noexcept {
    return (process.start_time << kPidBits | static_cast<std::uint32_t>(process.pid)) & ~kClaiming;
  }
  static constexpr ProcessId unpack(std::uint64_t word) noexcept {
    return {static_cast<std::int32_t>(word & ((1U << kPidBits) - 1)), (word & ~kClaiming) >> kPidBits};
  }
};

// Shows what one context, of any process, is about to touch in the domain's memory when it moves bytes there
// by itself.
struct alignas(128) AccessSlot {
  std::atomic<std::uint64_t> owner;  // a SlotOwner, 0: free; one word, so that nobody sees half a claim
  // Index + 1 of the region being accessed, 0 if none. A region is not taken away while a slot of a living
  // process shows it.
  std::atomic<std::uint64_t> active;
  // Where the claimant's messages are: see providers/shm/layout.h.
  std::atomic<std::int32_t> channel_fd;
  // Raised after channel_fd was taken back, so that a later channel is not taken for the one before.
  std::atomic<std::uint32_t> channel_epoch;
  std::uint32_t target_context;
  // The target does not take the channel of epoch `refused` >> 32: the low half is the layout that it found,
  // in the channel or in the claimant's segment, in place of its own.
  std::atomic<std::uint64_t> refused;
  // Written through the owner's memory, by cross-memory attach, in front of what the claimant puts there.
  std::atomic<std::uint64_t> proof;
};

struct alignas(64) CounterSlot {
  std::atomic<std::uint64_t> value;
  std::atomic<std::uint64_t> errors;
  // If this is not 0, whoever changes the counter wakes SegmentHeader::waiter_slot.
  std::atomic<std::uint32_t> waiters;
};

// Which authorization keys a context takes: a peer that has one of them finds its number here.
struct KeyTags {
  struct Tag {
    std::uint32_t number;  // Requester::auth
    std::uint8_t
        proof[32];  // HMAC of salt, context slot and number under the key; all zero: no key is needed
  };
  std::atomic<std::uint32_t> count;
  Tag tags[kMaxAuthKeys];
};

struct SegmentHeader {
  // Magic and layout stay where they are in all versions.
  std::uint64_t magic;
  std::uint32_t layout;  // versions::kSharedLayout
  std::int32_t pid;
  std::uint64_t start_time;
  std::uint8_t domain_id[16];
  std::uint8_t auth_salt[16];
  std::uint64_t mapped_at;  // where the owner has this header
  std::atomic<std::uint32_t> closed;
  std::atomic<std::uint32_t> slots_used;   // the slots from this number on were never used
  std::atomic<std::uint32_t> waiter_slot;  // the context in which those sleep who wait for a counter
  ContextSlot contexts[kMaxContexts];
  // Apart from the slots above, whose cache lines are written all the time.
  struct alignas(64) {
    ContextRights of[kMaxContexts];
  } context_rights;
  KeyTags keys[kMaxContexts];
};

// What another process shows has another layout than this library reads.
class OtherLayout : public Error {
 public:
  // "process 7" or "the channel of process 7"
  OtherLayout(const std::string& whose, std::uint32_t found);
  std::uint32_t found() const noexcept { return found_; }

 private:
  std::uint32_t found_;
};

class Segment {
 public:
  // Makes the segment of a domain of this process.
  static Segment create(const std::uint8_t (&domain_id)[16]);
  // Maps the segment of another process by its owner and descriptor number. Throws Error(unreachable) that
  // says why it cannot be used: gone, not ours to open, or another domain by now; OtherLayout.
  static Segment attach(const ProcessId& owner, int fd, const std::uint8_t (&domain_id)[16]);

  SegmentHeader& header() const noexcept { return *reinterpret_cast<SegmentHeader*>(mapping_.data()); }
  AccessSlot* slots() const noexcept { return at<AccessSlot>(kSlotsOffset); }
  CounterSlot* counters() const noexcept { return at<CounterSlot>(kCountersOffset); }
  std::byte* region_area() const noexcept { return mapping_.data() + kRegionsOffset; }
  RegionView regions() const noexcept { return RegionView(region_area()); }
  int fd() const noexcept { return file_.get(); }
  // The owner's address of what lies at `here` in this mapping.
  void* in_owner(const void* here) const noexcept {
    const auto offset = static_cast<std::uint64_t>(static_cast<const std::byte*>(here) - mapping_.data());
    return reinterpret_cast<void*>(header().mapped_at + offset);
  }

  const ContextRights& rights_of(std::uint32_t context_slot) const noexcept {
    return header().context_rights.of[context_slot % kMaxContexts];
  }

  // Claims a slot that is free or whose process is dead. -1: all kMaxSlots are in use.
  int claim_slot(const ProcessId& claimant) const;
  // Frees a slot if its process is dead.
  static void free_if_dead(AccessSlot& slot) noexcept;
  // Waits until no living process accesses region `index`; false: out of time. Slots of dead processes are
  // freed on the way.
  bool wait_unused(std::uint32_t index, Deadline deadline) const;
  // The id of a process that accesses region `index`; 0: none does.
  std::int32_t user_of(std::uint32_t index) const;

 private:
  template <class T>
  T* at(std::size_t offset) const noexcept {
    return reinterpret_cast<T*>(mapping_.data() + offset);
  }
  static constexpr std::size_t kSlotsOffset = 64 * 1024;
  static constexpr std::size_t kCountersOffset = kSlotsOffset + kMaxSlots * sizeof(AccessSlot);
  static constexpr std::size_t kRegionsOffset = kCountersOffset + kMaxCounters * sizeof(CounterSlot);
  static constexpr std::size_t kSize = kRegionsOffset + RegionView::kAreaBytes;
  static_assert(sizeof(SegmentHeader) <= kSlotsOffset);
  static_assert(offsetof(SegmentHeader, layout) == 8);

  OwnFd file_;
  Mapping mapping_;
};

// Counts one remote write on every counter of `entry`, after its data; nothing if the endpoint behind
// `rights` was opened without remote-write events. True if somebody waits for one of the counters: then the
// caller wakes the context in the waiter slot, by its doorbell from another process, or by
// EndpointServices::wake_domain within the owner.
[[nodiscard]] bool raise_counters(const Segment& target, const RegionEntry& entry,
                                  const ContextRights& rights) noexcept;

// Tells in `segment` which keys the context in `context_slot` takes, at most kMaxAuthKeys.
void set_auth_keys(Segment& segment, std::uint32_t context_slot, std::span<const AuthKey> keys);
// The Requester::auth of a peer that comes to the context in `context_slot` with `secret`; nothing if the
// context does not take that key.
std::optional<std::uint32_t> authorized(const Segment& segment, std::uint32_t context_slot,
                                        const std::string& secret);

}  // namespace fab
