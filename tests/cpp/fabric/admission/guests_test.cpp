// Which stream has to go when too many stand.
#include "fabric/admission/guests.h"

#include <doctest/doctest.h>

#include <chrono>
#include <string>

using namespace fab;

namespace {

using Work = Guest::Work;
constexpr Bounds kFew{.callers = 4, .callers_of_one = 3, .guests = 4, .guests_of_one = 3, .reserve = 1000};

Clock::time_point present;
Clock::time_point told() noexcept { return present; }

// One that came a while ago.
struct Visitor final : Guest {
  Visitor(Guests& all, const std::string& source) : guests(all) {
    guests.add(*this, source);
    present += std::chrono::seconds(2);
  }
  ~Visitor() override { guests.remove(*this); }
  std::uint64_t heard() const noexcept override { return bytes; }
  bool has_spoken() const noexcept override { return spoke; }
  Work work() noexcept override { return at; }
  bool proven() noexcept override { return known; }
  int descriptor() const noexcept override { return fd; }
  void evict(const char*) noexcept override {
    gone = true;
    guests.remove(*this);
  }
  Guests& guests;
  std::uint64_t bytes = 0;
  Work at = Work::none;
  int fd = 5;
  bool spoke = false, known = false, gone = false;
};

}  // namespace

TEST_CASE("of streams that peers began, those go first that never sent a frame") {
  Guests guests(told);
  Visitor talker(guests, "a"), silent(guests, "a"), later(guests, "a");
  talker.spoke = true;
  CHECK(guests.make_room("b", false, kFew));  // there is room
  CHECK_FALSE((talker.gone || silent.gone || later.gone));
  CHECK(guests.make_room("a", false, kFew));  // it has its share
  CHECK(silent.gone);
  CHECK_FALSE((talker.gone || later.gone));
  CHECK(guests.of("a") == 2);
}

TEST_CASE("then the one that has been silent for longest goes, and none that is at work") {
  Guests guests(told);
  Visitor busy(guests, "a"), first(guests, "a"), second(guests, "a");
  for (Visitor* one : {&busy, &first, &second}) one->spoke = true;
  busy.at = Work::moving;
  first.bytes = 10;  // it was heard since it came
  CHECK(guests.make_room("a", false, kFew));
  present += std::chrono::seconds(2);
  CHECK(second.gone);
  CHECK_FALSE((busy.gone || first.gone));
  Visitor third(guests, "a");
  third.spoke = true;
  third.at = first.at = Work::moving;
  CHECK_FALSE(guests.make_room("a", false, kFew));
  CHECK(guests.size() == 3);
  CHECK(guests.make_room("b", false, kFew));
}

TEST_CASE("a caller waits for room, unless another source has more callers and one of them rests") {
  Guests callers(told);
  Visitor first(callers, "a"), second(callers, "a"), third(callers, "a");
  CHECK_FALSE(callers.may_come("a", kFew));  // it has its share, and drives out none of its own
  CHECK(callers.may_come("b", kFew));
  Visitor fourth(callers, "b");
  for (Visitor* one : {&first, &second, &third}) one->bytes = 1;  // all were heard just now
  CHECK_FALSE(callers.may_come("c", kFew));
  CHECK_FALSE((first.gone || second.gone || third.gone || fourth.gone));
  present += std::chrono::seconds(2);
  CHECK(callers.may_come("c", kFew));
  CHECK(first.gone);
  CHECK(callers.may_come("b", kFew));  // there is room now
  CHECK_FALSE((second.gone || third.gone || fourth.gone));
}

TEST_CASE("who has just come goes after those who have work that they do not go on with") {
  Guests guests(told);
  Visitor first(guests, "a"), second(guests, "a"), late(guests, "a");
  for (Visitor* one : {&first, &second}) {
    one->spoke = true;
    one->at = Work::stalled;
  }
  present -= std::chrono::milliseconds(1500);  // it came half a second ago
  CHECK(guests.make_room("a", false, kFew));
  CHECK(first.gone);
  CHECK(guests.evict({}, "too many"));
  CHECK(second.gone);
  CHECK(guests.evict({}, "too many"));
  CHECK(late.gone);
}

TEST_CASE(
    "of those who have just been heard, the one that has been silent for longest goes, whatever it said") {
  Guests guests(told);
  Visitor stalled(guests, "a"), idle(guests, "a"), fresh(guests, "a");
  stalled.spoke = idle.spoke = true;
  stalled.at = Work::stalled;
  stalled.bytes = idle.bytes = 1;
  CHECK(guests.make_room("a", false, kFew));
  CHECK(fresh.gone);  // it came two seconds ago, the others were heard now
  Visitor next(guests, "a");
  present -= std::chrono::milliseconds(1500);
  CHECK(guests.make_room("a", false, kFew));
  CHECK(stalled.gone);
  CHECK_FALSE((idle.gone || next.gone));
}

TEST_CASE("when there are too many streams in all, the source that has the most gives one up") {
  Guests guests(told);
  Visitor one(guests, "b"), first(guests, "a"), second(guests, "a"), other(guests, "c");
  CHECK(guests.make_room("d", false, kFew));
  CHECK(first.gone);
  CHECK_FALSE((one.gone || second.gone || other.gone));
}

TEST_CASE("a stream on which nothing goes on is kept no longer than those of others are idle") {
  Guests guests(told);
  Visitor idle(guests, "c"), stalled(guests, "a"), other(guests, "a"), busy(guests, "b");
  for (Visitor* one : {&idle, &stalled, &other, &busy}) one->spoke = true;
  stalled.at = other.at = Work::stalled;
  busy.at = Work::moving;
  CHECK(guests.make_room("d", false, kFew));  // of the source with the most
  CHECK(stalled.gone);
  CHECK_FALSE(idle.gone);
  Visitor next(guests, "d");
  next.spoke = true;
  CHECK(guests.make_room("e", false, kFew));  // nobody has more than others
  CHECK((idle.gone || other.gone));
  CHECK_FALSE(busy.gone);
}

TEST_CASE("no stream of a proven peer ends for the sake of a stranger") {
  Guests guests(told);
  Visitor idle(guests, "a"), stalled(guests, "a"), busy(guests, "a"), stranger(guests, "b");
  for (Visitor* one : {&idle, &stalled, &busy, &stranger}) one->spoke = true;
  for (Visitor* one : {&idle, &stalled, &busy}) one->known = true;
  stalled.at = Work::stalled;
  busy.at = stranger.at = Work::moving;
  CHECK_FALSE(guests.make_room("a", false, kFew));
  CHECK_FALSE(guests.make_room("c", false, kFew));
  CHECK(guests.size() == 4);

  SUBCASE("but for that of another one") {
    CHECK(guests.make_room("c", true, kFew));
    CHECK(idle.gone);
    Visitor next(guests, "c");
    next.spoke = next.known = true;
    next.at = Work::moving;
    CHECK(guests.make_room("d", true, kFew));  // sooner than what a proven peer still waits for
    CHECK((stranger.gone || stalled.gone));
    CHECK_FALSE(busy.gone);
  }
}

TEST_CASE("only a descriptor that helps is given back") {
  Guests guests(told);
  Visitor high(guests, "a"), low(guests, "a");
  high.fd = 900;
  CHECK(guests.evict({.below = 800}, "descriptors"));
  CHECK(low.gone);
  CHECK_FALSE(guests.evict({.below = 800}, "descriptors"));
  CHECK_FALSE(high.gone);
}

TEST_CASE("an IPv6 network is one source, and so are an IPv4 address and all of loopback") {
  const auto source = [](const char* text) { return source_of(parse_socket_address(text, 1)); };
  CHECK(source("10.0.0.5:7") == "10.0.0.5");
  CHECK(source("[2001:db8:1:2:3:4:5:6]:7") == "2001:db8:1:2::/64");
  CHECK(source("[2001:db8:1:2::9]:8") == source("[2001:db8:1:2:3:4:5:6]:7"));
  CHECK(source("[::1]:7") == source("127.0.0.1:7"));
  CHECK(source("127.9.9.9:7") == source("127.0.0.1:8"));
}

TEST_CASE("where there are few descriptors, a part of them stays with the program") {
  constexpr Bounds many = Bounds::of(1'000'000, true), few = Bounds::of(256, false);
  static_assert(many.callers == 256 && many.callers_of_one == 128 && many.guests == 4096);
  static_assert(many.guests_of_one == many.guests && many.reserve == 1'000'000 - 64);
  static_assert(few.callers == 64 && few.callers_of_one == 32 && few.guests == 128);
  static_assert(few.guests_of_one == 96 && few.reserve == 192);
  CHECK(Bounds::of(1, false).callers_of_one == 1);
}
