#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>

#include "base/bytes/wire.h"
#include "base/process/process.h"
#include "base/queues/spsc_ring.h"
#include "fabric/session/frames/frame.h"
#include "fabric/types/versions.h"
#include "providers/shm/eager_ring.h"

// The bytes that processes agree on: the shm part of a name, and the channel. The segment is in
// fabric/segment/segment.h.
namespace fab::shm {

// Where a context is: the shm part of a name, 52 bytes. It begins with the layout of all that it leads to
// (versions::kSharedLayout), whatever the layout is.
struct Address {
  std::uint8_t host[16] = {};  // digest of host_identity()
  ProcessId process;
  std::int32_t segment_fd = -1;  // in that process
  std::uint8_t domain_id[16] = {};
  std::uint16_t context_slot = 0;  // BoardHeader::contexts

  static constexpr std::size_t kSize = 52;

  std::string encode() const {
    WireWriter out;
    out.put(versions::kSharedLayout)
        .raw({reinterpret_cast<const char*>(host), sizeof host})
        .put(process.pid)
        .put(process.start_time)
        .put(segment_fd);
    out.raw({reinterpret_cast<const char*>(domain_id), sizeof domain_id}).put(context_slot);
    return out.take();
  }
  // The number of the layout that any bytes begin with; 0 if they are too short to have one.
  static std::uint16_t layout_of(std::string_view bytes) noexcept {
    WireReader in(bytes);
    return in.get<std::uint16_t>();
  }
  // Nothing if the bytes are no address of this layout.
  static std::optional<Address> decode(std::string_view bytes) {
    WireReader in(bytes);
    Address address;
    const bool ours = in.get<std::uint16_t>() == versions::kSharedLayout;
    const auto host = in.raw(sizeof address.host);
    address.process.pid = in.get<std::int32_t>();
    address.process.start_time = in.get<std::uint64_t>();
    address.segment_fd = in.get<std::int32_t>();
    const auto domain = in.raw(sizeof address.domain_id);
    address.context_slot = in.get<std::uint16_t>();
    if (!ours || !in.at_end() || address.process.pid <= 0 || address.segment_fd < 0) return {};
    std::memcpy(address.host, host.data(), sizeof address.host);
    std::memcpy(address.domain_id, domain.data(), sizeof address.domain_id);
    return address;
  }
};

// Bits of ContextSlot::work.
namespace work {
inline constexpr std::uint32_t kLook = 1;  // messages, room in a ring, or a counter that somebody waits for
inline constexpr std::uint32_t kChannels = 2;  // an access slot shows a channel, or no longer does
}  // namespace work

inline constexpr std::uint64_t kDoorbellFd =
    0xffffffff;  // the low half of SegmentHeader::doorbells: its pipe

// A channel: a memory file made by the initiator, which shows it in its access slot of the target's segment.
inline constexpr std::uint64_t kChannelMagic = 0x316e6863'62616670;  // "pfabchn1"
inline constexpr std::size_t kRingBytes = 256 * 1024;

namespace closed_by {
inline constexpr std::uint32_t kInitiator = 1, kTarget = 2;
}

// Who holds the file of a channel; this is decided once. What lies in the file outlives the initiator as soon
// as the target has mapped the file.
enum class Hold : std::uint32_t {
  initiator,  // at first
  both,       // set by the target, which has mapped the file
  nobody      // set by the initiator, which gave up before that: the target no longer takes the file
};

// A cell for each announced message of the initiator, at its number modulo kMaxOutstanding. It holds the
// number of the last message that the target took there, or kRevoked: the initiator took it back.
struct AnnouncementCells {
  static constexpr std::uint64_t kRevoked = ~std::uint64_t{0};
  std::atomic<std::uint64_t> taken[kMaxOutstanding];
};

struct ChannelHeader {
  // Magic and layout stay where they are in all versions.
  std::uint64_t magic;
  std::uint32_t layout;             // versions::kSharedLayout
  std::uint16_t initiator_context;  // Part::context
  std::uint16_t target_context_slot;
  char initiator[Address::kSize];
  std::uint8_t target_domain[16];
  std::atomic<std::uint32_t> closed;  // bits of closed_by, set after the last message of that side
  // The initiator's channel_proof() of its authorization key; zero without a key.
  std::uint8_t proof[32];
  std::atomic<Hold> hold;
  // Set by the initiator before it tells its user that unanswered requests are lost. From then on the target
  // serves none of them.
  std::atomic<std::uint32_t> given_up;
  std::uint32_t published;  // PublishedChannel of the initiator's segment: its word that this is its channel
  RingIndices to_target, to_initiator;
  EagerIndices messages;
};
inline constexpr std::size_t kAnnouncementsOffset = 4096;
inline constexpr std::size_t kRingsOffset = kAnnouncementsOffset + sizeof(AnnouncementCells);
inline constexpr std::size_t kCellsOffset = kRingsOffset + 2 * kRingBytes;
inline constexpr std::size_t kPayloadOffset = kCellsOffset + kCells * sizeof(EagerCell);
inline constexpr std::size_t kChannelBytes = kPayloadOffset + kPayloadBytes;

static_assert(sizeof(ChannelHeader) <= kAnnouncementsOffset);
static_assert(offsetof(ChannelHeader, initiator) == 16 && offsetof(ChannelHeader, target_domain) == 68);
static_assert(offsetof(ChannelHeader, layout) == 8);
static_assert(offsetof(ChannelHeader, proof) == 88 && offsetof(ChannelHeader, hold) == 120);
static_assert(offsetof(ChannelHeader, published) == 128);
static_assert(offsetof(ChannelHeader, to_target) == 192 && sizeof(RingIndices) == 192);
static_assert(std::atomic<Hold>::is_always_lock_free && std::atomic<std::uint64_t>::is_always_lock_free &&
              std::atomic<std::uint32_t>::is_always_lock_free);

}  // namespace fab::shm
