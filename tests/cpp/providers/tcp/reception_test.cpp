// Who has to go when too many call, or when too many streams stand.
#include "providers/tcp/reception.h"

#include <doctest/doctest.h>
#include <sys/socket.h>

#include <string>
#include <vector>

#include "base/network/poller.h"

using namespace fab;
using namespace fab::tcp;

namespace {

constexpr Bounds kFew{
    .callers = 4, .callers_of_one = 3, .guests = 4, .guests_of_one = 3, .reserve = 1000, .keyed = false};

// Callers, and their ends of the connections.
struct Door {
  // Takes in one more, and returns the number of the one that had to go; -1: none had to.
  int call(const std::string& source) {
    const Caller dropped = callers.make_room(source, kFew);
    int ends[2];
    REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) == 0);
    auto connection =
        std::make_unique<IncomingConnection>(poller, identity, OwnFd(ends[0]), std::chrono::nanoseconds(100),
                                             [this](PendingConnection& told) { end(told); });
    made.push_back(connection.get());
    far.emplace_back(ends[1]);
    callers.add({source, std::move(connection)});
    return dropped.connection ? number_of(*dropped.connection) : -1;
  }
  void end(PendingConnection& told) { ended.push_back(number_of(*callers.remove(told).connection)); }
  int number_of(const PendingConnection& one) const {
    return static_cast<int>(std::ranges::find(made, &one) - made.begin());
  }

  AuthKeys keys = AuthKeys(1);
  Identity identity{.id = {}, .part = {"tcp.0", 0, ""}, .keys = &keys};
  Poller poller;
  Callers callers;
  std::vector<const PendingConnection*> made;
  std::vector<OwnFd> far;
  std::vector<int> ended;
};

struct Visitor final : Guest {
  Visitor(Guests& all, const std::string& source) : guests(all) { guests.add(*this, source); }
  ~Visitor() override { guests.remove(*this); }
  std::uint64_t heard() const noexcept override { return bytes; }
  bool has_spoken() const noexcept override { return spoke; }
  bool may_be_evicted() const noexcept override { return idle; }
  void evict(const char*) noexcept override {
    gone = true;
    guests.remove(*this);
  }
  Guests& guests;
  std::uint64_t bytes = 0;
  bool spoke = false, idle = true, gone = false;
};

}  // namespace

TEST_CASE("a caller too many pushes out the oldest one of its own source") {
  Door door;
  for (int i = 0; i < 3; ++i) CHECK(door.call("a") == -1);
  CHECK(door.call("a") == 0);
  CHECK(door.call("b") == -1);
  CHECK(door.call("a") == 1);
  CHECK(door.callers.of("a") == 3);
}

TEST_CASE("who has said something stays longer than who has said nothing") {
  Door door;
  for (int i = 0; i < 3; ++i) door.call("a");
  for (const int speaker : {0, 2})
    REQUIRE(::send(door.far[static_cast<std::size_t>(speaker)].get(), "p", 1, 0) == 1);
  CHECK(door.poller.dispatch() == 2);
  CHECK(door.call("a") == 1);
  CHECK(door.call("a") == 3);
  CHECK(::send(door.far[4].get(), "p", 1, 0) == 1);
  CHECK(door.poller.dispatch() == 1);
  CHECK(door.call("a") == 0);
}

TEST_CASE("when all places are taken, the oldest caller of the source that has the most goes") {
  Door door;
  CHECK(door.call("b") == -1);  // the oldest of all
  for (int i = 0; i < 3; ++i) CHECK(door.call("a") == -1);
  CHECK(door.call("c") == 1);
  CHECK(door.callers.size() == 4);
  CHECK(door.callers.of("b") == 1);
  char byte;
  CHECK(::recv(door.far[1].get(), &byte, 1, MSG_DONTWAIT) == 0);  // it finds its connection closed
  CHECK(::recv(door.far[0].get(), &byte, 1, MSG_DONTWAIT) == -1);
}

TEST_CASE("callers end at their deadlines, and leave nothing behind") {
  Door door;
  for (const char* source : {"a", "b", "a"}) door.call(source);
  door.callers.tick(std::chrono::nanoseconds(99));
  CHECK(door.ended.empty());
  door.callers.tick(std::chrono::nanoseconds(100));
  CHECK(door.ended == std::vector<int>{0, 1, 2});
  CHECK(door.callers.size() == 0);
  CHECK(door.callers.of("a") == 0);
  CHECK_FALSE(door.callers.take_one().connection);
}

TEST_CASE("of streams that peers began, those go first that never sent a frame") {
  Guests guests;
  Visitor talker(guests, "a"), silent(guests, "a"), later(guests, "a");
  talker.spoke = true;
  CHECK(guests.make_room("b", kFew));  // there is room
  CHECK_FALSE((talker.gone || silent.gone || later.gone));
  CHECK(guests.make_room("a", kFew));  // it has its share
  CHECK(silent.gone);
  CHECK_FALSE((talker.gone || later.gone));
  CHECK(guests.of("a") == 2);
}

TEST_CASE("then the one that has been silent for longest goes, and none that is at work") {
  Guests guests;
  Visitor busy(guests, "a"), first(guests, "a"), second(guests, "a");
  for (Visitor* one : {&busy, &first, &second}) one->spoke = true;
  busy.idle = false;
  first.bytes = 10;  // it was heard since it came
  CHECK(guests.make_room("a", kFew));
  CHECK(second.gone);
  CHECK_FALSE((busy.gone || first.gone));
  Visitor third(guests, "a");
  third.idle = first.idle = false;
  CHECK_FALSE(guests.make_room("a", kFew));
  CHECK(guests.size() == 3);
  CHECK(guests.make_room("b", kFew));
}

TEST_CASE("when there are too many streams in all, the source that has the most gives one up") {
  Guests guests;
  Visitor one(guests, "b"), first(guests, "a"), second(guests, "a"), other(guests, "c");
  CHECK(guests.make_room("d", kFew));
  CHECK(first.gone);
  CHECK_FALSE((one.gone || second.gone || other.gone));
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
