#pragma once

#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "fabric/address_vector/address_vector.h"
#include "fabric/completion/completion_queue.h"
#include "providers/lnx/rails/health.h"
#include "providers/lnx/rails/journal.h"
#include "providers/lnx/rails/notes.h"
#include "providers/lnx/rails/rail.h"
#include "providers/lnx/rails/scheduler.h"

// The parts of Rails without the whole: a test says what links hold, when each transfer ends, and what time
// it is.
namespace fab::test {

// What the link says of it.
inline const FrameHeader& frame_of(const Transfer& transfer) { return link_operation(transfer).frame; }
// Whether it is this request of the link.
inline bool is(const Transfer& transfer, FrameType type) {
  return transfer.op == OpCode::control && frame_of(transfer).type == type;
}

// What a path holds, oldest first, and how many transfers it takes beside these.
struct HeldLink {
  std::deque<Transfer> held;
  std::size_t room = 1000;
  Errc state = Errc::ok;
  std::optional<Errc> answers = {};  // every transfer at once, while it is posted
  unsigned cuts = 0, hints = 0;

  void end(Errc error = Errc::ok, std::size_t index = 0) {
    const Transfer transfer = held.at(index);
    held.erase(held.begin() + static_cast<std::ptrdiff_t>(index));
    transfer.operation->settle(error, error == Errc::ok ? transfer.length : 0);
  }
  void end_all(Errc error = Errc::ok) {
    for (auto left = held.size(); left; --left) end(error);
  }
  void fail(Errc why = Errc::peer_lost) {
    state = why;
    while (!held.empty()) end(why);
  }
};

class HeldPath final : public Path {
 public:
  explicit HeldPath(HeldLink& link) : link_(link) { link_.state = Errc::ok; }
  ~HeldPath() override { link_.fail(); }
  std::size_t post(std::span<const Transfer> batch) noexcept override {
    std::size_t taken = 0;
    for (const Transfer& transfer : batch) {
      if (link_.state != Errc::ok) {
        transfer.operation->settle(link_.state, 0);
      } else if (link_.room == 0) {
        break;
      } else if (link_.answers) {
        transfer.operation->settle(*link_.answers, 0);
      } else {
        --link_.room;
        link_.held.push_back(transfer);
      }
      ++taken;
    }
    return taken;
  }
  void hint(const RemoteRegion&) override { ++link_.hints; }
  Errc state() const noexcept override { return link_.state; }
  bool idle() const noexcept override { return link_.held.empty(); }
  PathCounts counts() const noexcept override { return {}; }
  std::uint64_t oldest() const noexcept override { return 1; }
  PathReport report() const override { return {"test", "test"}; }
  void cut() noexcept override {
    ++link_.cuts;
    link_.fail();
  }

 private:
  HeldLink& link_;
};

class RailGround : private lnx::RailsOwner {
 public:
  explicit RailGround(std::size_t count = 2, std::string preferred = {}, std::vector<double> weights = {})
      : parameters{.completions = completions,
                   .slice = slice,
                   .peer_deadline = 60,
                   .clock = [this] { return clock; },
                   .attended = [this] { return attended; },
                   .on_work = [](lnx::Rails&) {},
                   .on_watch = [] {},
                   .on_lost = [](const Loss&) {},
                   .preferred = std::move(preferred),
                   .peers = peers,
                   .flow = {1, 1},
                   .to = {.peer = 0, .name = {}, .target = 0, .auth_index = 0}},
        links(count) {
    weights.resize(count);
    for (std::size_t i = 0; i < count; ++i)
      rails.add({nullptr, "test." + std::to_string(i), weights[i]}, count, parameters, *this);
  }
  virtual ~RailGround() {
    for (HeldLink& link : links) link.state = Errc::peer_lost;
    ending = true;
    for (const auto& rail : rails) rail->path.reset();
    journal.visit_open([&](lnx::Request& request) { scheduler.fail(request, Errc::canceled); });
  }
  RailGround(const RailGround&) = delete;
  RailGround& operator=(const RailGround&) = delete;

  lnx::Rail& raise(std::size_t slot) {
    lnx::Rail& rail = rails[slot];
    rail.path = std::make_unique<HeldPath>(links[slot]);
    ++rail.incarnation;
    rail.rose();
    return rail;
  }
  void raise_all() {
    for (std::size_t slot = 0; slot < rails.size(); ++slot) raise(slot);
  }
  void lose(lnx::Rail& rail) {
    const bool carried = rail.up();
    if (rails.primary == &rail) rails.primary = nullptr;
    health.lost(rail, carried);
    rail.lost(rails.up() > (carried ? 1u : 0u));
    rails.lost_some = false;
  }
  void pass(Clock::duration span) {
    clock += span;
    attended += span;
  }

  std::deque<lnx::Posting> postings;  // of the test; outlive all that may hold them
  CompletionQueue completions{1 << 12, CompletionQueue::WhenFull::forget_oldest};
  AddressVector peers;
  Slice slice;
  Clock::time_point clock{std::chrono::hours(1)}, attended{std::chrono::hours(2)};
  const lnx::RailsParameters parameters;
  std::vector<HeldLink> links;
  lnx::Journal journal{completions};
  lnx::RailSet rails;
  lnx::Health health{parameters, rails, *this};
  lnx::Scheduler scheduler{parameters, rails, journal, health};
  lnx::Notes notes{parameters, rails, journal};

  std::vector<lnx::Posting*> ends;  // of which was told
  unsigned notices = 0, watches = 0;
  std::vector<std::uint32_t> given_up, risen;  // slots
  bool ending = false;

 private:
  void ended(lnx::Rail& rail, lnx::Posting& posting) noexcept override {
    using Kind = lnx::Posting::Kind;
    const Errc error = posting.completion().error;
    ends.push_back(&posting);
    rail.untrack(posting);
    health.tally(rail, posting);
    rail.ended_at = attended;
    if (posting.kind == Kind::probe) {
      health.probe_ended(rail, posting);
    } else if (posting.kind == Kind::note) {
      notes.ended(posting);
    } else if (posting.request) {
      if (error != Errc::ok && !ending && !rail.stands())
        scheduler.lost(posting);
      else
        scheduler.ended(rail, posting, error);
    }
  }
  void notice() noexcept override { ++notices; }
  void watch() noexcept override { ++watches; }
  void give_up(lnx::Rail& rail) noexcept override {
    given_up.push_back(rail.slot);
    rail.path->cut();
    lose(rail);
  }
  void rise(lnx::Rail& rail) noexcept override {
    risen.push_back(rail.slot);
    rail.rose();
  }
};

// An operation of the user with its memory.
struct UserOp {
  Operation operation;
  Transfer transfer{};
  std::vector<std::byte> bytes, result;

  explicit UserOp(OpCode op, std::size_t length = 100, std::uint16_t flags = 0)
      : bytes(length), result(length) {
    operation.begin({});
    transfer.operation = &operation;
    transfer.op = op;
    transfer.local = bytes.data();
    transfer.length = length;
    transfer.flags = flags;
    transfer.delivery = Delivery::delivery;
    if (op == OpCode::atomic || op == OpCode::fetch_atomic) {
      transfer.atomic = AtomicOp::sum;
      transfer.type = DataType::u8;
      transfer.result = result.data();
    }
  }
  Errc outcome() const { return operation.completion().error; }
};

}  // namespace fab::test
