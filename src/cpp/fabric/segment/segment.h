#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "base/deadline.h"
#include "base/locks/mutex.h"
#include "base/memory/mapping.h"
#include "base/process/process.h"
#include "fabric/segment/region_table.h"
#include "fabric/types/auth_key.h"
#include "fabric/types/error.h"

namespace fab {

// The memory of a domain that processes of the same user on the node may map. It is two files. Only the owner
// writes the *table*, which the kernel keeps from all others (make_published_memory): identity, doorbells,
// rights, the domain's channels, and the region table. So the owner trusts what it reads there. All may write
// the *board*: what context has work, access slots and counters. Whatever is read there is checked before
// use, by the owner as well. All offsets are fixed; pages cost memory only once used. What each field is, and
// who may write it: docs/shm.md.
inline constexpr std::uint64_t kSegmentMagic = 0x31676573'62616670;  // "pfabseg1"
inline constexpr std::uint32_t kMaxContexts = 64;
inline constexpr std::uint32_t kMaxSlots = 4096;
inline constexpr std::uint32_t kMaxCounters = 65536;
inline constexpr std::uint32_t kMaxChannels = 16384;

// How to wake the progress of one context: raise `work`, then, if it sleeps, write one byte to its doorbell
// pipe.
struct alignas(64) ContextSlot {
  std::atomic<std::uint32_t> work;      // raised after a change that the context must look at
  std::atomic<std::uint32_t> sleeping;  // 1 while nobody polls
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
  // Raised, before the value, with each put that tells its target by a notice (FrameType::notify), which is
  // in the ring by then: Counter::read() has it read.
  std::atomic<std::uint64_t> notices;
};

// Which authorization keys a context takes: a peer that has one of them finds its number here.
// Peers look while keys are replaced: a tag stays where it is for as long as its key is taken, and what is
// read of one that changes is the tag of no key.
struct KeyTags {
  struct Tag {
    std::atomic<std::uint32_t> number;  // Requester::auth
    // HMAC of salt, context slot and number under the key; all zero: no key is needed; all ones: withdrawn.
    std::atomic<std::uint32_t> proof[8];
  };
  std::atomic<std::uint32_t> count;
  Tag tags[kMaxAuthKeys];
};

// A channel that the domain has made to another one, as only the domain can say: any process of the user may
// write the channel itself, and show it in an access slot under any name.
struct MadeChannel {
  std::uint8_t target_domain[16] = {};
  std::uint16_t target_context_slot = 0;
  std::uint16_t context_slot = 0, context = 0;  // of the maker: SegmentHeader::doorbells, Part::context
  std::uint16_t zero = 0;
  friend bool operator==(const MadeChannel&, const MadeChannel&) = default;
};
struct PublishedChannel {
  std::atomic<std::uint64_t> inode;  // of its file; 0: free
  MadeChannel made;
};

struct SegmentHeader {
  // Magic and layout stay where they are in all versions.
  std::uint64_t magic;
  std::uint32_t layout;  // versions::kSharedLayout
  std::int32_t pid;      // of the owner, as peers know it from the domain's name
  std::uint64_t start_time;
  std::uint8_t domain_id[16];
  std::uint8_t auth_salt[16];
  std::uint64_t mapped_at, board_mapped_at;  // where the owner has this header, and the board
  std::int32_t board_fd;                     // in the owner
  std::atomic<std::uint32_t> closed;
  std::atomic<std::uint32_t> waiter_slot;  // the context in which those sleep who wait for a counter
  // Low half: descriptor + 1 of the pipe's write end in the owner, opened through /proc; 0: the context is
  // closed. High half: counts the pipes, because descriptors are used again.
  std::atomic<std::uint64_t> doorbells[kMaxContexts];
  struct {
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

// A process lives, and the domain that is meant is not there any more.
class DomainGone : public Error {
 public:
  explicit DomainGone(const ProcessId& owner);
};

struct BoardHeader {
  std::atomic<std::uint32_t> slots_used;  // the slots from this number on were never used
  ContextSlot contexts[kMaxContexts];
};

class Segment {
 public:
  // Makes the segment of a domain of this process.
  static Segment create(const std::uint8_t (&domain_id)[16]);
  // Maps the segment of another process by its owner and descriptor number. Throws Error(unreachable) that
  // says why it cannot be used: gone, of another user, not ours to open, not sealed, or
  // another domain or process than the one that is named; OtherLayout. All that can be is found out before
  // anything is mapped.
  static Segment attach(const ProcessId& owner, int fd, const std::uint8_t (&domain_id)[16]);

  // Parts of the table, to which only the owner may write.
  SegmentHeader& header() const noexcept { return *reinterpret_cast<SegmentHeader*>(table_.data()); }
  std::byte* region_area() const noexcept { return table_.data() + kRegionsOffset; }
  RegionView regions() const noexcept { return RegionView(region_area()); }
  int fd() const noexcept { return file_.get(); }
  // Parts of the board.
  BoardHeader& board() const noexcept { return *at<BoardHeader>(0); }
  AccessSlot* slots() const noexcept { return at<AccessSlot>(kSlotsOffset); }
  CounterSlot* counters() const noexcept { return at<CounterSlot>(kCountersOffset); }
  // The number of slots that may be in use.
  std::uint32_t slots_used() const noexcept { return std::min(board().slots_used.load(), kMaxSlots); }
  // The owner's address of its domain id, and of what lies at `here` on the board of this mapping.
  void* id_in_owner() const noexcept {
    return reinterpret_cast<void*>(header().mapped_at + offsetof(SegmentHeader, domain_id));
  }
  void* in_owner(const void* here) const noexcept {
    const auto offset = static_cast<std::uint64_t>(static_cast<const std::byte*>(here) - board_.data());
    return reinterpret_cast<void*>(header().board_mapped_at + offset);
  }

  // --- the channels that this domain makes
  // Owner: says that the file with this inode is a channel of this domain; returns its number here. Throws
  // Error(no_memory) if there are kMaxChannels. Safe from any thread.
  std::uint32_t publish(std::uint64_t inode, const MadeChannel& channel);
  void withdraw(std::uint32_t number) noexcept;
  // Whether the owner says so.
  bool has_made(std::uint32_t number, std::uint64_t inode, const MadeChannel& channel) const noexcept;

  const ContextRights& rights_of(std::uint32_t context_slot) const noexcept {
    return header().context_rights.of[context_slot % kMaxContexts];
  }

  // Whether a peer on the node is in the middle of an access, to whatever region.
  bool is_accessed() const noexcept;
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
    return reinterpret_cast<T*>(board_.data() + offset);
  }
  PublishedChannel* channels() const noexcept {
    return reinterpret_cast<PublishedChannel*>(table_.data() + kChannelsOffset);
  }
  static constexpr std::size_t kChannelsOffset = 64 * 1024;
  static constexpr std::size_t kRegionsOffset = kChannelsOffset + kMaxChannels * sizeof(PublishedChannel);
  static constexpr std::size_t kTableBytes = kRegionsOffset + RegionView::kAreaBytes;
  static_assert(sizeof(SegmentHeader) <= kChannelsOffset && kRegionsOffset % 4096 == 0);
  static constexpr std::size_t kSlotsOffset = 64 * 1024;
  static constexpr std::size_t kCountersOffset = kSlotsOffset + kMaxSlots * sizeof(AccessSlot);
  static constexpr std::size_t kBoardBytes = kCountersOffset + kMaxCounters * sizeof(CounterSlot);
  static_assert(sizeof(BoardHeader) <= kSlotsOffset);
  static_assert(offsetof(SegmentHeader, layout) == 8);

  OwnFd file_, board_file_;  // the board's is the owner's alone
  Mapping table_, board_;
  std::unique_ptr<Mutex> channels_mutex_ = std::make_unique<Mutex>();
};

// What an access did: put or modified, got or fetched, or both.
enum class Effects : std::uint8_t { none = 0, stored = 1, fetched = 2, both = 3 };
constexpr Effects effects(bool stored, bool fetched) noexcept {
  return static_cast<Effects>((stored ? 1 : 0) | (fetched ? 2 : 0));
}

// Whether any counter is there that an access through the context to the region may raise.
inline bool is_counted(const RegionEntry& entry, const ContextRights& rights) noexcept {
  return entry.counters[0].load(std::memory_order_acquire) != 0 ||
         rights.counters.load(std::memory_order_seq_cst) != 0;
}
// Counts one access, after its data: on the counters of `entry` if it stored, unless the endpoint behind
// `rights` was opened without remote-write events, and on those of the context. True if somebody waits for
// one of the counters: then the caller wakes the context in the waiter slot, by its doorbell from another
// process, or by EndpointServices::wake_domain within the owner. `noticed`: CounterSlot::notices.
[[nodiscard]] bool raise_counters(const Segment& target, const RegionEntry& entry,
                                  const ContextRights& rights, Effects effects,
                                  bool noticed = false) noexcept;

// Tells in `segment` which keys the context in `context_slot` takes from now on, at most kMaxAuthKeys
// secrets.
void set_auth_keys(Segment& segment, std::uint32_t context_slot, std::span<const AuthKey> keys) noexcept;
// The Requester::auth of a peer that comes to the context in `context_slot` with `secret`; nothing if the
// context does not take that key.
std::optional<std::uint32_t> authorized(const Segment& segment, std::uint32_t context_slot,
                                        const std::string& secret);

}  // namespace fab
