#include <fcntl.h>

#include <memory>
#include <string>

#include "base/fd.h"
#include "fabric/types/versions.h"
#include "input.h"
#include "known_files.h"
#include "providers/shm/channel.h"
#include "providers/shm/regions.h"

// The segment of another process as a reader opens, maps and uses it, and its board, which all may write, as
// its owner uses it. Both files, and what an access slot shows, are as hostile as their writers may make
// them.

using namespace fab;
using namespace fab::test;

namespace {

constexpr std::uint8_t kDomain[16] = {7};

// What a hostile process has to show: its segment, a channel, memory, and a pipe.
struct Node {
  Node() : segment(Segment::create(kDomain)) {
    address.process = this_process();
    address.segment_fd = segment.fd();
    std::ranges::copy(kDomain, address.domain_id);
    check_call(::pipe2(pipe, O_CLOEXEC | O_NONBLOCK), "pipe2");
    fresh = std::make_unique<SegmentHeader>();
    std::memcpy(static_cast<void*>(fresh.get()), &segment.header(), sizeof *fresh);
    peer = std::make_unique<shm::PeerDomain>(address, poller, left);
    mapped = Mapping::shared(channel.get(), 0, shm::kChannelBytes);
    for (const int fd : {segment.fd(), segment.header().board_fd, channel.get(), memory.get(), pipe[1]})
      know_file(fd);
  }
  // The numbers of descriptors that are good for something, and any other one.
  std::int32_t descriptor(Input& input) const {
    const std::uint8_t which = input.byte();
    const int known[] = {segment.fd(), fresh->board_fd, channel.get(), memory.get(), pipe[1], -1};
    return which < 192 ? known[which % std::size(known)] : input.get<std::int32_t>();
  }
  // As it was before the first input.
  void mend() {
    std::memcpy(static_cast<void*>(&segment.header()), fresh.get(), sizeof *fresh);
    std::memset(segment.region_area(), 0, 16);
    std::memset(segment.region_area() + RegionView::kEntriesOffset, 0, 4 * sizeof(RegionEntry));
    std::memset(segment.region_area() + 4096, 0, 64 * 4 + 64);
    std::memset(static_cast<void*>(&segment.board()), 0, sizeof(BoardHeader));
    std::memset(static_cast<void*>(segment.slots()), 0, kSlots * sizeof(AccessSlot));
    std::memset(static_cast<void*>(mapped.data()), 0, sizeof(shm::ChannelHeader));
  }
  static constexpr std::uint32_t kSlots = 8;
  Segment segment;
  shm::Address address;
  Poller poller;
  bool left = false;
  OwnFd channel = make_memory_file("fuzzed-channel", shm::kChannelBytes);
  OwnFd memory = make_memory_file("fuzzed-memory", 8192);
  int pipe[2] = {-1, -1};
  Mapping mapped;  // the channel
  std::unique_ptr<SegmentHeader> fresh;
  std::unique_ptr<shm::PeerDomain> peer;
};
Node& node() {
  static Node made;
  return made;
}

// --- what the owner writes, or any process of the user

void change_header(Input& input) {
  SegmentHeader& header = node().segment.header();
  auto* const bytes = reinterpret_cast<std::byte*>(&header);
  switch (input.byte() % 6) {
    case 0:
      header.layout = input.get<std::uint16_t>();
      break;
    case 1:
      header.board_fd = node().descriptor(input);
      break;
    case 2:
      header.closed = input.byte();
      break;
    case 3:
      header.doorbells[0] = input.byte() + 1U + static_cast<std::uint32_t>(node().descriptor(input));
      break;
    case 4:
      header.keys[0].count = input.get<std::uint32_t>();
      break;
    default:
      const std::size_t at = input.get<std::uint16_t>() % (sizeof(SegmentHeader) - 64);
      const auto taken = input.take(input.byte() % 64);
      std::memcpy(bytes + at, taken.data(), taken.size());
  }
}

void change_regions(Input& input) {
  std::byte* const area = node().segment.region_area();
  const auto place = [&](std::size_t at, std::string_view bytes) {
    std::memcpy(area + at, bytes.data(), bytes.size());
  };
  place(0, input.take(8));
  place(4096 + input.byte() % 64 * 4, input.take(64));
  const std::size_t entry = RegionView::kEntriesOffset + input.byte() % 4 * sizeof(RegionEntry);
  place(entry, input.take(sizeof(RegionEntry)));
  if (input.byte() % 2) reinterpret_cast<RegionEntry*>(area + entry)->file = node().descriptor(input);
}

void change_board(Input& input) {
  const Segment& segment = node().segment;
  // Many slots take long to look at.
  segment.board().slots_used =
      input.byte() % 16 == 0 ? input.get<std::uint32_t>() : input.byte() % Node::kSlots;
  segment.board().contexts[0].sleeping = input.byte() % 2;
  AccessSlot& slot = segment.slots()[input.byte() % Node::kSlots];
  const std::uint8_t who = input.byte();
  slot.owner = who < 96    ? SlotOwner::pack(this_process())
               : who < 128 ? SlotOwner::pack(this_process()) | SlotOwner::kClaiming
               : who < 160 ? 0
                           : input.get<std::uint64_t>();
  slot.active = input.byte() % 8;
  slot.channel_fd = node().descriptor(input);
  slot.channel_epoch = input.byte();
  slot.target_context = input.byte();
}

void change_channel(Input& input) {
  auto& header = *reinterpret_cast<shm::ChannelHeader*>(node().mapped.data());
  header.magic = shm::kChannelMagic;
  header.layout = versions::kSharedLayout;
  node().address.encode().copy(header.initiator, sizeof header.initiator);
  std::ranges::copy(kDomain, header.target_domain);
  const std::size_t at = input.byte() % 192;
  const auto taken = input.take(input.byte() % 64);
  std::memcpy(node().mapped.data() + at, taken.data(), taken.size());
}

// --- what this process does with it

void attach(Input&) {
  may_refuse([] {
    const Segment segment = Segment::attach(this_process(), node().segment.fd(), kDomain);
    demand(segment.header().layout == versions::kSharedLayout, "a segment of another layout is not mapped");
  });
}

void use_as_peer(Input& input) {
  shm::PeerDomain& peer = *node().peer;
  (void)authorized(peer.segment(), input.byte(), input.byte() % 2 ? "key" : "");
  peer.segment().has_made(input.get<std::uint32_t>(), input.byte(), MadeChannel{});
  peer.serves(input.byte());
  peer.gone();
  peer.wake(input.byte() % 2, shm::work::kLook);
  shm::KnownRegions known(peer, {});
  const std::uint64_t key = node().segment.regions().entry(input.byte() % 4).key.load();
  shm::Access access(node().segment.slots()[0]);
  if (const shm::KnownRegion* const region = known.enter(key, access)) {
    iovec pieces[RegionView::kMaxRegionPieces];
    known.pieces(*region, 0, input.get<std::uint16_t>(), pieces);
    if (region->way == shm::Way::mapped) {
      const std::span<std::byte> all = region->file->mapping.bytes();
      const auto at = static_cast<std::uint64_t>(region->memory - all.data());
      demand(at <= all.size() && region->length <= all.size() - at, "a mapped region lies within its file");
    }
    ContextRights rights{};
    rights.events = 1;
    rights.counters = input.get<std::uint64_t>();
    (void)raise_counters(peer.segment(), *region->entry, rights, Effects::both);
  }
}

void use_as_owner(Input& input) {
  const Segment& segment = node().segment;
  demand(segment.slots_used() <= kMaxSlots, "a domain has no more slots than there are");
  segment.user_of(input.byte() % 8);
  segment.wait_unused(input.byte() % 8, Deadline::in_seconds(0));
  AccessSlot& slot = segment.slots()[input.byte() % Node::kSlots];
  may_refuse([&] {
    static const AuthKeys keys{{"a secret", 1}, {"", 2}};
    const auto offer = shm::Channel::open(slot, 0, kDomain, keys);
    demand(offer.mapping.size() == shm::kChannelBytes && offer.key.index < keys.size(),
           "a channel that is taken is a whole one");
  });
  if (input.byte() % 4 == 0) {
    const int claimed = segment.claim_slot(this_process());
    // What mend() does not mend would be kept for all inputs to come.
    if (claimed >= static_cast<int>(Node::kSlots)) segment.slots()[claimed].owner = 0;
  }
  // Inputs that look at many slots again and again would take most of the time.
  if (segment.slots_used() > 64) segment.board().slots_used = Node::kSlots;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  Input input(data, size);
  static constexpr void (*kActs[])(Input&) = {change_header, change_regions, change_board, change_channel,
                                              attach,        use_as_peer,    use_as_owner};
  for (int acts = 0; acts < 24 && !input.empty(); ++acts) kActs[input.byte() % std::size(kActs)](input);
  node().mend();
  return 0;
}
