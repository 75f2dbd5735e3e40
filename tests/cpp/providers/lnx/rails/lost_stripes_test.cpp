// Stripes that are lost with their rail: the scheduler sends them again over what is left.

#include <doctest/doctest.h>

#include <vector>

#include "providers/lnx/rails/scheduled.h"
#include "providers/lnx/rails/stripes.h"

using namespace fab;
using namespace fab::lnx;
using namespace fab::test;
using std::chrono::milliseconds;
using World = Scheduled;

TEST_CASE("stripes that are lost go again over what is left, and an end that is lost does, too") {
  World world;
  UserOp& put = world.post(OpCode::write, 1 << 20);
  world.send();
  std::uint64_t lost = 0;
  for (const Transfer& transfer : world.held(1)) lost += transfer.length;
  REQUIRE(lost != 0);
  world.break_rail(1);
  std::uint64_t seen = 0;
  for (int turn = 0; turn < 100; ++turn) {
    while (world.count(0) && (is_stripe(world.held(0).front()))) {
      seen += world.held(0).front().length;
      world.ground.links[0].end();
    }
    if (world.count(0)) break;
    world.send();
  }
  CHECK(seen == 1 << 20);
  REQUIRE(world.count(0) == 1);
  const std::uint64_t number = static_cast<Posting&>(*world.held(0).front().operation).frame.id;
  world.ground.raise(1);
  world.ground.rails[1].unfenced = 0;
  world.break_rail(0);
  CHECK(!put.operation.done());
  world.ground.rails[1].unfenced = 0;
  CHECK(world.send());
  REQUIRE(world.count(1) == 1);
  CHECK(static_cast<Posting&>(*world.held(1).front().operation).frame.id == number);
  world.ground.links[1].end();
  CHECK(put.outcome() == Errc::ok);
}

TEST_CASE("a put that was refused ends with the last stripe that is lost") {
  World world;
  UserOp& put = world.post(OpCode::write, 1 << 20);
  world.send();
  world.ground.links[0].end_all(Errc::bounds);
  CHECK(!put.operation.done());
  world.break_rail(1);
  CHECK(put.outcome() == Errc::bounds);
}

TEST_CASE("a put of which all stripes are lost waits for a rail") {
  World world;
  UserOp& put = world.post(OpCode::write, 1 << 20);
  world.send();
  world.break_rail(0);
  world.break_rail(1);
  CHECK(!world.send());
  CHECK(!put.operation.done());
  CHECK(!world.ground.scheduler.empty());
}
