#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "fabric/types/error.h"

namespace fab {

class Operation;

using PeerId = std::uint64_t;  // a handle of an AddressVector
inline constexpr PeerId kNoPeer = ~std::uint64_t{0};
inline constexpr std::uint64_t kNoKey = ~std::uint64_t{0};

enum class OpCode : std::uint8_t {
  write,
  read,
  atomic,
  fetch_atomic,
  compare_atomic,
  send,
  receive,
  control,  // a request of a link, on a path over a Session; `operation` is a LinkOperation
};
constexpr bool is_atomic(OpCode op) noexcept { return op >= OpCode::atomic && op <= OpCode::compare_atomic; }

// Names and meaning as in fi_atomic(3).
enum class AtomicOp : std::uint8_t {
  min,
  max,
  sum,
  prod,
  lor,
  land,
  bor,
  band,
  lxor,
  bxor,
  atomic_read,
  atomic_write,
  cswap,
  cswap_ne,
  cswap_le,
  cswap_lt,
  cswap_ge,
  cswap_gt,
  mswap,
};
inline constexpr int kAtomicOps = 19;
constexpr bool needs_compare(AtomicOp op) noexcept { return op >= AtomicOp::cswap; }

enum class DataType : std::uint8_t { i8, u8, i16, u16, i32, u32, i64, u64, f32, f64 };
inline constexpr int kDataTypes = 10;
constexpr std::size_t size_of(DataType type) noexcept {
  constexpr std::uint8_t kSizes[] = {1, 1, 2, 2, 4, 4, 8, 8, 4, 8};
  return kSizes[static_cast<std::size_t>(type)];
}

// How far an operation must have come to count as complete (fi_cq(3)).
enum class Delivery : std::uint8_t {
  inject,    // the local buffer may be reused
  transmit,  // the peer's node has it: it outlives this process
  delivery,  // visible at the target: the default
  commit,    // durable at the target; needs a region registered as persistent
};

// Access rights of a region (fi_mr(3)).
namespace access {
inline constexpr std::uint32_t kSend = 1, kRecv = 2, kRead = 4, kWrite = 8, kRemoteRead = 16,
                               kRemoteWrite = 32;
inline constexpr std::uint32_t kLocal = 15, kRemote = 48, kAll = 63;
inline constexpr std::uint32_t kHidden = 64;  // in a RemoteRegion: only devices reach its memory (DmaBuf)
}  // namespace access

// What a domain demands of its users when they register memory (fi_mr(3)); 0 is scalable mode.
namespace mr_mode {
inline constexpr std::uint32_t kLocal = 1 << 2, kRaw = 1 << 3, kVirtAddr = 1 << 4, kAllocated = 1 << 5,
                               kProvKey = 1 << 6, kMmuNotify = 1 << 7, kRmaEvent = 1 << 8, kEndpoint = 1 << 9;
inline constexpr std::uint32_t kBasic = 1 << 0;
}  // namespace mr_mode

// Flags of a completion: what kind of event it tells of.
namespace completion_flag {
inline constexpr std::uint32_t kRma = 1, kRead = 2, kWrite = 4, kAtomic = 8, kRemoteWrite = 16,
                               kRemoteData = 32, kMessage = 64, kTagged = 128, kSend = 256, kRecv = 512,
                               kMultiReceive = 1024,  // the memory of a receive for many is free again
    kMore = 2048,                                     // more entries of the same operation follow
    kAuthKey = 4096,  // `source` names the authorization key of a peer that is not in the address vector
    kLate = 8192;     // an operation that had its entry before has failed after all
}

namespace transfer_flag {
inline constexpr std::uint16_t kRemoteData = 1;    // deliver Transfer::data to the target's completion queue
inline constexpr std::uint16_t kTagged = 4;        // sends: a tagged message
inline constexpr std::uint16_t kUnordered = 8;     // sends: may overtake others where there are rails
inline constexpr std::uint16_t kPastCaches = 256;  // one part of a copy larger than the caches: bypass them
// Atomics: one of the pieces of Operation::array, which count as one operation at the target.
inline constexpr std::uint16_t kPiece = 512;
inline constexpr std::uint16_t kLastPiece = 1024;  // atomics: the last piece of the array
// A link says more of the transfer than users can; `operation` is a LinkOperation.
inline constexpr std::uint16_t kMarked = 16;
// Writes: the bytes are at the target already, and only what follows them is still to be done.
inline constexpr std::uint16_t kStored = 32;
}  // namespace transfer_flag

// One request to a Path. Local memory stays valid until the transfer has settled, and need not be registered.
struct Transfer {
  Operation* operation;  // is told of the outcome, once per transfer
  union {
    std::byte* local;           // source of a write, landing place of a read, operands of an atomic
    const iovec* local_pieces;  // if piece_count > 0: that many pieces, valid until the transfer settled
  };
  std::uint64_t remote;  // offset into the region, or the target's address where the region is addressed
                         // virtually; sends: the group
  std::uint64_t key;     // of the region; sends: the tag
  std::uint64_t length;  // bytes; for atomics a multiple of the element size, at most kMaxAtomicBytes
  union {
    std::uint64_t data;  // writes and sends: remote data
    std::byte* result;   // fetching atomics: where the former values go
  };
  const std::byte* compare;  // compare_atomic: `length` bytes of comparands
  OpCode op;
  AtomicOp atomic;
  DataType type;
  Delivery delivery;
  std::uint16_t flags;
  std::uint16_t piece_count;
};
static_assert(sizeof(Transfer) == 64, "one cache line");

inline constexpr std::size_t kMaxAtomicBytes = 16 * 1024;  // longer arrays are split by the caller
inline constexpr std::size_t kMaxPieces = 1024;            // in one local vector; IOV_MAX

// What a completion queue holds. `error` is ok, or why the operation failed.
struct Completion {
  std::uint64_t context = 0;
  std::uint64_t length = 0;
  std::uint64_t data = 0;
  std::uint64_t tag = 0;
  PeerId source = kNoPeer;
  Errc error = Errc::ok;
  std::uint32_t flags = 0;
  std::uint64_t offset = 0;    // where a message lies in the memory of a receive for many
  std::uint64_t overflow = 0;  // bytes of a truncated message that had no room
};
static_assert(sizeof(Completion) == 64);

// The network device under a link, as far as the system knows it.
struct NicInfo {
  std::string name, driver, pci_address, state;
  int numa_node = -1;
  std::uint64_t speed_bits_per_second = 0;
};

// What discovery found: a domain that can be opened, or, where `usable` is false, the reason why it cannot.
struct Info {
  std::string provider;     // "shm"; "lnx" for a linked one
  std::string fabric;       // what must be equal for two domains to talk: host identity, network
  std::string domain;       // device or interface: "lo", "eth0", "mlx5_0"
  std::string alias;        // what else link specs may call it: "mlx5_0/1"; empty: nothing
  std::string addr_format;  // "bundle"
  std::string src_addr;     // printable local address, where known before opening
  std::uint64_t caps = 0;
  std::uint32_t mr_mode = 0;
  std::uint32_t mr_key_size = 8;
  std::uint32_t mr_iov_limit = 64;
  std::uint64_t inject_size = 4096;
  std::uint64_t max_msg_size = ~std::uint64_t{0};
  std::uint64_t max_rma_size = ~std::uint64_t{0};
  std::uint32_t max_contexts = 64;
  std::uint64_t max_group_id = 0;
  std::uint32_t delivery = 15;  // the levels that an operation may ask for: a bit for each Delivery
  std::vector<NicInfo> nics;
  std::vector<std::string> links;  // specs of the leaves: {"shm", "tcp:lo"}
  bool usable = true;
  std::string why;      // if not usable: the reason and what to do
  bool absent = false;  // the reason is a port that is down or has no address, which may change
  // All peers that it reaches are on this node: it fails with them and never by itself, so it is no rail.
  bool shares_fate_with_node = false;
  std::string not_linkable;  // why it cannot be one link of several; empty: it can
};

namespace caps {
inline constexpr std::uint64_t kRma = 1, kAtomic = 2, kRead = 4, kWrite = 8, kRemoteRead = 16,
                               kRemoteWrite = 32, kRmaEvent = 64, kRemoteData = 128, kLocalComm = 256,
                               kRemoteComm = 512, kRmaPmem = 1024, kMessage = 2048, kTagged = 4096,
                               kDirectedReceive = 8192, kMultiReceive = 16384, kNamedReceive = 32768;
}

}  // namespace fab
