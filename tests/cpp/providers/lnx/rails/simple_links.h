#pragma once

#include <array>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <vector>

#include "fabric/address_vector/address_vector.h"
#include "fabric/completion/completion_queue.h"
#include "fabric/completion/operation.h"
#include "fabric/memory/local_memory.h"
#include "providers/lnx/rails/rails.h"

// Links that carry out what rails post, without a stream between: they ask for no memory of their own, and a
// test says when each of them moves, is full or breaks.
namespace fab::test {

// What the peer has and remembers.
struct Far {
  std::vector<std::byte> memory = std::vector<std::byte>(1 << 20);
  std::int64_t sum = 0;
  std::uint64_t messages = 0;  // in the order of their tags, from 0 on
  bool in_order = true;
  std::uint64_t notes = 0;
  std::vector<std::uint8_t> done = std::vector<std::uint8_t>(1 << 16);  // by number
  std::vector<std::int64_t> formers = std::vector<std::int64_t>(1 << 16);
};

class SimplePath;
struct SimpleLink {
  Far& far;
  SimplePath* path = nullptr;  // that is open now
  std::size_t room = 64;       // transfers that a path holds; at most so many
  std::uint64_t posts = 0;     // transfers that were taken
};

class SimplePath final : public Path {
 public:
  explicit SimplePath(SimpleLink& link) : far_(link.far), link_(link) { link.path = this; }
  ~SimplePath() override {
    fail(Errc::peer_lost);
    link_.path = nullptr;
  }

  std::size_t post(std::span<const Transfer> batch) noexcept override {
    std::size_t taken = 0;
    for (const Transfer& transfer : batch) {
      if (state_ == Errc::ok && count_ >= std::min(link_.room, held_.size())) break;
      ++taken;
      ++link_.posts;
      if (state_ != Errc::ok)
        transfer.operation->settle(state_, 0);
      else
        held_[(first_ + count_++) % held_.size()] = transfer;
    }
    return taken;
  }
  Errc state() const noexcept override { return state_; }
  bool idle() const noexcept override { return count_ == 0; }
  PathCounts counts() const noexcept override { return {}; }
  std::uint64_t oldest() const noexcept override { return 1; }
  PathReport report() const override { return {"test", "test"}; }
  void cut() noexcept override { fail(Errc::peer_lost); }

  // The oldest one is carried out, and answered unless the link breaks before.
  void move(bool answered = true) noexcept {
    if (count_ == 0) return;
    const Transfer transfer = held_[first_];
    carry_out(transfer);
    if (!answered) return fail(Errc::peer_lost);
    first_ = (first_ + 1) % held_.size();
    --count_;
    transfer.operation->settle(Errc::ok, transfer.length);
  }
  void fail(Errc why) noexcept {
    state_ = why;
    for (; count_; --count_, first_ = (first_ + 1) % held_.size()) held_[first_].operation->settle(why, 0);
  }

 private:
  void carry_out(const Transfer& transfer) noexcept {
    auto& part = static_cast<LinkOperation&>(*transfer.operation);
    const std::uint64_t number = part.frame.id;
    const bool once = (transfer.flags & transfer_flag::kMarked) && !is_stripe(transfer);
    const bool before = once && std::exchange(far_.done[number], std::uint8_t{1});
    const bool whole = !(transfer.flags & transfer_flag::kStored);
    const bool stored = transfer.op == OpCode::write && whole && !before;
    if (stored && !gather(transfer, far_.memory.data() + transfer.remote)) std::abort();
    if (transfer.op == OpCode::read)
      std::memcpy(transfer.local, far_.memory.data() + transfer.remote, transfer.length);
    if (transfer.op == OpCode::fetch_atomic) {
      if (!before) far_.formers[number] = far_.sum++;
      std::memcpy(transfer.result, &far_.formers[number], sizeof(std::int64_t));
    }
    if (transfer.op == OpCode::control && part.frame.type == FrameType::settled) ++far_.notes;
    if (transfer.op != OpCode::send) return;
    if (!before) far_.in_order &= transfer.key >= std::exchange(far_.messages, transfer.key + 1);
    part.announced |= transfer.length > 4096;
  }

  Far& far_;
  SimpleLink& link_;
  std::array<Transfer, 64> held_;
  std::size_t first_ = 0, count_ = 0;
  Errc state_ = Errc::ok;
};

class SimpleEndpoint final : public Endpoint {
 public:
  explicit SimpleEndpoint(SimpleLink& link) : link_(link) {}
  std::vector<Part> parts() const override { return {}; }
  std::vector<std::string> socket_names() const override { return {}; }
  Reach reaches(const Name&, std::uint16_t, std::size_t) const override { return {true, "test"}; }
  std::unique_ptr<Path> connect(PeerId, const Name&, std::uint16_t, std::size_t) override {
    return std::make_unique<SimplePath>(link_);
  }
  bool progress() noexcept override { return false; }
  bool arm() noexcept override { return true; }
  void end_removed_keys() noexcept override {}
  void forget(std::uint32_t) noexcept override {}

 private:
  SimpleLink& link_;
};

// Rails over links "test.0", "test.1"; time passes when the test says so.
class SimpleRails {
 public:
  explicit SimpleRails(std::size_t count = 2) {
    links = std::vector<SimpleLink>(count, SimpleLink{far});
    for (SimpleLink& link : links) {
      endpoints_.push_back(std::make_unique<SimpleEndpoint>(link));
      named_.push_back({endpoints_.back().get(), "test." + std::to_string(named_.size())});
    }
  }
  ~SimpleRails() {
    if (rails) rails->begin_end();
  }
  void open() {
    rails = std::make_unique<lnx::Rails>(
        lnx::RailsParameters{.completions = completions,
                             .slice = slice,
                             .peer_deadline = 60,
                             .clock = [this] { return clock; },
                             .attended = [this] { return attended; },
                             .on_work = [this](lnx::Rails&) { work = true; },
                             .on_watch = [] {},
                             .on_lost = [](const Loss&) {},
                             .preferred = {},
                             .peers = peers,
                             .flow = {1, 1},
                             .to = {.peer = 0, .name = {}, .target = 0, .auth_index = 0}},
        named_);
  }
  void pass(Clock::duration span) {
    clock += span;
    attended += span;
  }
  // One turn of the context, without what the links do.
  void turn() {
    slice.begin();
    if (std::exchange(work, false)) rails->pump();
    rails->tick();
  }
  void move(std::size_t link) {
    if (links[link].path) links[link].path->move();
  }
  std::string how() const { return rails->report().how; }

  Far far;
  AddressVector peers;
  CompletionQueue completions{1 << 12, CompletionQueue::WhenFull::forget_oldest};
  Slice slice;
  Clock::time_point clock{std::chrono::hours(1)}, attended{std::chrono::hours(2)};
  bool work = true;
  std::vector<SimpleLink> links;
  std::unique_ptr<lnx::Rails> rails;

 private:
  std::vector<std::unique_ptr<SimpleEndpoint>> endpoints_;
  std::vector<lnx::RailLink> named_;
};

}  // namespace fab::test
