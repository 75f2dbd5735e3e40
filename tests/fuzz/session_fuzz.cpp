#include <array>
#include <memory>
#include <vector>

#include "fabric/session/pipe.h"
#include "input.h"
#include "providers/lnx/flows/flow_table.h"

// A session whose peer is hostile: as a target it is sent requests, as an initiator it is given answers to
// requests that it has made, in any order, cut anywhere. The input is a list of acts of the peer and of this
// side. Frames are made of choices rather than of raw bytes, so that most of them pass the checks of the
// header; one act sends raw bytes, for the header's own sake.

using namespace fab;
using namespace fab::test;

namespace {

constexpr std::size_t kBytes = 4096, kGuard = 64;

// Registered memory between guards that nobody may write.
struct Guarded {
  std::array<std::byte, kGuard + kBytes + kGuard> all{};
  std::byte* begin() { return all.data() + kGuard; }
  void fill() {
    all.fill(std::byte{0xA5});
    std::fill_n(begin(), kBytes, std::byte{0});
  }
  bool whole() const {
    const auto untouched = [](std::byte b) { return b == std::byte{0xA5}; };
    return std::all_of(all.begin(), all.begin() + kGuard, untouched) &&
           std::all_of(all.end() - kGuard, all.end(), untouched);
  }
  bool zero() {
    return std::all_of(begin(), begin() + kBytes, [](std::byte b) { return b == std::byte{0}; });
  }
};

Guarded writable, readable, closed, local;

// The parts that are dear to make are made once.
struct Owner {
  Owner() {
    segment.header().context_rights.of[0].events.store(1);
    const auto expose = [&](Guarded& memory, std::uint32_t rights) {
      const iovec buffers[] = {{memory.begin(), kBytes}};
      return regions.insert({.key = kNoKey,
                             .base = 0,
                             .buffers = buffers,
                             .access = rights,
                             .flags = 0,
                             .file = -1,
                             .file_offset = 0,
                             .enabled = true});
    };
    keys[0] = regions.entry(expose(writable, access::kAll)).key;
    keys[1] = regions.entry(expose(readable, access::kRemoteRead)).key;
    const std::uint32_t last = expose(closed, access::kAll);
    keys[2] = regions.entry(last).key;
    regions.start_close(last);
    regions.finish_close(last);
  }
  std::uint8_t domain_id[16] = {1};
  Segment segment = Segment::create(domain_id);
  RegionTable regions{segment.region_area()};
  AddressVector peers;
  std::uint64_t keys[4] = {};
  std::function<void()> wake = [] {};
};
Owner& owner() {
  static Owner made;
  return made;
}

// One session and what it works on.
class Story {
 public:
  explicit Story(Input& input) : input_(input), rails_(input.byte() % 2 != 0) {
    session_ = std::make_unique<Session>(Session::Services{
        .segment = owner().segment,
        .completions = completions_,
        .receives = receives_,
        .sender = std::make_shared<Sender>(owner().peers, std::vector<Part>{{"test.0", 0, "peer"}}),
        .context_slot = 0,
        .counts = counts_,
        .wake_domain = owner().wake,
        .handover = rails_ ? Handover::when_answered : Handover::at_once,
        .extensions = rails_ ? &flows_ : nullptr,
        .on_cut = [this] { cut_ = true; }});
  }

  void run() {
    Errc error = Errc::ok;
    for (int acts = 0; acts < 200 && !input_.empty() && error == Errc::ok && !cut_ && !session_->broken();
         ++acts) {
      switch (input_.byte() % 8) {
        case 0:
          post();
          break;
        case 1:
          receive();
          break;
        case 2:
          speak();
          session_->end_turn();
          break;
        case 3:
          error = hear(std::string(input_.take(input_.byte())));
          break;
        default:
          error = hear(frame());
          break;
      }
    }
    session_->fail(Errc::peer_lost);
    receives_.drop_all();
    for (const auto& probe : probes_) demand(probe->done(), "every operation has an outcome in the end");
    session_.reset();
    check();
  }

 private:
  std::uint64_t key() {
    const std::uint8_t which = input_.byte();
    return which < 200 ? owner().keys[which % 4] : input_.get<std::uint64_t>();
  }
  // Small numbers, numbers near the ends of the memory, and any others.
  std::uint64_t number() {
    const std::uint8_t kind = input_.byte();
    if (kind < 128) return kind;
    if (kind < 160) return kBytes + 16 - kind % 32;
    if (kind < 192) return input_.get<std::uint16_t>();
    if (kind < 200) return ~std::uint64_t{0} - kind % 8;
    return input_.get<std::uint64_t>();
  }

  std::string frame() {
    static constexpr std::uint8_t kTypes[] = {1,  2,  3,  4,  5,  6,  7,  8,  9,  10, 11,
                                              12, 13, 14, 15, 16, 17, 18, 19, 20, 32, 33};
    FrameHeader header{.type = static_cast<FrameType>(kTypes[input_.byte() % sizeof kTypes])};
    header.flags = input_.byte();
    header.atomic_op = input_.byte() % 24;
    header.data_type = input_.byte() % 12;
    header.key = key();
    header.remote = number();
    header.total = number();
    header.data = number();
    header.id = number();
    const std::string payload(input_.take(input_.byte() % 64 * (input_.byte() % 8)));
    header.length = static_cast<std::uint32_t>(payload.size());
    if (header.total == 1) header.total = header.length;
    std::string bytes(kHeaderBytes, 0);
    encode(header, reinterpret_cast<std::byte*>(bytes.data()));
    return bytes + payload;
  }

  Errc hear(const std::string& bytes) {
    return hears(*session_, bytes, [this] { return cut_; });
  }

  void speak() {
    iovec out[16];
    for (int rounds = 0; rounds < 64; ++rounds) {
      const std::size_t count = session_->output(out, 16);
      std::size_t bytes = 0;
      unsigned sum = 0;  // reads what would be sent, so that the sanitizer sees it
      for (std::size_t i = 0; i < count; ++i) {
        bytes += out[i].iov_len;
        for (std::size_t k = 0; k < out[i].iov_len; k += 61)
          sum += static_cast<const unsigned char*>(out[i].iov_base)[k];
      }
      read_ = sum;
      if (bytes == 0) return;
      session_->sent(bytes);
    }
  }

  void post() {
    static constexpr OpCode kOps[] = {OpCode::write,        OpCode::read,           OpCode::atomic,
                                      OpCode::fetch_atomic, OpCode::compare_atomic, OpCode::send};
    if (probes_.size() >= 32) return;
    const OpCode op = kOps[input_.byte() % std::size(kOps)];
    const std::uint64_t length =
        is_atomic(op) ? 8 * (1 + input_.byte() % 16) : input_.get<std::uint16_t>() % kBytes;
    auto probe = std::make_unique<Probe>(op, 7, 0, local.begin(), length);
    Transfer& transfer = probe->transfer;
    transfer.atomic = op == OpCode::compare_atomic ? AtomicOp::cswap : AtomicOp::sum;
    transfer.type = DataType::u64;
    if (op == OpCode::fetch_atomic || op == OpCode::compare_atomic) transfer.result = local.begin() + 1024;
    if (op == OpCode::compare_atomic) transfer.compare = local.begin() + 2048;
    if (op == OpCode::send) transfer.delivery = Delivery::transmit;
    if (probe->post(*session_) == 1) probes_.push_back(std::move(probe));
  }

  void receive() {
    if (probes_.size() >= 32) return;
    auto probe = std::make_unique<Probe>(OpCode::receive, 0, 0, local.begin(), 0);
    Receive asked;
    asked.operation = &probe->operation;
    asked.local = local.begin();
    asked.length = input_.get<std::uint16_t>() % kBytes;
    asked.rule = {.tag = input_.byte(), .ignore = input_.byte(), .tagged = input_.byte() % 2 != 0};
    receives_.post(asked);
    probes_.push_back(std::move(probe));
  }

  void check() {
    for (const Guarded* memory : {&writable, &readable, &closed, &local})
      demand(memory->whole(), "nothing outside of registered memory was written");
    demand(readable.zero(), "a region without the right was not written");
    demand(closed.zero(), "a closed region was not written");
  }

  Input& input_;
  const bool rails_;
  bool cut_ = false;
  volatile unsigned read_ = 0;
  std::vector<std::unique_ptr<Probe>> probes_;
  CompletionQueue completions_{64, CompletionQueue::WhenFull::forget_oldest};
  PathCounts counts_;
  ReceiveQueue receives_;
  lnx::FlowTable flows_{receives_, 10, [] {}};
  std::unique_ptr<Session> session_;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  for (Guarded* memory : {&writable, &readable, &closed, &local}) memory->fill();
  Input input(data, size);
  Story(input).run();
  return 0;
}
