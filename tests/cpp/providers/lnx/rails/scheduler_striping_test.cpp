// Large puts and gets over several rails: how the scheduler sends their stripes.

#include <doctest/doctest.h>

#include <vector>

#include "providers/lnx/rails/scheduled.h"
#include "providers/lnx/rails/stripes.h"

using namespace fab;
using namespace fab::lnx;
using namespace fab::test;
using std::chrono::milliseconds;
using World = Scheduled;

TEST_CASE("a large put goes in stripes over all rails, and then its end, once") {
  World world;
  UserOp& put = world.post(OpCode::write, 1 << 20, transfer_flag::kRemoteData);
  std::uint64_t seen = 0;
  bool ended = false;
  for (int turn = 0; turn < 100 && !put.operation.done(); ++turn) {
    world.send();
    if (turn == 0) {
      CHECK(world.count(0) == kStripesAhead);
      CHECK(world.count(1) == kStripesAhead);
      CHECK(!world.ground.scheduler.any_whole());
      CHECK(!world.ground.scheduler.empty());
    }
    for (std::size_t slot = 0; slot < 2; ++slot) {
      while (world.count(slot)) {
        const Transfer transfer = world.held(slot).front();
        auto& posting = static_cast<Posting&>(*transfer.operation);
        if (is_stripe(transfer)) {
          CHECK(!ended);
          seen += transfer.length;
          CHECK(posting.frame.id == 1 << 20);
          CHECK(posting.out == transfer.length);
          CHECK(posting.back == 0);
          CHECK(transfer.local == put.bytes.data() + posting.frame.data);
        } else {
          CHECK(!ended);
          ended = true;
          CHECK(posting.kind == Posting::Kind::end);
          CHECK(transfer.flags ==
                (transfer_flag::kMarked | transfer_flag::kStored | transfer_flag::kRemoteData));
          CHECK(transfer.local == nullptr);
          CHECK(transfer.length == 1 << 20);
          CHECK(seen == 1 << 20);
          CHECK(world.count(1) == 0);
          CHECK(slot == 0);  // over the primary rail
        }
        world.ground.links[slot].end();
      }
    }
  }
  CHECK(ended);
  CHECK(put.outcome() == Errc::ok);
  CHECK(put.operation.completion().length == 1 << 20);
  CHECK(world.ground.scheduler.empty());
}

TEST_CASE("a large get needs no end, and its stripes count as bytes that come back") {
  World world;
  UserOp& get = world.post(OpCode::read, 1 << 20);
  for (int turn = 0; turn < 100 && !get.operation.done(); ++turn) {
    world.send();
    for (std::size_t slot = 0; slot < 2; ++slot) {
      while (world.count(slot)) {
        const Transfer transfer = world.held(slot).front();
        auto& posting = static_cast<Posting&>(*transfer.operation);
        CHECK(is_stripe(transfer) != 0);
        CHECK(posting.back == transfer.length);
        CHECK(posting.out == 0);
        world.ground.links[slot].end();
      }
    }
  }
  CHECK(get.outcome() == Errc::ok);
}

TEST_CASE(
    "a put with data waits for puts beside the primary rail, and its own stripes hold up what is ordered") {
  World world(2, {}, {1, 1000});
  world.post(OpCode::write, kMedium);
  world.send();
  REQUIRE(world.count(1) == 1);
  world.post(OpCode::write, kStriped, transfer_flag::kRemoteData);
  CHECK(!world.send());
  CHECK(world.ground.scheduler.any_whole());
  world.ground.links[1].end();
  CHECK(world.send());
  CHECK(!world.ground.scheduler.any_whole());
  UserOp& behind = world.post(OpCode::send);
  for (int turn = 0; turn < 100 && !world.ops[1].operation.done(); ++turn) {
    for (std::size_t slot = 0; slot < 2; ++slot) {
      for (const Transfer& transfer : world.held(slot)) CHECK(transfer.op == OpCode::write);
      world.ground.links[slot].end_all();
    }
    if (!world.ops[1].operation.done()) world.send();
  }
  REQUIRE(world.ops[1].operation.done());
  world.send();
  world.ground.links[0].end_all();
  CHECK(behind.operation.done());
}

TEST_CASE("gets in stripes hold up nothing") {
  World world;
  world.post(OpCode::read, kStriped);
  world.send();
  REQUIRE(world.count(0) + world.count(1) > 1);
  const std::size_t before = world.count(0);
  world.post(OpCode::send);
  world.send();
  CHECK(world.count(0) == before + 1);
}

TEST_CASE("a stripe or an end for which there is no room is given later") {
  World world;
  for (HeldLink& link : world.ground.links) link.room = 0;
  UserOp& put = world.post(OpCode::write, kStriped);
  CHECK(world.send());  // it waits in another queue
  CHECK(!world.send());
  CHECK(world.count(0) + world.count(1) == 0);
  world.ground.links[0].room = 100;
  for (int turn = 0; turn < 100 && (world.ground.links[0].room == 100 || world.count(0) != 0); ++turn) {
    const bool last = world.count(0) == 1 && request_of(world.held(0).front()).next == kStriped;
    if (world.count(0)) {
      if (last) world.ground.links[0].room = 0;
      world.ground.links[0].end();
    }
    world.send();
  }
  CHECK(!put.operation.done());
  CHECK(world.count(0) == 0);  // no room for the end
  CHECK(!world.send());
  world.ground.links[0].room = 100;
  world.ground.rails.lost_some = true;
  CHECK(!world.send());
  world.ground.rails.lost_some = false;
  CHECK(world.send());
  REQUIRE(world.count(0) == 1);
  CHECK(static_cast<Posting&>(*world.held(0).front().operation).kind == Posting::Kind::end);
  CHECK(!world.send());  // once
  world.ground.links[0].end();
  CHECK(put.outcome() == Errc::ok);
}

TEST_CASE(
    "a stripe that is refused ends the put with that when all others have come back, and sends no end") {
  World world;
  UserOp& put = world.post(OpCode::write, 1 << 20);
  world.send();
  world.ground.links[0].end(Errc::bounds);
  CHECK(!put.operation.done());
  CHECK(!world.send());  // nothing more of it
  world.break_rail(1);   // the others are lost: nobody waits for them
  world.ground.links[0].end_all();
  CHECK(put.outcome() == Errc::bounds);
  CHECK(world.ground.scheduler.empty());
}

TEST_CASE("a put whose stripes are refused while they are posted is over when they are") {
  World world;
  for (HeldLink& link : world.ground.links) link.answers = Errc::bounds;
  UserOp& put = world.post(OpCode::write, 1 << 20);
  world.send();
  CHECK(put.operation.done());
  CHECK(put.outcome() == Errc::bounds);
}

TEST_CASE("stripes stop where the slice ends, and go on with the next one") {
  World world(2, {}, {1, 1});
  for (int i = 0; i < 100; ++i) world.post(OpCode::read, kStriped);
  world.ground.slice.begin();
  world.ground.slice.spend(0, Slice::kTransfers - 1);
  world.ground.scheduler.send();
  CHECK(world.count(0) + world.count(1) == 1);
  CHECK(world.send());
  CHECK(world.count(0) == kStripesAhead);
  CHECK(world.count(1) == kStripesAhead);
}

TEST_CASE("stripes of a rail that never showed its bandwidth are short, unless the user says its share") {
  for (const bool weighted : {false, true}) {
    World world(2, {}, weighted ? std::vector<double>{3, 1} : std::vector<double>{});
    world.post(OpCode::read, 8 << 20);
    world.send();
    REQUIRE(world.count(0) == kStripesAhead);
    const std::uint64_t first = world.held(0).front().length;
    CHECK(first == (weighted ? 3u << 20 : kFirstStripe));
  }
}

TEST_CASE("bandwidth is measured by stripes that arrived") {
  World world;
  world.post(OpCode::read, 8 << 20);
  world.send();
  world.ground.pass(milliseconds(10));
  const std::uint64_t length = world.held(0).front().length;
  world.ground.links[0].end();
  CHECK(world.ground.rails[0].rate == doctest::Approx(static_cast<double>(length) / 0.01));
  world.ground.links[1].end(Errc::bounds);
  CHECK(world.ground.rails[1].rate == 0);
}
