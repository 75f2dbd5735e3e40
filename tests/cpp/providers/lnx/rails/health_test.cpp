// Which rails are found to be sick: stalls, bandwidth, and when to look.

#include "providers/lnx/rails/health.h"

#include <doctest/doctest.h>

#include "fabric/session/frames/frame.h"
#include "providers/lnx/rails/two_rails.h"

using namespace fab;
using namespace fab::lnx;
using namespace fab::test;
using std::chrono::milliseconds;
using std::chrono::seconds;

// --- stalls

TEST_CASE("a rail is set aside when it owes for long what another one answers at once") {
  Two world;
  world.owe(0, 5000, 300);
  world.look(milliseconds(20));
  CHECK(world.links[1].held.empty());
  world.look(milliseconds(20));  // now it is suspected, and the other one is asked
  REQUIRE(world.probed(1));
  const Transfer probe = world.links[1].held.back();
  CHECK(frame_of(probe).length == 5000);
  CHECK(frame_of(probe).total == 300);
  CHECK(probe.length == 300);
  CHECK(probe.local == nullptr);
  CHECK(probe.delivery == Delivery::delivery);
  CHECK(static_cast<Posting&>(*probe.operation).out == 5000);
  CHECK(static_cast<Posting&>(*probe.operation).back == 300);
  world.pass(milliseconds(5));
  world.links[1].end();
  CHECK(world.rails[1].answer_took == milliseconds(5));
  world.look(milliseconds(40));  // 85 ms after it was posted
  CHECK(world.given_up.empty());
  world.look(milliseconds(20));
  CHECK(world.given_up == Slots{0});
  CHECK(world.rails[0].out);
  CHECK(world.rails[0].aside == milliseconds(250));
  CHECK(world.links[0].cuts == 1);
}

TEST_CASE("it takes four times as long as the other rail needed, however long that is") {
  Two world;
  world.owe(0);
  world.look(milliseconds(40));
  REQUIRE(world.probed(1));
  world.look(milliseconds(60));
  CHECK(world.rails[1].asked);
  world.links[1].end();  // after 60 ms, so that it may take 240
  world.look(milliseconds(120));
  CHECK(world.given_up.empty());  // 220
  world.look(milliseconds(20));
  CHECK(world.given_up == Slots{0});
}

TEST_CASE("nobody is blamed while no other rail has answered what it was asked meanwhile") {
  Two world;
  SUBCASE("nobody answers") {
    world.owe(0);
    world.owe(1);
    world.look(seconds(2));
    CHECK(world.links[0].held.size() == 2);  // what it owes, and one probe
  }
  SUBCASE("the other one was asked before") {
    world.owe(0);
    world.look(milliseconds(40));
    world.links[1].end();
    world.links[0].end();
    world.pass(milliseconds(1));
    world.owe(0);
    world.look(seconds(1));
    CHECK(world.links[1].held.size() == 1);  // it was asked again, and has not answered
  }
  SUBCASE("there is no other one") {
    world.lose(world.rails[1]);
    world.owe(0);
    world.look(seconds(2));
  }
  SUBCASE("there is no other one, and it receives slowly") {
    world.lose(world.rails[1]);
    world.owe(0).announced = true;
    world.look(seconds(2));
    CHECK(world.links[0].held.size() == 1);  // no sign of life is asked for
  }
  CHECK(world.given_up.empty());
}

TEST_CASE("what has arrived and was not looked at yet shows until the next look") {
  Two world;
  world.owe(0);
  world.look(milliseconds(40));
  world.links[1].end();
  // Nobody looked for long, as if this process had been busy elsewhere.
  world.rails[0].suspected_since = {};
  world.pass(seconds(3));
  world.health.judge();
  CHECK(world.given_up.empty());
  SUBCASE("still") {
    world.look(milliseconds(20));
    CHECK(world.given_up == Slots{0});
  }
  SUBCASE("it had") {
    world.links[0].end();
    world.look(milliseconds(20));
    CHECK(world.given_up.empty());
    CHECK(world.rails[0].suspected_since == Clock::time_point{});
  }
}

TEST_CASE("suspicion begins anew with each thing that is owed") {
  Two world;
  world.owe(0);
  world.look(milliseconds(80));
  CHECK(world.rails[0].suspected_since != Clock::time_point{});
  world.links[1].end_all();
  world.owe(0);
  world.links[0].end();  // the first one: the second has been owed since now
  world.pass(milliseconds(39));
  world.health.judge();
  CHECK(world.rails[0].suspected_since == Clock::time_point{});
  CHECK(world.given_up.empty());
}

TEST_CASE("large requests are judged by the other rail's bandwidth, or by its probe") {
  constexpr std::uint64_t kLong = 10 * kMaxProbe;
  for (const bool outwards : {true, false}) {
    for (const double rate : {0.0, 6'553'600.0}) {  // of which 100 ms are kLong
      CAPTURE(outwards);
      CAPTURE(rate);
      Two world;
      world.rails[1].rate = rate;
      world.owe(0, outwards ? kLong : 0, outwards ? 0 : kLong);
      world.look(milliseconds(40));
      REQUIRE(world.probed(1));
      CHECK(frame_of(world.links[1].held.back()).length == (outwards ? kMaxProbe : 0));
      CHECK(frame_of(world.links[1].held.back()).total == (outwards ? 0 : kMaxProbe));
      world.pass(milliseconds(20));
      world.links[1].end();
      // Without a rate ten probes of 20 ms; with one 20 ms and 100 ms; four times that.
      const auto patience = milliseconds(rate == 0 ? 800 : 480);
      world.look(patience - milliseconds(80));
      CHECK(world.given_up.empty());
      world.look(milliseconds(20));
      CHECK(world.given_up == Slots{0});
    }
  }
}

TEST_CASE("a probe that failed is no answer, and the next look asks again") {
  Two world;
  world.owe(0);
  world.look(milliseconds(40));
  REQUIRE(world.rails[1].asked);
  world.links[1].end(Errc::no_memory);
  CHECK(!world.rails[1].asked);
  CHECK(world.rails[1].answered_asked_at == Clock::time_point{});
  world.look(milliseconds(20));
  CHECK(world.rails[1].asked);
  // Nor is one for which the link has no room.
  world.links[1].end(Errc::no_memory);
  world.links[1].room = 0;
  world.look(milliseconds(20));
  CHECK(!world.rails[1].asked);
}

TEST_CASE("announced messages owe nothing, but the rail is asked for a sign of life now and then") {
  Two world;
  world.owe(0).announced = true;
  world.look(milliseconds(30));
  REQUIRE(world.links[0].held.size() == 2);
  CHECK(is(world.links[0].held[1], FrameType::probe));
  CHECK(frame_of(world.links[0].held[1]).length == 1);
  CHECK(frame_of(world.links[0].held[1]).total == 1);
  world.links[0].end(Errc::ok, 1);
  world.look(milliseconds(900), milliseconds(100));
  CHECK(world.links[0].held.size() == 1);
  world.look(milliseconds(100), milliseconds(100));
  CHECK(world.links[0].held.size() == 2);
  CHECK(world.given_up.empty());
  CHECK(world.links[1].held.empty());                              // which has nothing under way
  CHECK(world.rails[0].answered_asked_at == Clock::time_point{});  // says nothing of how others do
}

// --- bandwidth

TEST_CASE("a rail whose stripes show less than a tenth of the best one's bandwidth, three times, is sick") {
  Two world(3);
  Rail& slow = world.rails[0];
  const auto measured = [&](std::size_t slot, std::uint64_t bytes_per_ms) {
    world.rails[slot].begin_stripes();
    world.pass(milliseconds(4));
    world.health.arrived(world.rails[slot], 4 * bytes_per_ms);
  };
  measured(1, 1000);
  measured(2, 500);
  measured(0, 99);
  measured(0, 99);
  CHECK(slow.strikes == 2);
  CHECK(!slow.sick);
  SUBCASE("three") {
    const unsigned before = world.notices;
    measured(0, 99);
    CHECK(slow.sick);
    CHECK(world.notices == before + 1);
    world.health.judge();
    CHECK(world.given_up == Slots{0});
  }
  SUBCASE("not in a row") {
    slow.rate = 100'000;  // exactly a tenth
    measured(0, 100);
    CHECK(slow.strikes == 0);
    CHECK(!slow.sick);
  }
  SUBCASE("too short to say") {
    slow.begin_stripes();
    world.pass(milliseconds(3));
    world.health.arrived(slow, 1);
    CHECK(slow.strikes == 2);
  }
  SUBCASE("the best one is down") {
    world.rails[1].state = Rail::State::aside;
    measured(0, 99);
    CHECK(!slow.sick);
  }
}

TEST_CASE("the last rail is not set aside, and no longer counts as sick") {
  Two world;
  world.lose(world.rails[1]);
  world.rails[0].sick = true;
  world.health.judge();
  CHECK(world.given_up.empty());
  CHECK(!world.rails[0].sick);
  // Of two that are sick one stays.
  world.raise(1);
  world.rails[0].sick = world.rails[1].sick = true;
  world.health.judge();
  CHECK(world.given_up == Slots{0});
}

// --- when to look

TEST_CASE("rails are watched while several owe something, or none is up") {
  Two world;
  const auto watched = [&] { return std::pair(world.health.next_look(), world.watches); };
  const auto never = Clock::time_point::max();
  CHECK(watched() == std::pair(never, 0u));
  Posting& posting = world.owe(0);
  CHECK(watched() == std::pair(never, 1u));
  posting.announced = true;  // only a sign of life is asked for
  CHECK(watched() == std::pair(world.clock + seconds(1), 1u));
  world.links[0].end();
  CHECK(watched() == std::pair(never, 1u));
  world.lose(world.rails[0]);
  CHECK(watched().second == 1);
  world.lose(world.rails[1]);
  CHECK(watched().second == 2);

  Two alone(1);
  alone.owe(0);
  CHECK(alone.health.next_look() == never);
  alone.postings.front().announced = true;
  CHECK(alone.health.next_look() == never);
  CHECK(alone.watches == 0);
}

TEST_CASE("a rail that has behaved is forgiven when the time comes, and looked at no sooner than needed") {
  Two world;
  Rail& rail = world.rails[0];
  rail.doubt();
  rail.rose();
  CHECK(world.health.next_look() == world.clock + seconds(10));
  world.pass(seconds(10) - milliseconds(5));
  CHECK(world.health.next_look() == world.clock + milliseconds(20));
  world.health.judge();
  CHECK(!rail.trusted);
  world.pass(milliseconds(20));
  world.health.judge();
  CHECK(rail.trusted);
  CHECK(world.health.next_look() == rail.rose_at + seconds(20));
  rail.state = Rail::State::joining;
  CHECK(world.health.next_look() == Clock::time_point::max());
}
