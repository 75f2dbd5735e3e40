// What goes over which rail, in which order, and what becomes of it when a rail is lost.

#include "providers/lnx/rails/scheduler.h"

#include <doctest/doctest.h>

#include <vector>

#include "providers/lnx/rails/scheduled.h"

using namespace fab;
using namespace fab::lnx;
using namespace fab::test;
using World = Scheduled;

TEST_CASE("small requests go over the first rail that is trusted, or else the first") {
  World world(3);
  CHECK(world.ground.scheduler.empty());
  CHECK(!world.send());
  world.post(OpCode::write);
  CHECK(!world.ground.scheduler.empty());
  CHECK(world.ground.scheduler.any_whole());
  CHECK(world.send());
  CHECK(world.count(0) == 1);
  CHECK(world.ground.scheduler.empty());
  CHECK(!world.send());
  world.ground.links[0].end();
  CHECK(world.ops[0].outcome() == Errc::ok);
  CHECK(world.ops[0].operation.completion().length == 100);

  world.ground.rails[0].trusted = world.ground.rails[1].trusted = false;
  world.post(OpCode::read);
  world.send();
  CHECK(world.count(2) == 1);
  world.ground.links[2].end();
  world.ground.rails[2].trusted = false;
  world.post(OpCode::atomic, 8);
  world.send();
  CHECK(world.count(0) == 1);
}

TEST_CASE("the rail that was preferred is first, if it is up") {
  World world(3, "test.1");
  world.post(OpCode::write);
  world.send();
  CHECK(world.count(1) == 1);
  world.ground.links[1].end();
  world.ground.rails[1].trusted = false;
  world.post(OpCode::write);
  world.send();
  CHECK(world.count(0) == 1);
  world.ground.links[0].end();
  world.ground.rails[1].trusted = true;
  world.break_rail(1);
  world.post(OpCode::write);
  world.send();
  CHECK(world.count(0) == 1);
}

TEST_CASE("the primary rail changes only when nothing is under way on the one before") {
  World world;
  world.post(OpCode::write);
  world.send();
  world.ground.rails[0].trusted = false;
  world.post(OpCode::write);
  world.send();
  CHECK(world.count(0) == 2);
  world.ground.links[0].end_all();
  world.post(OpCode::write);
  world.send();
  CHECK(world.count(1) == 1);
  CHECK(world.ground.rails.primary == &world.ground.rails[1]);
}

TEST_CASE("nothing goes where no rail is usable, nor past the one that is busy and gone") {
  World world;
  world.post(OpCode::write);
  world.ground.rails.lost_some = true;
  CHECK(!world.send());
  CHECK(world.ground.scheduler.any_whole());
  world.ground.rails.lost_some = false;
  CHECK(world.send());
  // The primary rail still has a request, but cannot take more: no other one becomes primary.
  world.ground.rails[0].state = Rail::State::aside;
  world.post(OpCode::write);
  CHECK(!world.send());
  CHECK(world.count(1) == 0);
}

TEST_CASE("medium puts and gets and free messages take the rail that is done first, others the primary one") {
  World world;
  world.post(OpCode::write, kMedium);
  world.post(OpCode::write, kMedium);
  world.post(OpCode::read, kMedium);
  world.send();
  CHECK(world.count(0) == 2);
  CHECK(world.count(1) == 1);
  world.post(OpCode::send, 100, transfer_flag::kUnordered);
  world.post(OpCode::write, kMedium - 1);
  world.send();
  CHECK(world.count(1) == 2);
  CHECK(world.count(0) == 3);
}

TEST_CASE("what is ordered waits for puts that took other rails, and not for gets") {
  World world;
  world.post(OpCode::write, kMedium);
  world.post(OpCode::read, kMedium);
  world.send();
  REQUIRE(world.count(1) == 1);  // the get
  world.post(OpCode::send);
  world.send();
  CHECK(world.count(0) == 2);
  world.post(OpCode::write, kMedium);
  world.post(OpCode::write, kMedium);
  world.post(OpCode::write, kMedium);
  world.send();
  REQUIRE(world.count(1) > 1);
  const std::size_t before = world.count(0);
  for (const OpCode op : {OpCode::send, OpCode::atomic, OpCode::write})
    world.post(op, 8, op == OpCode::write ? transfer_flag::kRemoteData : std::uint16_t{0});
  CHECK(!world.send());
  CHECK(world.count(0) == before);
  world.ground.links[0].end_all();
  CHECK(!world.send());
  while (world.count(1) != 0) world.ground.links[1].end();
  CHECK(world.send());
  REQUIRE(world.count(0) == 3);
  CHECK(world.held(0)[0].op == OpCode::send);
  CHECK(world.held(0)[1].op == OpCode::atomic);
  CHECK(world.held(0)[2].op == OpCode::write);
}

TEST_CASE("a request goes with its number, its own flags, and is delivered before it is told") {
  World world;
  const std::uint16_t all = transfer_flag::kRemoteData | transfer_flag::kTagged | transfer_flag::kPiece |
                            transfer_flag::kLastPiece | transfer_flag::kUnordered;
  UserOp& put = world.post(OpCode::send, 100, all);
  world.ops.back().transfer.delivery = Delivery::commit;
  UserOp& get = world.post(OpCode::read);
  UserOp& durable = world.ops.emplace_back(OpCode::write);
  durable.transfer.delivery = Delivery::commit;
  world.ground.scheduler.enqueue(*world.ground.journal.accept(durable.transfer, Errc::ok));
  world.send();
  REQUIRE(world.count(0) + world.count(1) == 3);
  for (std::size_t slot = 0; slot < 2; ++slot) {
    for (const Transfer& transfer : world.held(slot)) {
      auto& posting = static_cast<Posting&>(*transfer.operation);
      CHECK(posting.kind == Posting::Kind::whole);
      if (transfer.op == OpCode::read) {
        CHECK(transfer.flags == 0);
        CHECK(transfer.local == get.bytes.data());
        CHECK(transfer.delivery == Delivery::delivery);
        CHECK(posting.out == 0);
        CHECK(posting.back == 100);
        continue;
      }
      CHECK(posting.frame.id == posting.request->number);
      CHECK(posting.frame.id != 0);
      CHECK(posting.out == 100);
      CHECK(posting.back == 0);
      if (transfer.op == OpCode::send) {
        CHECK(transfer.flags == ((all & ~transfer_flag::kUnordered) | transfer_flag::kMarked));
        CHECK(transfer.delivery == Delivery::delivery);
        CHECK(transfer.local == put.bytes.data());
      } else {
        CHECK(transfer.flags == transfer_flag::kMarked);
        CHECK(transfer.delivery == Delivery::commit);
      }
    }
  }
}

TEST_CASE("what is completed when it left here is told when it was delivered") {
  World world;
  UserOp& put = world.ops.emplace_back(OpCode::write);
  put.transfer.delivery = Delivery::transmit;
  world.ground.scheduler.enqueue(*world.ground.journal.accept(put.transfer, Errc::ok));
  world.send();
  CHECK(world.held(0).front().delivery == Delivery::delivery);
}

TEST_CASE("a large request behind a small one goes in stripes, and a small one behind it goes at once") {
  World world;
  world.post(OpCode::write);
  world.post(OpCode::read, kStriped);
  world.post(OpCode::write);
  world.send();
  std::size_t small = 0, stripes = 0;
  for (std::size_t slot = 0; slot < 2; ++slot)
    for (const Transfer& transfer : world.held(slot)) ++(is_stripe(transfer) ? stripes : small);
  CHECK(small == 2);
  CHECK(stripes > 1);
}

TEST_CASE("a link that is full gets the rest later, in order") {
  World world;
  for (int i = 0; i < 10; ++i) world.post(OpCode::send);
  world.ground.links[0].room = 4;
  CHECK(world.send());
  CHECK(world.count(0) == 4);
  CHECK(world.ground.rails[0].postings == 4);
  CHECK(world.ground.rails[0].bytes == 400);
  world.ground.links[0].room = 0;
  CHECK(!world.send());
  world.ground.links[0].room = 100;
  CHECK(world.send());
  REQUIRE(world.count(0) == 10);
  for (std::size_t i = 0; i < 10; ++i) {
    CHECK(request_of(world.held(0)[i]).place == i + 1);
    CHECK(request_of(world.held(0)[i]).number == i + 1);
  }
}

TEST_CASE("puts that a full link did not take beside the primary rail hold nothing up") {
  World world(2, {}, {1, 1000});
  world.ground.links[1].room = 0;
  world.post(OpCode::write, kMedium);
  CHECK(!world.send());
  CHECK(world.ground.rails[1].postings == 0);
  world.ground.rails[1].state = Rail::State::aside;
  world.post(OpCode::send);
  world.send();
  CHECK(world.count(0) == 2);
}

TEST_CASE("a turn posts as much as a slice, in batches") {
  World world;
  for (int i = 0; i < 200; ++i) world.post(OpCode::write);
  std::vector<std::size_t> counts;
  for (int turn = 0; turn < 4; ++turn) {
    world.send();
    counts.push_back(world.count(0));
  }
  CHECK(counts == std::vector<std::size_t>{64, 128, 192, 200});
  world.ground.slice.begin();
  world.ground.slice.spend(Slice::kBytes);
  world.post(OpCode::write);
  CHECK(!world.ground.scheduler.send());
}

TEST_CASE("requests of a lost rail go over another one, in their order, under their numbers") {
  World world;
  for (int i = 0; i < 5; ++i) world.post(OpCode::send);
  world.send();
  world.ground.links[0].end();  // the first one was answered
  for (int i = 0; i < 3; ++i) world.post(OpCode::send);
  world.break_rail(0);
  CHECK(!world.ground.rails.lost_some);  // break_rail() fenced it off
  CHECK(world.send());
  REQUIRE(world.count(1) == 7);
  for (std::size_t i = 0; i < 7; ++i) {
    CHECK(request_of(world.held(1)[i]).place == i + 2);
    CHECK(request_of(world.held(1)[i]).number == i + 2);
  }
  world.ground.links[1].end_all();
  for (const UserOp& op : world.ops) CHECK(op.outcome() == Errc::ok);
}

TEST_CASE("nothing goes out between a loss and its fence") {
  World world;
  world.post(OpCode::send);
  world.send();
  world.ground.links[0].fail();
  CHECK(world.ground.rails.lost_some);
  CHECK(!world.send());
  CHECK(world.count(1) == 0);
}

TEST_CASE("puts that were lost beside the primary rail hold up what is ordered no longer") {
  World world(2, {}, {1, 1000});
  world.post(OpCode::write, kMedium);
  world.send();
  REQUIRE(world.count(1) == 1);
  world.post(OpCode::send);
  CHECK(!world.send());
  world.break_rail(1);
  CHECK(world.send());
  CHECK(world.count(0) == 2);
}

TEST_CASE("an error that the peer answers with is the outcome, and nothing is repeated") {
  World world;
  world.post(OpCode::write);
  world.send();
  world.ground.links[0].end(Errc::bounds);
  CHECK(world.ops[0].outcome() == Errc::bounds);
  CHECK(world.ground.journal.empty());
  CHECK(!world.send());
}

TEST_CASE("what fails ends at once, or when its postings have come back") {
  World world;
  UserOp& sent = world.post(OpCode::write);
  world.send();
  UserOp& waits = world.post(OpCode::write);
  world.ground.journal.visit_open(
      [&](Request& request) { world.ground.scheduler.fail(request, Errc::peer_lost); });
  CHECK(waits.outcome() == Errc::peer_lost);
  CHECK(!sent.operation.done());
  CHECK(world.ground.scheduler.empty());
  world.ground.links[0].end();
  CHECK(sent.outcome() == Errc::peer_lost);
}

TEST_CASE("the first error counts") {
  World world;
  UserOp& put = world.post(OpCode::write, kStriped);
  world.send();
  REQUIRE(world.count(0) + world.count(1) > 1);
  world.ground.links[0].end(Errc::bounds);
  world.ground.journal.visit_open(
      [&](Request& request) { world.ground.scheduler.fail(request, Errc::peer_lost); });
  while (world.count(0)) world.ground.links[0].end(Errc::key_rejected);
  while (world.count(1)) world.ground.links[1].end(Errc::key_rejected);
  CHECK(put.outcome() == Errc::bounds);
}

// --- races

TEST_CASE("what goes over the primary rail takes part in its race, unless the link did not take it") {
  World world;
  world.ground.rails.primary = &world.ground.rails[0];
  world.ground.health.judge();
  for (int i = 0; i < 5; ++i) world.post(OpCode::write, 100 + static_cast<std::size_t>(i));
  world.post(OpCode::fetch_atomic, 8);
  world.ground.links[0].room = 3;
  world.send();
  CHECK(world.ground.rails[0].begun == 3);
  REQUIRE(world.count(1) == 3);
  for (std::size_t i = 0; i < 3; ++i) {
    CHECK(is(world.held(1)[i], FrameType::probe));
    CHECK(frame_of(world.held(1)[i]).length == 100 + i);
    CHECK(world.held(1)[i].remote == 0);
  }
  world.ground.links[0].room = 100;
  world.send();
  CHECK(world.ground.rails[0].begun == 6);
  CHECK(world.held(1).back().length == 8);
  CHECK(frame_of(world.held(1).back()).total == 8);
}

// --- what the peer may forget

TEST_CASE("what fetches waits while the peer would have to keep too many results") {
  World world;
  UserOp& first = world.post(OpCode::fetch_atomic, 8);
  world.send();
  world.ground.links[0].end();
  REQUIRE(first.operation.done());
  while (true) {
    UserOp& next = world.post(OpCode::fetch_atomic, 8);
    world.send();
    if (world.count(0) == 0) break;
    world.ground.links[0].end();
    REQUIRE(next.operation.done());
    world.ground.links[0].room = 10;
  }
  CHECK(world.ops.size() == (Journal::kMostResults + 519) / 520 + 1);
  CHECK(world.ground.notes.send());
  REQUIRE(world.count(0) == 1);
  CHECK(is(world.held(0).front(), FrameType::settled));
  CHECK(frame_of(world.held(0).front()).total == world.ops.size());
  CHECK(world.held(0).front().remote == 0);
  CHECK(!world.ground.notes.send());  // it is under way
  CHECK(!world.send());
  world.ground.links[0].end();
  CHECK(world.send());
}

TEST_CASE("a note that was lost is sent again, over a rail that takes it") {
  World world;
  for (std::uint64_t i = 0; i < Journal::kSettledAtOnce; ++i) {
    world.post(OpCode::write);
    world.send();
    world.ground.links[0].end();
  }
  world.ground.links[0].room = 0;
  CHECK(world.ground.notes.send());
  REQUIRE(world.count(1) == 1);
  CHECK(!world.ground.journal.mark_is_due());
  world.break_rail(1);
  CHECK(world.ground.journal.mark_is_due());
  CHECK(!world.ground.notes.send());
  CHECK(world.ground.journal.mark_is_due());
  world.ground.links[0].room = 10;
  CHECK(world.ground.notes.send());
  CHECK(world.count(0) == 1);
  CHECK(!world.ground.journal.mark_is_due());
}

TEST_CASE(
    "each announced message that is over has a note, which goes by any rail, as many as the slice takes") {
  World world;
  for (int i = 0; i < 100; ++i) {
    world.post(OpCode::send);
    world.send();
    static_cast<Posting&>(*world.held(0).front().operation).request->announced = true;
    world.ground.links[0].end();
    world.ground.links[0].room = 1000;
  }
  REQUIRE(!world.ground.journal.notes().empty());
  world.ground.slice.begin();
  world.ground.links[0].room = 10;
  CHECK(world.ground.notes.send());
  CHECK(world.count(0) == 10);
  CHECK(world.count(1) > 40);
  CHECK(world.count(0) + world.count(1) <= Slice::kTransfers);
  for (std::size_t i = 0; i < 10; ++i) {
    CHECK(is(world.held(0)[i], FrameType::settled));
    CHECK(frame_of(world.held(0)[i]).id == i + 1);  // in order
    CHECK(frame_of(world.held(0)[i]).total == 101);
  }
  const std::size_t before = world.count(1);
  world.break_rail(0);  // those come back
  world.ground.slice.begin();
  while (world.ground.notes.send()) world.ground.slice.begin();
  CHECK(world.count(1) == 100);
  CHECK(world.count(1) > before);
  world.ground.links[1].end_all();
  CHECK(world.ground.journal.notes().empty());
}

TEST_CASE("a note about a message takes the mark along only where it is due") {
  World world;
  for (std::uint64_t i = 1; i <= Journal::kSettledAtOnce; ++i) {
    world.post(OpCode::send);
    world.send();
    static_cast<Posting&>(*world.held(0).front().operation).request->announced = true;
    world.ground.links[0].end();
    CHECK(world.ground.notes.send());
    REQUIRE(world.count(0) == 1);
    CHECK(frame_of(world.held(0)[0]).id == i);
    CHECK(frame_of(world.held(0)[0]).total == (i < Journal::kSettledAtOnce ? 0 : i + 1));
    world.ground.links[0].end();
    world.ground.links[0].room = 1000;
  }
  CHECK(!world.ground.journal.mark_is_due());
}
