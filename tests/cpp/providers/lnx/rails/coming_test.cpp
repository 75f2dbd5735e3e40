// How rails come and go, and how they end.

#include <doctest/doctest.h>

#include <cstdio>
#include <vector>

#include "providers/lnx/rails/held_rails.h"

using namespace fab;
using namespace fab::lnx;
using namespace fab::test;
using std::chrono::milliseconds;
using std::chrono::seconds;
using World = HeldRails;

TEST_CASE("every rail joins the flow, and carries when the peer has agreed") {
  World world(3);
  world.open();
  CHECK(world.how() == "test.0 joining; test.1 joining; test.2 joining");
  CHECK(world.rails->report().link == "test.0+test.1+test.2");
  for (std::uint32_t slot = 0; slot < 3; ++slot) {
    REQUIRE(world.held(slot).size() == 1);
    const Transfer& join = world.held(slot).front();
    CHECK(is(join, FrameType::join));
    const FrameHeader& frame = frame_of(join);
    CHECK(frame.key == 77);
    CHECK(frame.remote == 5);
    CHECK(RailNumber::unpack(frame.data).slot == slot);
    CHECK(RailNumber::unpack(frame.data).incarnation == 1);
    CHECK(frame.flags == 0);
    CHECK(world.ends[slot].peer == (world.rails->forgotten() ? kNoPeer : 0));
  }
  UserOp& put = world.post();
  const unsigned before = world.works;
  world.ends[1].link.end();
  CHECK(world.works > before);
  CHECK(world.how() == "test.0 joining; test.1 test; test.2 joining");
  world.turn();
  CHECK(world.held(1).size() == 1);
  world.ends[1].link.end();
  CHECK(put.outcome() == Errc::ok);
  CHECK(world.rails->state() == Errc::ok);
  CHECK(world.rails->counts().settled == 1);
  CHECK(world.rails->oldest() == 2);
}

TEST_CASE("a rail that is lost is opened again, joins with a greater number, and is fenced off before") {
  World world;
  world.opened();
  UserOp& put = world.post();
  REQUIRE(world.held(0).size() == 1);
  world.ends[0].link.fail();
  CHECK(world.how() == "test.0 test; test.1 test");
  world.turn();
  CHECK(world.how() == "test.0 joining; test.1 test");
  REQUIRE(world.held(1).size() >= 2);
  CHECK(is(world.held(1)[0], FrameType::fence));
  CHECK(RailNumber::unpack(frame_of(world.held(1)[0]).data).slot == 0);
  CHECK(RailNumber::unpack(frame_of(world.held(1)[0]).data).incarnation == 1);
  CHECK(world.held(1)[1].op == OpCode::write);
  REQUIRE(world.held(0).size() == 1);
  CHECK(is(world.held(0)[0], FrameType::join));
  CHECK(RailNumber::unpack(frame_of(world.held(0)[0]).data).incarnation == 2);
  CHECK(frame_of(world.held(0)[0]).flags == frame_flag::kRejoin);
  world.ends[1].link.end_all();
  CHECK(put.outcome() == Errc::ok);
  world.ends[0].link.end();
  CHECK(world.how() == "test.0 test; test.1 test");
}

TEST_CASE("a rail that joins fences off those that are not up") {
  World world(3);
  world.open();
  world.ends[0].link.end();
  world.turn();
  world.ends[1].link.fail();  // before it has joined
  world.turn();
  world.ends[2].link.end();
  world.turn();
  world.post();
  REQUIRE(!world.held(0).empty());
  CHECK(world.held(0)[0].op == OpCode::write);  // the loss of one that did not carry is nobody's
  UserOp& read = world.ops.emplace_back(OpCode::read, 100'000);
  UserOp& more = world.ops.emplace_back(OpCode::read, 100'000);
  world.slice.begin();
  world.rails->post({&read.transfer, 1});
  world.rails->post({&more.transfer, 1});
  REQUIRE(!world.held(2).empty());
  CHECK(is(world.held(2)[0], FrameType::fence));
  CHECK(RailNumber::unpack(frame_of(world.held(2)[0]).data).slot == 1);
}

TEST_CASE("a fence or a join that found no memory makes the rail useless: it is opened again") {
  World world;
  world.opened();
  SUBCASE("fence") {
    world.post();
    world.ends[0].link.fail();
    world.turn();
    REQUIRE(is(world.held(1)[0], FrameType::fence));
    const unsigned before = world.works;
    world.ends[1].link.end(Errc::no_memory);
    CHECK(world.works > before);
    const unsigned calls = world.ends[1].calls;
    world.turn();
    CHECK(world.ends[1].calls == calls + 1);
    CHECK(world.ends[1].link.cuts == 1);
    CHECK(is(world.held(1)[0], FrameType::join));
  }
  SUBCASE("join") {
    world.ends[0].link.fail();
    world.turn();
    REQUIRE(is(world.held(0)[0], FrameType::join));
    world.ends[0].link.end(Errc::no_memory);
    const unsigned calls = world.ends[0].calls;
    world.turn();
    CHECK(world.ends[0].link.cuts == 1);
    CHECK(world.how() == "test.0 down; test.1 test");
    world.turn(milliseconds(20));
    CHECK(world.ends[0].calls == calls + 1);
  }
  CHECK(world.rails->state() == Errc::ok);
}

TEST_CASE("a link that cannot be opened is tried again, for a peer that is there") {
  World world;
  world.opened();
  world.ends[0].refuses = true;
  world.ends[0].link.fail();
  world.turn();
  CHECK(world.how() == "test.0 down; test.1 test");
  const unsigned calls = world.ends[0].calls;
  world.turn(milliseconds(19));
  CHECK(world.ends[0].calls == calls);
  const auto next = world.turn(milliseconds(1));
  CHECK(world.ends[0].calls == calls + 1);
  CHECK(next == world.clock + milliseconds(40));
  world.ends[0].refuses = false;
  world.turn(milliseconds(40));
  CHECK(world.how() == "test.0 joining; test.1 test");
  world.ends[0].link.end();
  CHECK(world.how() == "test.0 test; test.1 test");
  world.ends[0].no_memory = true;
  world.ends[0].link.fail();
  world.turn();
  CHECK(world.how() == "test.0 down; test.1 test");
}

TEST_CASE("a link that has no room for the join is down") {
  World world;
  world.ends[0].link.room = 0;
  world.open();
  CHECK(world.how() == "test.0 down; test.1 joining");
}

TEST_CASE("a rail that joins long after it was missed sits an exam, if another one carries") {
  for (const bool late : {false, true}) {
    World world;
    world.open();
    world.ends[0].link.end();
    world.turn();
    world.turn(milliseconds(late ? 501 : 499));
    world.ends[1].link.end();
    world.turn();
    CHECK(world.how() == (late ? "test.0 test; test.1 set aside" : "test.0 test; test.1 test"));
  }
}

TEST_CASE("when the last rail is lost, one that sits an exam carries at once, and others are tried at once") {
  World world(3);
  world.open();
  world.ends[0].link.end();
  world.turn();
  world.turn(seconds(1));
  world.ends[1].link.end();
  world.ends[2].refuses = true;
  world.ends[2].link.fail();
  world.turn();
  REQUIRE(world.how() == "test.0 test; test.1 set aside; test.2 down");
  const unsigned calls = world.ends[2].calls;
  world.ends[0].link.fail();
  world.turn();
  CHECK(world.how().find("test.1 test") != std::string::npos);
  CHECK(world.ends[2].calls == calls + 1);
}

TEST_CASE("an error of a rail that stands is the request's; of one that is lost it is nobody's") {
  World world;
  world.opened();
  UserOp& refused = world.post();
  world.ends[0].link.end(Errc::bounds);
  CHECK(refused.outcome() == Errc::bounds);
  UserOp& repeated = world.post();
  world.ends[0].link.fail();
  CHECK(!repeated.operation.done());
}

TEST_CASE("what ends gives work where something waits, and none where nothing does") {
  World world(1);
  world.opened();
  world.turn();
  world.post();
  const unsigned before = world.works;
  world.ends[0].link.end();
  CHECK(world.works == before);
  world.post();
  world.ends[0].link.room = 0;
  world.post();
  const unsigned waiting = world.works;
  world.ends[0].link.end();
  CHECK(world.works == waiting + 1);
  world.ends[0].link.room = 100;
  world.turn();
  world.post(OpCode::send);
  static_cast<Posting&>(*world.held(0).back().operation).request->announced = true;
  const unsigned noting = world.works;
  world.ends[0].link.end_all();
  CHECK(world.works > noting);
}

TEST_CASE("the peer is told of what is settled after 64, without being asked") {
  World world(1);
  world.opened();
  for (int i = 0; i < 64; ++i) {
    CHECK(world.held(0).empty());
    world.post();
    const unsigned before = world.works;
    world.ends[0].link.end();
    CHECK((world.works != before) == (i == 63));
    if (i < 63) continue;
    world.turn();
    REQUIRE(world.held(0).size() == 1);
    CHECK(is(world.held(0)[0], FrameType::settled));
    CHECK(frame_of(world.held(0)[0]).total == 65);
  }
}

TEST_CASE("the handle that is told of a loss is the last one by which the peer was asked for") {
  World world;
  world.opened();
  world.rails->known_as(9);
  world.rails->fail(Errc::peer_lost);
  REQUIRE(world.lost.size() == 1);
  CHECK(world.lost[0].peer == 9);
}

TEST_CASE("notes for which a slice does not suffice are work for the next turn") {
  World world;
  world.opened();
  for (int i = 0; i < 100; ++i) {
    world.post(OpCode::send);
    static_cast<Posting&>(*world.held(0).back().operation).request->announced = true;
  }
  for (HeldEndpoint& end : world.ends) end.link.room = 0;
  world.ends[0].link.end_all();
  world.ends[0].link.room = 1000;
  world.slice.begin();
  const unsigned before = world.works;
  world.rails->pump();
  CHECK(world.held(0).size() == Slice::kTransfers);
  CHECK(world.works > before);
}

TEST_CASE("a rail that is lost gives work, and rails of which none is left are watched") {
  World world(1);
  world.opened();
  world.turn();
  REQUIRE(!world.rails->watched());
  world.post();
  world.ends[0].link.fail();
  const unsigned before = world.works;
  world.rails->tick();
  CHECK(world.works > before);
  CHECK(world.rails->watched());
}

TEST_CASE("the only rail is never set aside, however often it is lost") {
  World world(1);
  world.opened();
  for (int losses = 0; losses < 5; ++losses) {
    world.post();
    world.ends[0].link.fail();
    world.turn();
    CHECK(world.how() == "test.0 joining");
    world.ends[0].link.end();
    world.turn(milliseconds(5));
    CHECK(world.how() == "test.0 test");
    world.ends[0].link.end_all();
  }
}

TEST_CASE("a rail that is lost while it sits an exam stays away as long as before") {
  World world;
  world.open();
  world.ends[0].link.end();
  world.turn();
  world.turn(milliseconds(501));
  world.ends[1].link.end();
  world.turn();
  REQUIRE(world.how() == "test.0 test; test.1 set aside");
  const unsigned calls = world.ends[1].calls;
  world.ends[1].link.fail();
  world.turn();
  world.turn(milliseconds(249));
  CHECK(world.ends[1].calls == calls);
  world.turn(milliseconds(1));
  CHECK(world.ends[1].calls == calls + 1);
}

TEST_CASE("a look is wanted where somebody receives slowly") {
  World world;
  world.opened();
  world.post(OpCode::send);
  static_cast<Posting&>(*world.held(0).front().operation).announced = true;
  world.turn();
  world.ends[0].link.end(Errc::ok, 1);  // the sign of life
  CHECK(world.turn() == world.clock + seconds(1));
}

TEST_CASE("hints go to all rails that are there") {
  World world;
  world.opened();
  world.rails->hint({});
  world.ends[0].refuses = true;
  world.ends[0].link.fail();
  world.turn();
  world.rails->hint({});  // nothing can be told of one that is down
  CHECK(world.ends[0].link.hints == 1);
  CHECK(world.ends[1].link.hints == 2);
}

// --- the end

TEST_CASE("at the end the peer is told that nothing more will come, over each rail that is up") {
  World world(3);
  world.open();
  world.ends[0].link.end();
  world.ends[1].link.end();
  world.turn();
  UserOp& put = world.post();
  world.ends[1].link.state = Errc::ok;
  world.rails->begin_end();
  REQUIRE(world.held(0).size() == 2);
  CHECK(is(world.held(0)[1], FrameType::settled));
  CHECK(frame_of(world.held(0)[1]).total == Flow::kOver);
  REQUIRE(world.held(1).size() == 1);
  CHECK(frame_of(world.held(1)[0]).total == Flow::kOver);
  CHECK(world.held(2).size() == 1);  // its join
  // From now on nothing is repeated.
  world.ends[0].link.fail();
  CHECK(put.outcome() == Errc::peer_lost);
  CHECK(world.rails->state() == Errc::ok);
}

TEST_CASE("what waits is sent before the goodbye") {
  World world(1);
  world.opened();
  world.ends[0].link.room = 0;
  world.post();
  world.ends[0].link.room = 10;
  world.slice.begin();
  world.rails->begin_end();
  REQUIRE(world.held(0).size() == 2);
  CHECK(world.held(0)[0].op == OpCode::write);
}

TEST_CASE("rails that end settle all that they had, and tell nobody of a loss") {
  World world;
  world.opened();
  UserOp& sent = world.post();
  world.ends[0].link.room = 0;
  UserOp& waits = world.post();
  world.rails.reset();
  CHECK(sent.operation.done());
  CHECK(waits.outcome() == Errc::canceled);
  CHECK(world.lost.empty());
}

TEST_CASE("what failed once stays so, and tells of it once") {
  World world;
  world.opened();
  world.rails->fail(Errc::peer_lost);
  world.rails->fail(Errc::canceled);
  CHECK(world.rails->state() == Errc::peer_lost);
  CHECK(world.lost.size() == 1);
  CHECK(world.rails->forgotten());
}

// --- rest

TEST_CASE("rails rest when all are up, nothing is under way and nothing is held against them") {
  World world;
  world.open();
  CHECK(!world.rails->at_rest());
  world.ends[0].link.end();
  CHECK(!world.rails->at_rest());
  world.ends[1].link.end();
  world.turn();
  CHECK(world.rails->at_rest());
  CHECK(world.rails->idle());
  world.post();
  CHECK(!world.rails->at_rest());
  CHECK(!world.rails->idle());
  CHECK(world.rails->watched());
  CHECK(world.watches == 1);
  world.post();
  CHECK(world.watches == 1);  // as long as it goes on
  world.ends[0].link.end_all();
  world.turn();
  CHECK(!world.rails->watched());
  world.ends[1].link.end_all();
  world.turn();
  CHECK(world.rails->at_rest());
}

TEST_CASE("rails do not rest when one of them has ended unnoticed, and a look tells of it") {
  World world;
  world.opened();
  world.turn();
  REQUIRE(world.rails->at_rest());
  world.ends[0].link.fail();
  CHECK(!world.rails->at_rest());
  world.rails->tick();
  CHECK(world.how() == "test.0 joining; test.1 test");
}

TEST_CASE("one rail alone is not watched while it carries") {
  World world(1);
  world.opened();
  world.turn();
  world.post();
  CHECK(!world.rails->watched());
  CHECK(world.turn() == Clock::time_point::max());
}

TEST_CASE("more than may be open is taken later") {
  World world(1);
  world.opened();
  world.ends[0].link.room = 0;
  std::vector<Transfer> batch;
  for (std::size_t i = 0; i < Journal::kMostOpen + 5; ++i)
    batch.push_back(world.ops.emplace_back(OpCode::write, 8).transfer);
  world.slice.begin();
  CHECK(world.rails->post(batch) == Journal::kMostOpen);
  CHECK(world.rails->counts().posted == Journal::kMostOpen);
}

TEST_CASE("a report says how fast each rail was") {
  World world;
  world.opened();
  world.post(OpCode::read, 4 << 20);
  world.clock += milliseconds(10);
  const auto length = static_cast<double>(world.held(0).front().length);
  world.ends[0].link.end();
  char expected[64];
  std::snprintf(expected, sizeof expected, "test.0 test, %.2f Gbit/s; test.1 test", length * 8 / 0.01 / 1e9);
  CHECK(world.how() == expected);
}
