#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "fabric/session/pipe.h"
#include "providers/lnx/flows/flow_table.h"
#include "providers/lnx/rails/rails.h"

// Rails over streams in memory that break at any byte. What was on its way goes on arriving at the target, as
// in the sockets of a machine whose network failed, until the target cuts that stream or learns of its end.
namespace fab::test {

struct Ground {  // one process
  explicit Ground(std::uint8_t number) : id{number}, segment(Segment::create(id)) {
    segment.header().context_rights.of[0].events.store(1);
  }
  std::uint8_t id[16];
  Segment segment;
  RegionTable regions{segment.region_area()};
  CompletionQueue completions{1 << 16, CompletionQueue::WhenFull::forget_oldest};
  std::function<void()> wake = [] {};
  AddressVector peers;
  ReceiveQueue receives;
  EventOutlet events;
  lnx::FlowTable flows{receives, events, 60, [] {}};
  Errc refuses = Errc::ok;  // stripes, as soon as they are posted
};

struct End {
  End(Ground& owner, std::uint8_t link)
      : ground(owner),
        session({.segment = owner.segment,
                 .completions = owner.completions,
                 .receives = owner.receives,
                 .sender = std::make_shared<Sender>(
                     owner.peers, std::vector<Part>{{"test." + std::to_string(link), 0, "peer"}}),
                 .context_slot = 0,
                 .counts = counts,
                 .wake_domain = owner.wake,
                 .extensions = &owner.flows,
                 .on_cut = [this] { end(Errc::peer_lost); }}) {}
  void end(Errc why) {
    if (state != Errc::ok) return;
    state = why;
    session.fail(why);
  }
  Ground& ground;
  PathCounts counts;
  Errc state = Errc::ok;
  std::string wire;  // sent, not yet received
  Session session;
};

struct Stream {
  Stream(Ground& near_ground, Ground& far_ground, std::uint8_t number)
      : link(number), near(near_ground, number), far(far_ground, number) {}
  const std::uint8_t link;
  End near, far;
};

class StreamPath final : public Path {
 public:
  explicit StreamPath(std::shared_ptr<Stream> stream) : stream_(std::move(stream)) {}
  std::size_t post(std::span<const Transfer> batch) noexcept override {
    const Errc refused = stream_->near.ground.refuses;
    if (refused != Errc::ok && is_stripe(batch.front())) {
      batch.front().operation->settle(refused, 0);
      return 1;
    }
    return stream_->near.session.post(batch);
  }
  Errc state() const noexcept override { return stream_->near.state; }
  bool idle() const noexcept override { return true; }
  PathCounts counts() const noexcept override { return stream_->near.counts; }
  std::uint64_t oldest() const noexcept override { return stream_->near.session.oldest(); }
  PathReport report() const override { return {"test", "test"}; }
  void cut() noexcept override { stream_->near.end(Errc::peer_lost); }

 private:
  std::shared_ptr<Stream> stream_;
};

class BrokenStreams;
class StreamEndpoint final : public Endpoint {
 public:
  StreamEndpoint(BrokenStreams& world, std::uint8_t link) : world_(world), link_(link) {}
  std::vector<Part> parts() const override { return {}; }
  std::vector<std::string> socket_names() const override { return {}; }
  Reach reaches(const Name&, std::uint16_t, std::size_t) const override { return {true, "test"}; }
  std::unique_ptr<Path> connect(PeerId, const Name&, std::uint16_t, std::size_t) override;
  bool progress() noexcept override { return false; }
  bool arm() noexcept override { return true; }
  void end_removed_keys() noexcept override {}
  void forget(std::uint32_t) noexcept override {}

 private:
  BrokenStreams& world_;
  const std::uint8_t link_;
};

class BrokenStreams {
 public:
  BrokenStreams(unsigned seed, unsigned links) : random(seed) {
    std::vector<lnx::RailLink> all;
    for (std::uint8_t i = 0; i < links; ++i) {
      endpoints_.push_back(std::make_unique<StreamEndpoint>(*this, i));
      all.push_back({endpoints_.back().get(), "test." + std::to_string(i)});
    }
    rails =
        std::make_unique<lnx::Rails>(lnx::RailsParameters{.completions = near.completions,
                                                          .slice = slice,
                                                          .peer_deadline = 60,
                                                          .clock = [this] { return now; },
                                                          .attended = [this] { return now; },
                                                          .on_work = [this](lnx::Rails&) { work_ = true; },
                                                          .on_watch = [] {},
                                                          .on_lost = [](const Loss&) {},
                                                          .preferred = {},
                                                          .peers = near.peers,
                                                          .flow = {seed, 1},
                                                          .to = {}},
                                     all);
  }
  ~BrokenStreams() {
    rails->begin_end();
    for (const auto& stream : streams) stream->near.end(Errc::canceled), stream->far.end(Errc::canceled);
  }

  void step() {
    now += std::chrono::microseconds(20);
    slice.begin();
    if (std::exchange(work_, false)) rails->pump();  // as an endpoint does: nobody else calls it
    if (!rails->at_rest()) rails->tick();
    if (streams.empty()) return;
    const auto stream = streams[random() % streams.size()];
    if (stream->link == frozen) return;
    send(stream->near);
    send(stream->far);
    receive(stream->near, stream->far);
    receive(stream->far, stream->near);
    for (End* end : {&stream->near, &stream->far})
      if (end->state == Errc::ok && random() % 2) end->session.end_turn();
    // Learns of the end once it has read everything.
    if (stream->near.state != Errc::ok && stream->near.wire.empty() && random() % 8 == 0)
      stream->far.end(Errc::peer_lost);
    if (stream->far.state != Errc::ok && stream->far.wire.empty()) stream->near.end(Errc::peer_lost);
    std::erase_if(streams, [](const auto& some) {
      return some->near.state != Errc::ok && some->far.state != Errc::ok;
    });
  }
  void kill_one() {
    if (streams.empty()) return;
    End& end = streams[random() % streams.size()]->near;
    // Seldom one that has yet to join: pauses between attempts take real time.
    if (end.counts.settled == 0 && random() % 64 != 0) return;
    if (end.session.requests().outstanding() != 0 || random() % 4 == 0) end.end(Errc::peer_lost);
  }
  template <class Done>
  bool until(const Done& done, int kill_every = 0) {
    for (int turn = 0; turn < 20'000'000; ++turn) {
      if (done()) return true;
      if (kill_every && random() % static_cast<unsigned>(kill_every) == 0) kill_one();
      step();
    }
    return false;
  }

  std::mt19937 random;
  Ground near{1}, far{2};
  std::vector<std::shared_ptr<Stream>> streams;
  Slice slice;
  std::unique_ptr<lnx::Rails> rails;
  std::optional<std::uint8_t> frozen;            // link over which nothing gets, for as long as that is set
  Clock::time_point now{std::chrono::hours(1)};  // a step takes 20 us

 private:
  void send(End& from) {
    if (from.state == Errc::ok) put_on_wire(random, from.session, from.wire);
  }
  void receive(End& from, End& to) {
    if (from.wire.empty()) return;
    if (to.state != Errc::ok) return from.wire.clear();
    const Errc error = take_off_wire(random, from.wire, to.session);
    if (to.state != Errc::ok) return;  // cut by what it received
    CHECK(error == Errc::ok);
    if (error != Errc::ok) to.end(error);
  }

  std::vector<std::unique_ptr<StreamEndpoint>> endpoints_;
  bool work_ = true;
};

inline std::unique_ptr<Path> StreamEndpoint::connect(PeerId, const Name&, std::uint16_t, std::size_t) {
  // A new call from the same end makes the target drop the former one.
  world_.streams.push_back(std::make_shared<Stream>(world_.near, world_.far, link_));
  return std::make_unique<StreamPath>(world_.streams.back());
}

}  // namespace fab::test
