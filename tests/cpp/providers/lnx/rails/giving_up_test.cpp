// When a peer is given up, and when it is joined anew.

#include <doctest/doctest.h>

#include "providers/lnx/rails/held_rails.h"

using namespace fab;
using namespace fab::lnx;
using namespace fab::test;
using std::chrono::milliseconds;
using std::chrono::seconds;
using World = HeldRails;

namespace {
std::vector<World::Told> both_and_the_peer(Errc why = Errc::peer_lost) {
  return {{EventType::link_lost, Errc::peer_lost, 0, "test.0"},
          {EventType::link_lost, Errc::peer_lost, 0, "test.1"},
          {EventType::peer_lost, why, 0, ""}};
}
}  // namespace

TEST_CASE("a peer that was never reached is given up when each rail was refused three times") {
  World world;
  for (HeldEndpoint& end : world.ends) end.refuses = true;
  world.open();
  UserOp& put = world.post();
  for (int turn = 0; turn < 1000 && world.rails->state() == Errc::ok; ++turn) world.turn(milliseconds(10));
  CHECK(world.rails->state() == Errc::too_many_files);
  CHECK(put.outcome() == Errc::too_many_files);
  CHECK(world.ends[0].calls == 3);
  CHECK(world.ends[1].calls == 3);
  CHECK(world.lost.empty());  // it was never there
  CHECK(world.rails->tick() == Clock::time_point::max());
  UserOp& late = world.ops.emplace_back(OpCode::write);
  world.rails->post({&late.transfer, 1});
  CHECK(late.outcome() == Errc::too_many_files);
}

TEST_CASE("a peer that says nothing is given up at the deadline, not before") {
  World world;
  world.open(10);
  UserOp& put = world.post();
  world.turn(milliseconds(9'999));
  world.turn();
  CHECK(world.rails->state() == Errc::ok);
  const auto next = world.turn(milliseconds(1));
  CHECK(next == world.clock);
  world.turn();
  CHECK(world.rails->state() == Errc::unreachable);
  CHECK(put.outcome() == Errc::unreachable);
}

TEST_CASE("rails that gave a peer up are kept while a link holds something, and leave what they join late") {
  World world;
  world.open(1);
  world.post();
  world.turn(milliseconds(1000));
  world.turn();
  REQUIRE(world.rails->state() == Errc::unreachable);
  CHECK(!world.rails->forgotten());  // the links hold the joins
  world.ends[0].link.end();
  world.rails->pump();
  CHECK(world.ends[0].link.cuts == 1);  // so that the peer forgets the flow
  CHECK(world.ends[1].link.cuts == 0);
  CHECK(world.how() == "test.0 down; test.1 joining");
  world.ends[1].link.fail();
  world.rails->pump();
  CHECK(world.rails->forgotten());
}

TEST_CASE("a peer that was there is given up when its rails were refused for a second") {
  for (const bool deadline_first : {false, true}) {
    World world;
    world.opened(deadline_first ? 0.5 : 10);
    UserOp& put = world.post();
    world.ends[0].link.end();
    REQUIRE(put.operation.done());
    world.turn(seconds(5));
    UserOp& waits = world.post();
    for (HeldEndpoint& end : world.ends) {
      end.refuses = true;
      end.link.fail();
    }
    const auto gone = world.clock;
    for (int turn = 0; turn < 1000 && world.rails->state() == Errc::ok; ++turn) {
      // Refusals by this side alone say nothing of the peer.
      for (HeldEndpoint& end : world.ends) {
        end.refuses = false;
        end.link.fail();
      }
      world.turn(milliseconds(10));
    }
    CHECK(world.rails->state() == Errc::peer_lost);
    CHECK(waits.outcome() == Errc::peer_lost);
    CHECK(world.clock - gone >= milliseconds(deadline_first ? 500 : 1000));
    CHECK(world.clock - gone <= milliseconds(deadline_first ? 540 : 1040));
    CHECK(world.lost == both_and_the_peer());
  }
}

TEST_CASE("what this side cannot open says nothing of the peer: the deadline decides") {
  World world;
  world.opened(5);
  world.post();
  world.ends[0].link.end();
  world.turn(seconds(5));
  world.post();
  for (HeldEndpoint& end : world.ends) {
    end.refuses = true;
    end.link.fail();
  }
  world.turn();
  const auto gone = world.clock;
  while (world.rails->state() == Errc::ok && world.clock - gone < seconds(20)) world.turn(milliseconds(10));
  CHECK(world.rails->state() == Errc::peer_lost);
  CHECK(world.clock - gone >= seconds(5));
  CHECK(world.clock - gone < seconds(5) + milliseconds(50));
}

TEST_CASE("rails that rise and carry nothing do not keep a peer alive") {
  World world(1);
  world.opened(3);
  world.turn(seconds(10));
  world.post();
  world.ends[0].link.fail();
  const auto gone = world.clock;
  for (int turn = 0; turn < 10'000 && world.rails->state() == Errc::ok; ++turn) {
    world.turn(milliseconds(5));
    if (world.held(0).empty()) continue;
    if (is(world.held(0).front(), FrameType::join))
      world.ends[0].link.end();
    else
      world.ends[0].link.fail();
  }
  CHECK(world.rails->state() == Errc::peer_lost);
  CHECK(world.clock - gone < milliseconds(3200));

  World carries(1);
  carries.opened(3);
  carries.turn(seconds(10));
  for (int turn = 0; turn < 2000; ++turn) {
    if (carries.held(0).empty()) carries.post();
    carries.turn(milliseconds(5));
    if (carries.held(0).empty()) continue;
    if (!is(carries.held(0).front(), FrameType::join) && turn % 10 == 0)
      carries.ends[0].link.fail();
    else
      carries.ends[0].link.end();
  }
  CHECK(carries.rails->state() == Errc::ok);
}

TEST_CASE("a peer that forgot the flow is lost, whatever is open, and whatever other rails say") {
  for (const OpCode op : {OpCode::atomic, OpCode::read}) {
    for (const Errc refusal : {Errc::peer_lost, Errc::key_rejected}) {
      CAPTURE(static_cast<int>(op));
      CAPTURE(static_cast<int>(refusal));
      World world;
      world.opened();
      UserOp& open = world.post(op, 8);
      for (HeldEndpoint& end : world.ends) end.link.fail();
      world.turn();
      for (const auto slot : {0u, 1u}) {
        REQUIRE(is(world.held(slot).front(), FrameType::join));
        CHECK(frame_of(world.held(slot).front()).flags == frame_flag::kRejoin);
      }
      world.ends[0].link.end();
      world.ends[1].link.end(refusal);
      world.turn();
      CHECK(world.rails->state() == refusal);
      world.turn();
      CHECK(open.outcome() == refusal);
      CHECK(world.ends[0].link.cuts == 1);
      CHECK(world.lost ==
            both_and_the_peer(refusal));  // that the rail which had risen again was cut is not told
    }
  }
}

TEST_CASE("a put of which a part is stored does not go on at a peer that has forgotten the flow") {
  World world;
  world.opened();
  UserOp& put = world.post(OpCode::write, 4 << 20);
  REQUIRE(!world.held(0).empty());
  world.ends[0].link.end();
  for (HeldEndpoint& end : world.ends) end.link.fail();
  world.turn();
  for (HeldEndpoint& end : world.ends) end.link.end(Errc::peer_lost);
  world.turn();
  CHECK(put.outcome() == Errc::peer_lost);
}

TEST_CASE("a peer that has no room for a flow is asked again after pauses, and then given up") {
  World world(1);
  world.open();
  UserOp& put = world.post();
  for (unsigned times = 1; times <= 3; ++times) {
    REQUIRE(world.held(0).size() == 1);
    CHECK(frame_of(world.held(0).front()).flags == 0);
    CHECK(world.ends[0].calls == times);
    world.ends[0].link.end(Errc::peer_lost);
    world.turn();
    if (times == 3) break;
    CHECK(world.held(0).empty());
    CHECK(world.rails->state() == Errc::ok);
    world.turn(milliseconds(100));
  }
  world.turn();
  CHECK(world.rails->state() == Errc::peer_lost);
  CHECK(put.outcome() == Errc::peer_lost);
  CHECK(world.lost.empty());
}

TEST_CASE("a rail that came too late for the first join asks again for the flow that the others have") {
  World world;
  world.open();
  world.ends[0].link.end();
  world.turn();
  world.ends[1].link.end(Errc::peer_lost);
  world.turn();
  CHECK(world.rails->state() == Errc::ok);
  world.turn(milliseconds(100));
  REQUIRE(world.held(1).size() == 1);
  CHECK(frame_of(world.held(1).front()).flags == frame_flag::kRejoin);
  CHECK(world.ends[0].link.cuts == 0);
}

TEST_CASE("a peer to which nothing is under way is lost with the last rail, and told") {
  World world;
  world.opened();
  world.turn();
  world.ends[0].link.fail();
  world.turn();
  CHECK(world.rails->state() == Errc::ok);
  CHECK(world.lost == std::vector{both_and_the_peer().front()});
  world.ends[1].link.fail();
  const std::vector<unsigned> calls{world.ends[0].calls, world.ends[1].calls};
  world.turn();
  CHECK(world.rails->state() == Errc::peer_lost);
  CHECK(world.lost == both_and_the_peer());
  world.turn(seconds(5));
  for (const auto slot : {0u, 1u}) CHECK(world.ends[slot].calls == calls[slot]);
}

TEST_CASE("time in which a rail stood counts, though nobody looked") {
  World world(1);
  world.opened(3);
  for (int outage = 0; outage < 8; ++outage) {
    CAPTURE(outage);
    world.clock += seconds(60);  // and the process was idle
    UserOp& read = world.post(OpCode::read, 8);
    world.ends[0].link.fail();
    world.turn();
    world.turn(milliseconds(600));
    REQUIRE(world.rails->state() == Errc::ok);
    REQUIRE(!world.held(0).empty());
    world.ends[0].link.end();
    world.turn();
    world.ends[0].link.end_all(Errc::access);
    CHECK(read.outcome() == Errc::access);
    world.turn();
  }
}

TEST_CASE("rails that are being joined are waited for, also when they were refused before") {
  World world;
  world.opened(5);
  world.post();
  world.ends[0].link.end();
  world.turn(seconds(5));
  world.post();
  for (HeldEndpoint& end : world.ends) end.link.fail();
  world.turn();
  for (HeldEndpoint& end : world.ends) end.link.fail();
  world.turn();
  world.turn(milliseconds(20));
  CHECK(world.how() == "test.0 joining; test.1 joining");
  world.turn(seconds(3));
  world.turn();
  CHECK(world.rails->state() == Errc::ok);
  const unsigned before = world.works;
  world.turn(seconds(2));
  CHECK(world.works > before);
  world.turn();
  CHECK(world.rails->state() == Errc::peer_lost);
}
