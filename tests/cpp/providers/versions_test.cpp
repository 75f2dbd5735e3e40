#include "fabric/types/versions.h"

#include <doctest/doctest.h>

#include <cstddef>
#include <cstring>
#include <memory>
#include <string>
#include <utility>

#include "base/bytes/sha256.h"
#include "base/bytes/wire.h"
#include "data/shuffle.h"
#include "fabric/address_vector/address_vector.h"
#include "fabric/segment/segment.h"
#include "fabric/session/frames/frame.h"
#include "fabric/session/frames/hello.h"
#include "fabric/types/name.h"
#include "providers/compact_name.h"
#include "providers/shm/layout.h"

// What leaves a process is written down here as text, or as the bytes themselves, and its hash stands beside
// the version of the format. A hash that differs says that a format changed. What to do then:
//
// 1. If a reader of the version before would misread the bytes, raise the number in fabric/types/versions.h
//    and in the table below, and say so in docs/versions.md and CHANGELOG.md. Frames and shared memory always
//    change so: their readers know no byte that they may skip.
// 2. Only if no reader can tell the difference (a name changed, a constant that travels nowhere), leave the
//    number.
// 3. Put the new hash, which the failure prints, in the place of the old one.
namespace fab {
namespace {

std::string hash_of(const std::string& text) {
  const Digest digest = sha256(text);
  std::string hex;
  for (std::size_t i = 0; i < 8; ++i) {
    hex += "0123456789abcdef"[digest[i] >> 4];
    hex += "0123456789abcdef"[digest[i] & 15];
  }
  return hex;
}

// NOLINTBEGIN(cppcoreguidelines-macro-usage): offsets are known by name only.
#define FAB_WHOLE(type) #type " " + std::to_string(sizeof(type)) + " " + std::to_string(alignof(type)) + "\n"
#define FAB_FIELD(type, field)                                    \
  "  " #field " " + std::to_string(offsetof(type, field)) + " " + \
      std::to_string(sizeof(std::declval<type&>().field)) + "\n"
#define FAB_NUMBER(value) #value " " + std::to_string(value) + "\n"
// NOLINTEND(cppcoreguidelines-macro-usage)

std::string segment_text() {
  return FAB_WHOLE(SegmentHeader) + FAB_FIELD(SegmentHeader, magic) + FAB_FIELD(SegmentHeader, layout) +
         FAB_FIELD(SegmentHeader, pid) + FAB_FIELD(SegmentHeader, start_time) +
         FAB_FIELD(SegmentHeader, domain_id) + FAB_FIELD(SegmentHeader, auth_salt) +
         FAB_FIELD(SegmentHeader, mapped_at) + FAB_FIELD(SegmentHeader, board_mapped_at) +
         FAB_FIELD(SegmentHeader, board_fd) + FAB_FIELD(SegmentHeader, closed) +
         FAB_FIELD(SegmentHeader, waiter_slot) + FAB_FIELD(SegmentHeader, doorbells) +
         FAB_FIELD(SegmentHeader, context_rights) + FAB_FIELD(SegmentHeader, keys) +
         FAB_WHOLE(PublishedChannel) + FAB_FIELD(PublishedChannel, inode) +
         FAB_FIELD(PublishedChannel, made) + FAB_WHOLE(MadeChannel) + FAB_FIELD(MadeChannel, target_domain) +
         FAB_FIELD(MadeChannel, target_context_slot) + FAB_FIELD(MadeChannel, context_slot) +
         FAB_FIELD(MadeChannel, context) + FAB_WHOLE(BoardHeader) + FAB_FIELD(BoardHeader, slots_used) +
         FAB_FIELD(BoardHeader, contexts) + FAB_WHOLE(ContextSlot) + FAB_FIELD(ContextSlot, work) +
         FAB_FIELD(ContextSlot, sleeping) + FAB_WHOLE(AccessSlot) + FAB_FIELD(AccessSlot, owner) +
         FAB_FIELD(AccessSlot, active) + FAB_FIELD(AccessSlot, channel_fd) +
         FAB_FIELD(AccessSlot, channel_epoch) + FAB_FIELD(AccessSlot, target_context) +
         FAB_FIELD(AccessSlot, refused) + FAB_FIELD(AccessSlot, proof) + FAB_WHOLE(CounterSlot) +
         FAB_FIELD(CounterSlot, value) + FAB_FIELD(CounterSlot, errors) + FAB_FIELD(CounterSlot, waiters) +
         FAB_FIELD(CounterSlot, notices) + FAB_WHOLE(KeyTags) + FAB_FIELD(KeyTags, count) +
         FAB_FIELD(KeyTags, tags) + FAB_WHOLE(KeyTags::Tag) + FAB_FIELD(KeyTags::Tag, number) +
         FAB_FIELD(KeyTags::Tag, proof) + FAB_WHOLE(ContextRights) + FAB_FIELD(ContextRights, endpoint) +
         FAB_FIELD(ContextRights, events) + FAB_FIELD(ContextRights, counters) + FAB_NUMBER(kMaxContexts) +
         FAB_NUMBER(kMaxSlots) + FAB_NUMBER(kMaxCounters) + FAB_NUMBER(SlotOwner::kPidBits) +
         FAB_NUMBER(SlotOwner::kClaiming);
}

std::string region_text() {
  return FAB_WHOLE(RegionEntry) + FAB_FIELD(RegionEntry, state) + FAB_FIELD(RegionEntry, key) +
         FAB_FIELD(RegionEntry, base) + FAB_FIELD(RegionEntry, length) + FAB_FIELD(RegionEntry, address) +
         FAB_FIELD(RegionEntry, file_offset) + FAB_FIELD(RegionEntry, access) +
         FAB_FIELD(RegionEntry, flags) + FAB_FIELD(RegionEntry, file) + FAB_FIELD(RegionEntry, piece_count) +
         FAB_FIELD(RegionEntry, piece_block) + FAB_FIELD(RegionEntry, endpoint) +
         FAB_FIELD(RegionEntry, counters) + FAB_FIELD(RegionEntry, auth) + FAB_FIELD(RegionEntry, spans) +
         FAB_FIELD(RegionEntry, spans_block) + FAB_WHOLE(RegionPiece) + FAB_FIELD(RegionPiece, address) +
         FAB_FIELD(RegionPiece, length) + FAB_WHOLE(RegionSpan) + FAB_FIELD(RegionSpan, offset) +
         FAB_FIELD(RegionSpan, length) + FAB_NUMBER(kAuthSet) + FAB_NUMBER(region_flag::kPersistent) +
         FAB_NUMBER(region_flag::kRmaEvent) + FAB_NUMBER(region_flag::kSpans) +
         FAB_NUMBER(region_flag::kObserved) + FAB_NUMBER(region_flag::kOwnPages) +
         FAB_NUMBER(RegionView::kMaxRegions) + FAB_NUMBER(RegionView::kFirstIndexSlots) +
         FAB_NUMBER(RegionView::kIndexSizes) + FAB_NUMBER(RegionView::kMaxRegionPieces) +
         FAB_NUMBER(RegionView::kPieceBlocks) + FAB_NUMBER(RegionView::kEntriesOffset) +
         FAB_NUMBER(RegionView::kPiecesOffset) + FAB_NUMBER(RegionView::kAreaBytes);
}

std::string channel_text() {
  using namespace shm;
  Address address;
  std::memset(address.host, 1, sizeof address.host);
  std::memset(address.domain_id, 2, sizeof address.domain_id);
  address.process = {3, 4};
  address.segment_fd = 5;
  address.context_slot = 6;
  return FAB_WHOLE(ChannelHeader) + FAB_FIELD(ChannelHeader, magic) + FAB_FIELD(ChannelHeader, layout) +
         FAB_FIELD(ChannelHeader, initiator_context) + FAB_FIELD(ChannelHeader, target_context_slot) +
         FAB_FIELD(ChannelHeader, initiator) + FAB_FIELD(ChannelHeader, target_domain) +
         FAB_FIELD(ChannelHeader, closed) + FAB_FIELD(ChannelHeader, proof) + FAB_FIELD(ChannelHeader, hold) +
         FAB_FIELD(ChannelHeader, given_up) + FAB_FIELD(ChannelHeader, published) +
         FAB_FIELD(ChannelHeader, to_target) + FAB_FIELD(ChannelHeader, to_initiator) +
         FAB_FIELD(ChannelHeader, messages) + FAB_WHOLE(RingIndices) + FAB_FIELD(RingIndices, written) +
         FAB_FIELD(RingIndices, read) + FAB_FIELD(RingIndices, writer_waits) + FAB_WHOLE(EagerIndices) +
         FAB_FIELD(EagerIndices, taken) + FAB_FIELD(EagerIndices, polled) + FAB_WHOLE(EagerCell) +
         FAB_FIELD(EagerCell, turn) + FAB_FIELD(EagerCell, length) + FAB_FIELD(EagerCell, flags) +
         FAB_FIELD(EagerCell, tag) + FAB_FIELD(EagerCell, data) + FAB_FIELD(EagerCell, group) +
         FAB_FIELD(EagerCell, offset) + FAB_FIELD(EagerCell, bytes) + FAB_WHOLE(AnnouncementCells) +
         FAB_NUMBER(AnnouncementCells::kRevoked) + FAB_NUMBER(kRingBytes) + FAB_NUMBER(kCells) +
         FAB_NUMBER(kPayloadBytes) + FAB_NUMBER(kLargestMessage) + FAB_NUMBER(kAnnouncementsOffset) +
         FAB_NUMBER(kRingsOffset) + FAB_NUMBER(kCellsOffset) + FAB_NUMBER(kPayloadOffset) +
         FAB_NUMBER(kChannelBytes) + FAB_NUMBER(closed_by::kInitiator) + FAB_NUMBER(closed_by::kTarget) +
         FAB_NUMBER(int(Hold::both)) + FAB_NUMBER(int(Hold::nobody)) + FAB_NUMBER(work::kLook) +
         FAB_NUMBER(work::kChannels) + FAB_NUMBER(kDoorbellFd) + FAB_NUMBER(kSegmentMagic) +
         FAB_NUMBER(kChannelMagic) + address.encode().substr(2);
}

// How a header lies on the wire, and which of some 40 thousand headers decode() takes: all types and flags,
// each with several sizes. So a type, a flag or a rule that comes or goes is seen.
std::string frame_text() {
  std::string text;
  const auto bytes_of = [](const FrameHeader& header) {
    std::byte bytes[kHeaderBytes];
    encode(header, bytes);
    return std::string(reinterpret_cast<const char*>(bytes), sizeof bytes);
  };
  text += bytes_of({FrameType::write, 2, 3, 4, 5, 6, 7, 8, 9, 10});
  struct Sizes {
    std::uint32_t length;
    std::uint64_t total, data, id;
  };
  constexpr Sizes kSizes[] = {{0, 0, 0, 0},         {0, 1, 0, 0},        {0, 8, 0, 0},  {0, 8, 1, 0},
                              {8, 8, 0, 0},         {8, 8, 0, 1},        {16, 8, 0, 0}, {16, 16, 0, 0},
                              {0, 128, 0, 0},       {0, 8, 4, 16},       {8, 8, 4, 16}, {0, 0, 0, 1},
                              {32, 16, 0, 0},       {16, 64, 0, 0},      {0, 64, 0, 1}, {16384, 16384, 0, 0},
                              {16385, 16385, 0, 0}, {65536, 65536, 0, 0}};
  for (unsigned type = 0; type < 256; ++type)
    for (unsigned flag = 0; flag <= 8; ++flag)
      for (const Sizes& sizes : kSizes) {
        FrameHeader header{.type = static_cast<FrameType>(type),
                           .flags = static_cast<std::uint8_t>(flag == 8 ? 0 : 1u << flag),
                           .length = sizes.length,
                           .remote = 4,
                           .total = sizes.total,
                           .data = sizes.data,
                           .id = sizes.id};
        std::byte bytes[kHeaderBytes];
        encode(header, bytes);
        text += decode(bytes, header) ? '1' : '0';
      }
  return text + FAB_NUMBER(kMaxPayload) + FAB_NUMBER(kMaxOutstanding) + FAB_NUMBER(kMaxResultBytes) +
         FAB_NUMBER(kMaxMessage) + FAB_NUMBER(kMessageWindow) + FAB_NUMBER(kPieceBytes) +
         FAB_NUMBER(kMaxAnnouncedPieces) + FAB_NUMBER(kDescriptionBytes) + FAB_NUMBER(kRowBytes) +
         FAB_NUMBER(kMaxRows) + FAB_NUMBER(kMaxRowsBytes) + FAB_NUMBER(kMaxProbe) +
         FAB_NUMBER(kMaxAtomicBytes) + FAB_NUMBER(kAtomicOps) + FAB_NUMBER(kDataTypes);
}

EndpointAddress an_address() {
  EndpointAddress address;
  address.id.fill(1);
  address.network.fill(2);
  address.addresses.push_back(SocketAddress::from_bytes(std::string("\x7f\0\0\1", 4), 4711));
  return address;
}

EndpointAddress an_exchange_address() {
  EndpointAddress address = an_address();
  address.by_exchange = true;
  return address;
}

std::string hello_text() {
  Hello hello;
  hello.from = an_address().id;
  hello.part = {"tcp.0", 1, "the part of an address"};
  return hello.encode() + Challenge{}.encode() + Proof{}.encode() + Welcome{}.encode() + Refusal{}.encode();
}

Name a_name() { return {{{"shm.0", 0, "abc"}, {"tcp.0", 3, "defg"}}}; }
RemoteRegion a_region() {
  return {.key = 1, .base = 2, .length = 3, .access = 4, .parts = {{"verbs.0", 0, "rkey"}}};
}

// The bytes of a vector with some addresses, as they would lie in a file.
std::string vector_text() {
  AddressVectorOptions options;
  auto memory = make_private_peer_memory();
  PeerMemory& there = *memory;
  describe(there.header(), options);
  there.header().seed = 7;
  there.header().version = 0;  // it stands beside the hash
  AddressVector peers(options, std::move(memory));
  for (const char* host : {"first", "second", "third"})
    for (std::uint16_t context = 0; context < 2; ++context)
      peers.insert(Name{{{"shm.0", context, host}, {"tcp.0", context, "elsewhere"}}}.encode());
  peers.remove(1);
  const auto raw = [](const void* bytes, std::size_t size) {
    return std::string(static_cast<const char*>(bytes), size);
  };
  std::string text = raw(&there.header(), sizeof(PeerHeader));
  constexpr std::size_t kSeen = 2048;  // of the first chunk of each section, which is about a page
  for (unsigned section = 0; section < kPeerSections; ++section)
    if (const std::byte* chunk = there.find(section, 0)) text += std::to_string(section) + raw(chunk, kSeen);
  return text;
}

std::string shuffle_text() {
  std::string text;
  for (const std::uint64_t size : {1, 2, 3, 10, 1000})
    for (const std::uint64_t seed : {0, 1})
      for (std::uint64_t i = 0; i < size; ++i)
        text += std::to_string(Shuffle(size, seed, 3)(i)) + (i + 1 < size ? "," : "\n");
  return text;
}

std::string a_compact_name() {
  shm::Address process;
  std::memset(process.host, 1, sizeof process.host);
  std::memset(process.domain_id, 2, sizeof process.domain_id);
  process.process = {.pid = 3, .start_time = 4};
  process.segment_fd = 5;
  process.context_slot = 6;
  const Part memory{"shm.0", 0, process.encode()};
  const Part network{"tcp.0", 0, an_address().encode()};
  EndpointAddress place = an_address();
  place.network = {};
  const Part rail{"tcp.0", 0, place.encode()}, other{"tcp.1", 0, place.encode()};
  return *compact({{memory}}) + *compact({{network}}) + *compact({{memory, network}}) +
         *compact({{memory, rail, other}});
}

struct Format {
  std::string what;
  std::uint64_t version, recorded;
  std::string text, hash;
};

}  // namespace

TEST_CASE("a format that changes has another version") {
  const Format formats[] = {
      {"kWire: frames", versions::kWire, 3, frame_text(), "7bb50677022b2cbe"},
      {"kWire: handshake", versions::kWire, 3, hello_text(), "3c824ef02b80ec0c"},
      {"kName", versions::kName, 1, a_name().encode(), "be9a87327e7991ac"},
      {"kCompactName", versions::kCompactName, 4, a_compact_name(), "93df3bc0470399e0"},
      {"kEndpointPart", versions::kEndpointPart, 2, an_address().encode(), "f19fcfa6d9446b53"},
      {"kExchangePart", versions::kExchangePart, 130, an_exchange_address().encode(), "11f5dbedd4324b0a"},
      {"kRemoteRegion", versions::kRemoteRegion, 1, a_region().encode(), "0eb0b3c2c980e4d4"},
      {"kSharedLayout: segment", versions::kSharedLayout, 11, segment_text(), "1d5ed3a4f3ee0529"},
      {"kSharedLayout: regions", versions::kSharedLayout, 11, region_text(), "dfb6fcbc66fc2117"},
      {"kSharedLayout: channel", versions::kSharedLayout, 11, channel_text(), "552e403e3b668a9e"},
      {"kSharedLayout: frames in a channel", versions::kSharedLayout, 11, frame_text(), "7bb50677022b2cbe"},
      {"kPeerFile", versions::kPeerFile, 3, vector_text(), "7babe3d3470f7efa"},
      {"kShuffle", versions::kShuffle, 1, shuffle_text(), "5ba758e130181295"},
  };
  for (const Format& format : formats) {
    CAPTURE(format.what);
    CAPTURE(format.version);
    const std::string now = hash_of(format.text);
    CHECK(now == format.hash);
    CHECK(format.version == format.recorded);
  }
}

TEST_CASE("the hash sees what a reader would see") {
  CHECK(hash_of("abc") == "ba7816bf8f01cfea");
  CHECK(vector_text() == vector_text());
  Name other = a_name();
  other.parts[1].context = 4;
  CHECK(hash_of(other.encode()) != hash_of(a_name().encode()));
}

}  // namespace fab
