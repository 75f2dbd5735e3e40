#pragma once

#include <doctest/doctest.h>

#include <deque>
#include <memory>
#include <new>
#include <utility>
#include <vector>

#include "fabric/address_vector/address_vector.h"
#include "fabric/types/error.h"
#include "providers/lnx/rails/rail_ground.h"
#include "providers/lnx/rails/rails.h"

namespace fab::test {

// Gives out paths, or does not.
class HeldEndpoint final : public Endpoint {
 public:
  std::vector<Part> parts() const override { return {}; }
  std::vector<std::string> socket_names() const override { return {}; }
  Reach reaches(const Name&, std::uint16_t, std::size_t) const override { return {true, "test"}; }
  std::unique_ptr<Path> connect(PeerId id, const Name&, std::uint16_t target,
                                std::size_t auth_index) override {
    ++calls;
    CHECK(target == 3);
    CHECK(auth_index == 4);
    peer = id;
    if (no_memory) throw std::bad_alloc();
    if (refuses) throw Error(Errc::too_many_files, "no");
    return std::make_unique<HeldPath>(link);
  }
  bool progress() noexcept override { return false; }
  bool arm() noexcept override { return true; }
  void end_removed_keys() noexcept override {}
  void forget(std::uint32_t) noexcept override {}

  HeldLink link;
  bool refuses = false, no_memory = false;
  unsigned calls = 0;
  PeerId peer = kNoPeer;
};

// Rails over links that do what a test says.
struct HeldRails {
  std::deque<UserOp> ops;
  CompletionQueue completions{1 << 12, CompletionQueue::WhenFull::forget_oldest};
  AddressVector peers;
  Slice slice;
  Clock::time_point clock{std::chrono::hours(1)}, attended{std::chrono::hours(2)};
  std::vector<HeldEndpoint> ends;
  struct Told {
    EventType type;
    Errc error;
    PeerId peer;
    std::string link;
    bool operator==(const Told&) const = default;
  };
  std::vector<Told> lost;
  unsigned works = 0, watches = 0;
  std::unique_ptr<lnx::Rails> rails;

  explicit HeldRails(std::size_t count = 2) : ends(count) {}
  void open(double peer_deadline = 10) {
    std::vector<lnx::RailLink> links;
    for (HeldEndpoint& end : ends) links.push_back({&end, "test." + std::to_string(links.size())});
    rails = std::make_unique<lnx::Rails>(
        lnx::RailsParameters{.completions = completions,
                             .slice = slice,
                             .peer_deadline = peer_deadline,
                             .clock = [this] { return clock; },
                             .attended = [this] { return attended; },
                             .on_work = [this](lnx::Rails&) { ++works; },
                             .on_watch = [this] { ++watches; },
                             .on_lost =
                                 [this](const Loss& loss) {
                                   lost.push_back({loss.type, loss.error, loss.peer, std::string(loss.link)});
                                 },
                             .preferred = {},
                             .peers = peers,
                             .flow = {77, 5},
                             .to = {.peer = 0, .name = {}, .target = 3, .auth_index = 4}},
        links);
  }
  // All joins are answered.
  void opened(double peer_deadline = 10) {
    open(peer_deadline);
    for (HeldEndpoint& end : ends) end.link.end();
    rails->pump();
  }
  Clock::time_point turn(Clock::duration after = {}) {
    clock += after;
    attended += after;
    slice.begin();
    rails->pump();
    return rails->tick();
  }
  UserOp& post(OpCode op = OpCode::write, std::size_t length = 100) {
    UserOp& posted = ops.emplace_back(op, length);
    slice.begin();
    CHECK(rails->post({&posted.transfer, 1}) == 1);
    return posted;
  }
  std::deque<Transfer>& held(std::size_t slot) { return ends[slot].link.held; }
  std::string how() const { return rails->report().how; }
};

}  // namespace fab::test
