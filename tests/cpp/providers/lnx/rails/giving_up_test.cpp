// When a peer is given up, and when it is joined anew.

#include <doctest/doctest.h>

#include "providers/lnx/rails/held_rails.h"

using namespace fab;
using namespace fab::lnx;
using namespace fab::test;
using std::chrono::milliseconds;
using std::chrono::seconds;
using World = HeldRails;

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
    REQUIRE(world.lost.size() == 1);
    CHECK(world.lost[0].second == Errc::peer_lost);
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

TEST_CASE("a peer that forgot the flow is joined anew where it owes nothing, else it is lost") {
  for (const bool numbered : {false, true}) {
    for (const Errc refusal : {Errc::peer_lost, Errc::key_rejected}) {
      CAPTURE(numbered);
      CAPTURE(static_cast<int>(refusal));
      World world(1);
      world.opened();
      UserOp& open = world.post(numbered ? OpCode::atomic : OpCode::read, 8);
      world.ends[0].link.fail();
      world.turn();
      REQUIRE(is(world.held(0).front(), FrameType::join));
      world.ends[0].link.end(refusal);
      world.turn();
      world.turn();
      if (numbered || refusal != Errc::peer_lost) {
        CHECK(world.rails->state() == refusal);
        CHECK(open.outcome() == refusal);
        continue;
      }
      CHECK(world.rails->state() == Errc::ok);
      CHECK(world.rails->flow().epoch == 6);
      CHECK(world.rails->flow().peer == 77);
      REQUIRE(!world.held(0).empty());
      const Transfer& join = world.held(0).front();
      CHECK(is(join, FrameType::join));
      CHECK(frame_of(join).remote == 6);
      CHECK(frame_of(join).flags == 0);
      world.ends[0].link.end();
      world.turn();
      REQUIRE(!world.held(0).empty());
      CHECK(world.held(0).front().op == OpCode::read);
      world.ends[0].link.end();
      CHECK(open.outcome() == Errc::ok);
    }
  }
}

TEST_CASE("notes for a peer that forgot the flow are dropped") {
  World world(1);
  world.opened();
  world.post(OpCode::send);
  static_cast<Posting&>(*world.held(0).front().operation).request->announced = true;
  world.ends[0].link.room = 0;
  world.ends[0].link.end();
  world.ends[0].link.fail();
  world.ends[0].link.room = 10;
  world.turn();
  world.ends[0].link.end(Errc::peer_lost);
  world.turn();
  world.turn();
  REQUIRE(is(world.held(0).front(), FrameType::join));
  world.ends[0].link.end();
  world.turn();
  CHECK(world.held(0).empty());
}

TEST_CASE("rails that are being joined are waited for, also when they were refused before") {
  World world;
  world.opened(5);
  world.post();
  world.ends[0].link.end();
  world.turn(seconds(5));
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
