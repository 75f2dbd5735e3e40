#include <memory>

#include "hostile_peer.h"
#include "providers/shm/channel.h"

// A channel over shared memory whose other side writes into it what it likes, at any time: indices of the
// rings, frames, cells of small messages, cells of announced ones, words of the header. The side that is
// looked at is the target that has taken the channel, or the initiator that has made it.

using namespace fab;
using namespace fab::test;

namespace {

// What a channel needs beside itself, made once. The other side is in this process, too.
struct Node {
  Node() {
    address.process = this_process();
    address.segment_fd = owner().segment.fd();
    std::ranges::copy(owner().domain_id, address.domain_id);
    peer = std::make_shared<shm::PeerDomain>(address, poller, left);
  }
  shm::Address address;
  Poller poller;
  bool left = false;
  std::shared_ptr<shm::PeerDomain> peer;
  OwnFd file = make_memory_file("fuzzed-channel", shm::kChannelBytes);
  shm::AttachBatch direct;
};
Node& node() {
  static Node made;
  return made;
}

// One of the two sides, and the memory as the other one has it.
class Story {
 public:
  explicit Story(Input& input) : input_(input), posts_(input) {
    const std::uint8_t kind = input.byte();
    target_ = kind % 2 != 0;
    shm::AttachBatch* const direct = kind % 4 < 2 ? &node().direct : nullptr;
    if (target_) {
      memory_ = Mapping::shared(node().file.get(), 0, shm::kChannelBytes);
      shm::Channel::Offer offer{.mapping = Mapping::shared(node().file.get(), 0, shm::kChannelBytes),
                                .file = {},
                                .initiator = node().address,
                                .initiator_context = 0,
                                .published = 0,
                                .made = {},
                                .key = {}};
      channel_ = shm::Channel::accept(std::move(offer), node().peer, services(), direct);
    } else {
      channel_ = shm::Channel::create({.domain = node().peer, .context_slot = 0}, node().address, 0,
                                      services(), direct);
      memory_ = Mapping::shared(channel_->fd(), 0, shm::kChannelBytes);
    }
  }

  void run() {
    for (int acts = 0; acts < 200 && !input_.empty() && channel_->error() == Errc::ok && !cut_; ++acts) {
      slice_.begin();
      act(input_.byte());
    }
    channel_->give_up(Errc::peer_lost);
    receives_.drop_all();
    posts_.check();
    channel_.reset();
    if (target_) clear();
  }

 private:
  Session::Services services() {
    return {.segment = owner().segment,
            .completions = completions_,
            .receives = receives_,
            .sender = std::make_shared<Sender>(owner().peers, std::vector<Part>{{"shm.0", 0, "peer"}}),
            .context_slot = 0,
            .counts = counts_,
            .wake_domain = owner().wake,
            .slice = &slice_,
            .on_more = [] {},
            .on_cut = [this] { cut_ = true; }};
  }

  shm::ChannelHeader& header() { return *reinterpret_cast<shm::ChannelHeader*>(memory_.data()); }
  // The ring and the index that the other side writes.
  RingIndices& theirs() { return target_ ? header().to_target : header().to_initiator; }
  RingIndices& ours() { return target_ ? header().to_initiator : header().to_target; }

  void act(std::uint8_t which) {
    switch (which % 16) {
      case 0:
        posts_.post([this](Transfer& transfer) { return channel_->session().post({&transfer, 1}); });
        break;
      case 1:
        posts_.receive(receives_);
        break;
      case 2:
        channel_->check(std::chrono::nanoseconds(now_ += std::int64_t{10} * 1000 * 1000 * input_.byte()),
                        std::chrono::seconds(1), input_.byte() % 2 != 0);
        break;
      case 3:
        header_word();
        break;
      case 4:
        small_message();
        break;
      case 5:
        reinterpret_cast<shm::AnnouncementCells*>(memory_.data() + shm::kAnnouncementsOffset)
            ->taken[input_.byte() % 64] = number(input_);
        break;
      case 6:
        ours().read = ours().written.load();  // all that this side has sent is taken
        break;
      case 7:
        put(input_.take(input_.byte()));
        break;
      case 8:
        anywhere();
        break;
      case 9:
      case 10:
        channel_->move();
        break;
      default:
        put(frame(input_));
        break;
    }
    if (which >= 64) channel_->move();
  }

  // Bytes of the other side, as it should bring them.
  void put(std::string_view bytes) {
    RingIndices& indices = theirs();
    std::byte* const ring = memory_.data() + shm::kRingsOffset + (target_ ? 0 : shm::kRingBytes);
    const std::uint64_t begin = indices.written;
    for (std::size_t i = 0; i < bytes.size(); ++i)
      ring[(begin + i) % shm::kRingBytes] = static_cast<std::byte>(bytes[i]);
    note(shm::kRingsOffset + (target_ ? 0 : shm::kRingBytes) + begin % shm::kRingBytes, bytes.size());
    indices.written = begin + bytes.size();
  }

  void header_word() {
    const std::uint64_t value = number(input_);
    const auto half = static_cast<std::uint32_t>(value);
    switch (input_.byte() % 10) {
      case 0:
        theirs().written = value;
        break;
      case 1:
        theirs().read = value;
        break;
      case 2:
        theirs().writer_waits = half;
        break;
      case 3:
        ours().written = value;
        break;
      case 4:
        ours().read = value;
        break;
      case 5:
        ours().writer_waits = half;
        break;
      case 6:
        header().messages.taken = half;
        break;
      case 7:
        header().messages.polled = half;
        break;
      case 8:
        header().hold = static_cast<Hold>(half);
        break;
      default:
        header().given_up = half;
        break;
    }
  }

  void small_message() {
    auto* const cells = reinterpret_cast<shm::EagerCell*>(memory_.data() + shm::kCellsOffset);
    const std::uint8_t kind = input_.byte();
    shm::EagerCell& cell = cells[kind & 32 ? input_.byte() : cells_ % shm::kCells];
    cell.length = static_cast<std::uint16_t>(number(input_));
    cell.flags = kind & 64 ? input_.byte() : kind & 7;
    cell.tag = number(input_);
    cell.data = input_.byte();
    cell.group = kind & 128 ? input_.get<std::uint32_t>() : 0;
    cell.offset = static_cast<std::uint32_t>(number(input_));
    cell.turn = kind & 16 ? input_.get<std::uint32_t>() : ++cells_;
  }

  void anywhere() {
    const std::size_t at = input_.get<std::uint32_t>() % (shm::kChannelBytes - 256);
    const auto bytes = input_.take(input_.byte());
    std::memcpy(memory_.data() + at, bytes.data(), bytes.size());
    note(at, bytes.size());
  }

  void note(std::size_t at, std::size_t bytes) {
    dirty_.emplace_back(at, std::min(bytes, shm::kChannelBytes - at));
  }
  // The file of the target's story serves the next one as well, which must not see this one.
  void clear() {
    for (const auto& [at, bytes] : dirty_) std::memset(memory_.data() + at, 0, bytes);
    std::memset(memory_.data(), 0, sizeof(shm::ChannelHeader));
    std::memset(memory_.data() + shm::kAnnouncementsOffset, 0, 64 * sizeof(std::uint64_t));
    std::memset(memory_.data() + shm::kCellsOffset, 0, shm::kCells * sizeof(shm::EagerCell));
  }

  using Hold = shm::Hold;
  Input& input_;
  Posts posts_;
  bool target_ = false, cut_ = false;
  std::int64_t now_ = 1;
  std::uint32_t cells_ = 0;  // small messages that the other side has sent
  std::vector<std::pair<std::size_t, std::size_t>> dirty_;
  Slice slice_;
  CompletionQueue completions_{64, CompletionQueue::WhenFull::forget_oldest};
  PathCounts counts_;
  ReceiveQueue receives_;
  Mapping memory_;
  std::unique_ptr<shm::Channel> channel_;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  owner().begin();
  Input input(data, size);
  Story(input).run();
  owner().check();
  return 0;
}
