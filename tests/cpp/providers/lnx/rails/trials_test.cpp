// Rails that are compared by what they do at the same time: races, and exams of those that were set aside.

#include <doctest/doctest.h>

#include <array>

#include "fabric/session/frames/frame.h"
#include "providers/lnx/rails/health.h"
#include "providers/lnx/rails/two_rails.h"

using namespace fab;
using namespace fab::lnx;
using namespace fab::test;
using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::seconds;

namespace {

// What the scheduler does with a small request that goes over the primary rail.
struct Racing : Two {
  explicit Racing(std::size_t count = 2) : Two(count) {
    health.judge();  // begins a race
  }
  bool enter(std::uint64_t out = 100, std::uint64_t back = 0) {
    Posting& posting = postings.emplace_back();
    Rail& rail = *rails.primary;
    rail.begin(posting, Kind::note, nullptr);
    posting.out = out;
    posting.back = back;
    const bool in = health.enters_race(rail, posting);
    Transfer transfer{};
    transfer.operation = &posting;
    REQUIRE(rail.post(posting, transfer));
    if (in) health.shadow(out, back);
    return in;
  }
  // One after the other, each of which takes so long on each rail.
  void run(unsigned requests, Clock::duration first, Clock::duration second) {
    for (unsigned i = 0; i < requests && rails.primary; ++i) {
      enter();
      for (std::size_t slot = 0; slot < rails.size(); ++slot) {
        attended += slot == 0 ? first : second;
        for (auto left = links[slot].held.size(); left; --left) links[slot].end();
        attended -= slot == 0 ? first : second;
      }
      pass(std::max(first, second));
    }
  }
};

}  // namespace

// --- races

TEST_CASE(
    "the primary rail that takes more than twice as long as another one, three races in a row, is sick") {
  for (const auto& [first, second, races] : {std::tuple(microseconds(300), microseconds(100), 3),
                                             std::tuple(microseconds(200), microseconds(100), 0),
                                             std::tuple(microseconds(100), microseconds(300), 0),
                                             std::tuple(microseconds(12), microseconds(1), 0)}) {
    const auto shown = first.count();
    CAPTURE(shown);
    Racing world;
    for (int race = 1; race <= 5 && world.given_up.empty(); ++race) {
      world.run(64, first, second);
      world.health.judge();
      if (races) CHECK(world.given_up.empty() == (race < races));
      if (races) continue;
      world.pass(milliseconds(500));
      world.health.judge();
    }
    CHECK(world.given_up == (races ? Slots{0} : Slots{}));
  }
}

TEST_CASE("a rail that comes back is judged by new races") {
  Racing world;
  for (int race = 0; race < 6; ++race) {
    if (!world.rails.primary) {
      world.raise(0);
      world.rails.primary = &world.rails[0];
      world.health.judge();
    }
    world.run(64, microseconds(300), microseconds(100));
    world.health.judge();
  }
  CHECK(world.given_up == Slots{0, 0});
}

TEST_CASE("a race that was won forgives those that were lost before") {
  Racing world;
  for (int race = 0; race < 10; ++race) {
    const bool lost = race % 3 != 2;
    world.run(64, microseconds(lost ? 300 : 100), microseconds(100));
    world.health.judge();
    if (lost) continue;  // the next race is on
    world.pass(milliseconds(500));
    world.health.judge();
  }
  CHECK(world.given_up.empty());
}

TEST_CASE("a race of which nobody has lost is repeated less and less often, a lost one at once") {
  Racing world;
  const auto begins_after = [&](microseconds first) {
    world.run(64, first, microseconds(100));
    world.health.judge();
    const auto ended = world.clock;
    for (int wait = 0; wait < 1000; ++wait) {
      if (world.enter()) break;
      world.links[0].end_all();
      world.pass(milliseconds(1));
      world.health.judge();
    }
    const auto after = world.clock - ended;
    world.links[0].end_all();
    world.links[1].end_all();
    return std::chrono::round<milliseconds>(after);
  };
  CHECK(begins_after(microseconds(100)) == milliseconds(20));
  CHECK(begins_after(microseconds(100)) == milliseconds(40));
  CHECK(begins_after(microseconds(100)) == milliseconds(80));
  CHECK(begins_after(microseconds(300)) == milliseconds(0));
  CHECK(begins_after(microseconds(100)) == milliseconds(40));
  for (int i = 0; i < 5; ++i) begins_after(microseconds(100));
  CHECK(begins_after(microseconds(100)) == milliseconds(500));
}

TEST_CASE("a race has 64 small requests, each with a probe of its size on every other rail") {
  Racing world(3);
  CHECK(!world.enter(kMaxProbe + 1));
  CHECK(!world.enter(1, kMaxProbe + 1));
  CHECK(world.links[1].held.empty());
  for (int i = 0; i < 64; ++i) CHECK(world.enter(kMaxProbe, 17));
  CHECK(!world.enter());
  CHECK(world.links[1].held.size() == 64);
  CHECK(world.links[2].held.size() == 64);
  CHECK(is(world.links[1].held.back(), FrameType::probe));
  CHECK(frame_of(world.links[1].held.back()).length == kMaxProbe);
  CHECK(frame_of(world.links[1].held.back()).total == 17);
  CHECK(world.rails[0].begun == 64);
  CHECK(world.rails[1].begun == 64);
  Posting other;
  world.rails[1].begin(other, Kind::note, nullptr);
  CHECK(!world.health.enters_race(world.rails[1], other));  // not the racer
}

TEST_CASE("what was not posted takes no part in the race") {
  Racing world;
  Posting posting;
  Rail& rail = world.rails[0];
  rail.begin(posting, Kind::note, nullptr);
  REQUIRE(world.health.enters_race(rail, posting));
  CHECK(posting.trial != 0);
  CHECK(rail.begun == 1);
  world.health.scratch(posting);
  CHECK(posting.trial == 0);
  CHECK(rail.begun == 0);
  world.health.lost(rail, true);  // ends the race
  posting.trial = 1;
  world.health.scratch(posting);
  CHECK(posting.trial == 0);
  CHECK(rail.begun == 0);
}

TEST_CASE("a race ends after 50 ms, with what took part until then, if that is enough to say anything") {
  for (const unsigned requests : {3u, 4u}) {
    CAPTURE(requests);
    Racing world;
    for (int race = 0; race < 3; ++race) {
      world.run(requests, microseconds(300), microseconds(100));
      world.look(milliseconds(60), milliseconds(1));
      CHECK(world.given_up.empty() == (race < 2 || requests < 4));
    }
  }
}

TEST_CASE("a race is not judged before all that took part have come back, unless that takes too long") {
  Racing world;
  for (int race = 0; race < 3; ++race) {
    world.run(10, microseconds(300), microseconds(100));
    world.enter();
    world.links[1].end();
    world.look(milliseconds(100), milliseconds(1));
    CHECK(!world.enter());  // nothing more enters
    world.links[0].end_all();
    world.look(milliseconds(20), milliseconds(1));
  }
  CHECK(world.given_up == Slots{0});

  Racing never;
  never.run(10, microseconds(300), microseconds(100));
  never.enter();
  never.rails[0].under_way.front()->announced = true;
  never.links[1].end();
  never.look(seconds(6));
  never.pass(seconds(1));
  never.health.judge();
  CHECK(never.enter());  // the next race
}

TEST_CASE("a race is lost only to a rail that carried all of it, is up and no less trusted") {
  const auto given_up = [](auto hindrance) {
    Racing world;
    for (int race = 0; race < 4; ++race) {
      hindrance(world);
      world.run(64, microseconds(300), microseconds(100));
      world.health.judge();
    }
    return world.given_up;
  };
  CHECK(given_up([](Racing&) {}) == Slots{0});
  CHECK(given_up([](Racing& world) { world.rails[1].trusted = false; }) == Slots{});
  CHECK(given_up([](Racing& world) {
          world.rails[0].trusted = world.rails[1].trusted = false;
          world.rails[0].aside = world.rails[1].aside = seconds(60);
        }) == Slots{0});
  CHECK(given_up([](Racing& world) { world.links[1].room = 63; }) == Slots{});
  CHECK(given_up([](Racing& world) {
          if (world.rails[1].begun != 0) return;
          world.links[1].room = 0;  // the probe was not posted, and is none
          world.enter();
          CHECK(world.rails[1].begun == 0);
          world.links[0].end_all();
          world.links[1].room = 1000;
        }) == Slots{});
  CHECK(given_up([](Racing& world) { world.rails[1].state = Rail::State::aside; }) == Slots{});
}

TEST_CASE("a probe that comes back with an error shows nothing; an announced request owes nothing") {
  Racing world;
  REQUIRE(world.enter());
  world.pass(milliseconds(1));
  world.links[1].end(Errc::no_memory);
  CHECK(world.rails[1].done == 0);
  CHECK(world.rails[1].owed == Clock::duration::zero());
  world.links[0].end(Errc::bounds);  // a request that the peer refuses was answered
  CHECK(world.rails[0].done == 1);
  CHECK(world.rails[0].owed == milliseconds(1));
  REQUIRE(world.enter());
  world.postings.back().announced = true;
  world.pass(milliseconds(1));
  world.links[0].end();
  CHECK(world.rails[0].done == 2);
  CHECK(world.rails[0].owed == milliseconds(1));
}

TEST_CASE("what belongs to a former race, or to none, is not counted") {
  Racing world;
  REQUIRE(world.enter());
  world.health.lost(world.rails[0], true);
  world.links[0].end();
  CHECK(world.rails[0].done == 0);  // no race is on
  world.health.judge();
  REQUIRE(world.enter());
  world.links[1].end();  // of the former one
  CHECK(world.rails[1].done == 0);
  world.links[1].end();
  CHECK(world.rails[1].done == 1);
  world.owe(1);
  world.links[1].end();  // not of the race
  CHECK(world.rails[1].done == 1);
}

TEST_CASE("a race is on only while the racer is the primary rail, and losses are its own") {
  Racing world(3);
  for (int race = 0; race < 2; ++race) {
    world.run(64, microseconds(300), microseconds(100));
    world.health.judge();
    world.health.judge();
  }
  world.rails.primary = &world.rails[1];
  world.health.judge();
  CHECK(world.given_up.empty());
  // The other rail loses one race, and is not blamed for those of the former one.
  for (int i = 0; i < 64; ++i) {
    REQUIRE(world.enter());
    world.pass(microseconds(100));
    world.links[0].end_all();
    world.links[2].end_all();
    world.pass(microseconds(300));
    world.links[1].end_all();
  }
  world.health.judge();
  CHECK(world.given_up.empty());
}

TEST_CASE("no race without a primary rail that is up, or with nobody to race against") {
  const auto races = [](auto hindrance) {
    Two world;
    hindrance(world);
    world.health.judge();
    Posting posting;
    world.rails[0].begin(posting, Kind::note, nullptr);
    return world.health.enters_race(world.rails[0], posting);
  };
  CHECK(races([](Two&) {}));
  CHECK(!races([](Two& world) { world.rails.primary = nullptr; }));
  CHECK(!races([](Two& world) { world.lose(world.rails[1]); }));
  CHECK(!races([](Two& world) { world.rails[0].state = Rail::State::aside; }));
}

TEST_CASE("a race ends with a rail that carried, or the racer; not with one that was never up") {
  const auto goes_on = [](std::size_t slot, bool carried) {
    Racing world(3);
    world.health.lost(world.rails[slot], carried);
    Posting posting;
    world.rails[0].begin(posting, Kind::note, nullptr);
    return world.health.enters_race(world.rails[0], posting);
  };
  CHECK(goes_on(1, false));
  CHECK(!goes_on(1, true));
  CHECK(!goes_on(0, true));
}

// --- exams

namespace {

// The second rail joined again after it was set aside.
struct Examined : Two {
  Examined() {
    rails[1].doubt();
    rails[1].state = Rail::State::aside;
    health.judge();
  }
  // Each probe takes so long on each rail; until the exam is over.
  void sit(Clock::duration examiner, Clock::duration tried) {
    auto next = std::array{attended + examiner, attended + tried};
    for (int i = 0; i < 10'000 && risen.empty() && given_up.empty(); ++i) {
      const std::size_t slot =
          links[1].held.empty() || (!links[0].held.empty() && next[0] <= next[1]) ? 0 : 1;
      if (links[slot].held.empty()) {
        pass(milliseconds(1));
      } else {
        pass(std::max(Clock::duration::zero(), next[slot] - attended));
        links[slot].end();
        ++answered[slot];
        next[slot] = attended + (slot == 0 ? examiner : tried);
      }
      most = std::max({most, links[0].held.size(), links[1].held.size()});
      health.judge();
    }
  }
  std::size_t most = 0;
  unsigned answered[2] = {};
};

}  // namespace

TEST_CASE("a rail that was set aside sits an exam beside the primary one, two probes at a time") {
  Examined world;
  for (const HeldLink& link : world.links) {
    REQUIRE(link.held.size() == 2);
    for (const Transfer& probe : link.held) {
      CHECK(is(probe, FrameType::probe));
      CHECK(frame_of(probe).length == kMaxProbe);
      CHECK(frame_of(probe).total == kMaxProbe);
    }
  }
  const unsigned before = world.notices;
  world.sit(microseconds(500), microseconds(1000));
  CHECK(world.risen == Slots{1});
  CHECK(world.notices > before + 40);  // each probe asks for the next
  CHECK(world.most == 2);
  CHECK(world.answered[0] == 24);
  CHECK(world.answered[1] == 24);
  CHECK(world.rails[1].rate == doctest::Approx(kMaxProbe / 0.001).epsilon(0.1));
  CHECK(world.rails[1].up());
  Posting posting;
  world.rails[0].begin(posting, Kind::note, nullptr);
  CHECK(world.health.enters_race(world.rails[0], posting));  // the exam is over
}

TEST_CASE("an exam is shorter where the examiner has shown enough") {
  Examined world;
  world.sit(milliseconds(5), milliseconds(5));
  CHECK(world.risen == Slots{1});
  CHECK(world.answered[0] >= 4);
  CHECK(world.answered[0] <= 8);
  Examined slower;
  slower.sit(milliseconds(10), milliseconds(10));
  CHECK(slower.risen == Slots{1});
  CHECK(slower.answered[0] >= 4);  // however long they take
  CHECK(slower.answered[0] <= 6);
}

TEST_CASE("a rail passes if it owed for at most eight times as long as the examiner") {
  for (const auto& [tried, passes] : {std::pair(milliseconds(8), true), std::pair(milliseconds(10), false)}) {
    const auto shown = tried.count();
    CAPTURE(shown);
    Examined world;
    world.sit(milliseconds(1), tried);
    CHECK(world.risen == (passes ? Slots{1} : Slots{}));
    CHECK(world.given_up == (passes ? Slots{} : Slots{1}));
    if (!passes) CHECK(world.rails[1].aside == seconds(1));
  }
}

TEST_CASE("a few milliseconds are forgiven, and one that answers nothing fails without being waited for") {
  Examined quick;
  quick.sit(microseconds(1), microseconds(300));
  CHECK(quick.risen == Slots{1});
  Examined silent;
  const auto begun = silent.clock;
  while (!silent.links[0].held.empty()) {
    silent.pass(milliseconds(1));
    silent.links[0].end();
    silent.health.judge();
  }
  CHECK(silent.given_up.empty());
  for (int i = 0; i < 1000 && silent.given_up.empty(); ++i) silent.look(milliseconds(1), milliseconds(1));
  CHECK(silent.given_up == Slots{1});
  CHECK(silent.clock - begun > milliseconds(160));
  CHECK(silent.clock - begun < milliseconds(205));
}

TEST_CASE("an exam in which the examiner answers nothing ends after five seconds") {
  Examined world;
  world.look(milliseconds(5000));
  CHECK(world.given_up.empty());
  world.look(milliseconds(40));
  CHECK(world.given_up == Slots{1});
}

TEST_CASE("the examiner is the primary rail if it is up, else the first that is") {
  Two world(3);
  world.rails[2].doubt();
  world.rails[2].state = Rail::State::aside;
  SUBCASE("primary") {
    world.rails.primary = &world.rails[1];
    world.health.judge();
    CHECK(world.links[0].held.empty());
    CHECK(world.links[1].held.size() == 2);
  }
  SUBCASE("none") {
    world.rails.primary = nullptr;
    world.health.judge();
    CHECK(world.links[0].held.size() == 2);
    CHECK(world.links[1].held.empty());
  }
  SUBCASE("primary is down") {
    world.rails.primary = &world.rails[0];
    world.rails[0].state = Rail::State::joining;
    world.health.judge();
    CHECK(world.links[1].held.size() == 2);
  }
  CHECK(world.links[2].held.size() == 2);
}

TEST_CASE("an exam ends a race, a lost examiner ends the exam, and the next look begins another one") {
  Racing world(3);
  world.rails[2].doubt();
  world.rails[2].state = Rail::State::aside;
  world.health.judge();
  CHECK(!world.enter());
  CHECK(world.links[2].held.size() == 2);
  world.lose(world.rails[0]);
  CHECK(world.rails[2].begun == 2);
  world.health.judge();
  CHECK(world.rails[2].begun == 2);
  CHECK(world.links[2].held.size() == 4);  // of a new exam, beside another rail
  CHECK(world.links[1].held.size() >= 2);
  world.lose(world.rails[1]);
  world.health.judge();  // there is nobody beside whom to examine
  CHECK(world.links[2].held.size() == 4);
}

TEST_CASE("no exam while no rail is up") {
  Two world;
  world.rails[0].state = world.rails[1].state = Rail::State::aside;
  world.health.judge();
  CHECK(world.links[0].held.empty());
  CHECK(world.links[1].held.empty());
}
