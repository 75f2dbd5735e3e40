#include "fabric/noncoherent/sync_checker.h"

#include <doctest/doctest.h>

#include <cstdint>

#include "fabric/noncoherent/shadow_memory.h"

using namespace fab;

TEST_CASE("SYNC-30: the checker tells what was missing, late or of no use") {
  using Kind = SyncReport::Kind;
  using Event = SyncReport::Event;
  SyncChecker checker(5);
  SyncReports found;
  const ShadowMemory::Effect none, some{.to_device = 1, .to_cpu = 0, .conflict = {}};
  const auto only = [&](Kind kind, SyncSide side, std::uint64_t start, std::uint64_t end, Event event) {
    REQUIRE(found.size() == 1);
    const SyncReport report = found.front();
    found.clear();
    return report.kind == kind && report.side == side && report.region == 5 && report.start == start &&
           report.end == end && report.event == event;
  };
  SUBCASE("nothing in a program that is right") {
    CHECK(checker.called(SyncSide::read, {0, 8}, some, found));
    checker.put(Event::put, {10, 20});
    checker.put(Event::put, {20, 30});
    CHECK(checker.called(SyncSide::write, {5, 15}, none, found));
    CHECK(checker.called(SyncSide::write, {15, 30}, none, found));
    CHECK_FALSE(checker.called(SyncSide::write, {0, 100}, none, found));
    CHECK_FALSE(checker.called(SyncSide::read, {0, 100}, none, found));
    checker.finish(found);
    CHECK(found.empty());
  }
  SUBCASE("a get that came before the call, or without one") {
    checker.met(Event::get, {4, 6});
    checker.met(Event::get, {4, 6});
    CHECK(checker.called(SyncSide::read, {0, 8}, some, found));
    CHECK(only(Kind::late, SyncSide::read, 4, 6, Event::get));
    checker.met(Event::get, {4, 6});
    CHECK(checker.called(SyncSide::read, {6, 8}, some, found));
    checker.finish(found);
    CHECK(only(Kind::missing, SyncSide::read, 4, 6, Event::get));
  }
  SUBCASE("a put over stores") {
    checker.met(Event::put, {4, 6});
    checker.put(Event::put, {0, 8});
    SUBCASE("with a call after it") {
      CHECK(checker.called(SyncSide::write, {0, 8}, {1, 1, {4, 6}}, found));
      CHECK(only(Kind::late, SyncSide::write, 4, 6, Event::put));
    }
    SUBCASE("without one") {
      checker.finish(found);
      CHECK(only(Kind::missing, SyncSide::write, 4, 6, Event::put));
    }
  }
  SUBCASE("a store over what was put") {
    checker.put(Event::put, {0, 8});
    SUBCASE("before the call") {
      CHECK(checker.called(SyncSide::write, {0, 8}, {0, 8, {3, 4}}, found));
      CHECK(only(Kind::late, SyncSide::write, 3, 4, Event::put));
    }
    SUBCASE("and no call at all") {
      CHECK(checker.called(SyncSide::read, {0, 8}, {1, 0, {3, 4}}, found));
      CHECK(only(Kind::missing, SyncSide::write, 3, 4, Event::put));
    }
  }
  SUBCASE("a put that nobody looked at, but for its middle") {
    checker.put(Event::atomic, {0, 30});
    CHECK(checker.called(SyncSide::write, {10, 20}, none, found));
    checker.finish(found);
    REQUIRE(found.size() == 2);
    CHECK(found[0].end == 10);
    CHECK(found[1].start == 20);
    found.clear();
  }
  checker.finish(found);
  CHECK(found.empty());
}
