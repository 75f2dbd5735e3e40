// Who has to go when too many call.
#include "providers/tcp/reception.h"

#include <doctest/doctest.h>
#include <sys/socket.h>

#include <string>
#include <vector>

#include "base/network/poller.h"

using namespace fab;
using namespace fab::tcp;

namespace {

constexpr Bounds kFew{.callers = 4, .callers_of_one = 3, .guests = 4, .guests_of_one = 3, .reserve = 1000};

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

  Door() {
    identity.keys = &keys;
    identity.take_id(KeyPair::make(), "tcp.0", 0, {});
    const EndpointAddress where{
        .id = identity.id, .kind = identity.kind, .addresses = {parse_socket_address("127.0.0.1", 1)}};
    identity.part.bytes = where.encode();
    CallerHandshake caller(identity, 0, where, 1);
    int ends[2];
    REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0);
    const OwnFd one(ends[0]), other(ends[1]);
    caller.connected_to(local_address(one.get()));
    hello = caller.hello();
  }
  // The caller with this number says so much of what callers say first.
  void say(int number, std::size_t bytes) {
    const OwnFd& end = far[static_cast<std::size_t>(number)];
    REQUIRE(::send(end.get(), hello.data(), bytes, 0) == static_cast<ssize_t>(bytes));
  }

  AuthKeys keys = AuthKeys(1);
  Identity identity;
  std::string hello;
  Poller poller;
  Callers callers;
  std::vector<const PendingConnection*> made;
  std::vector<OwnFd> far;
  std::vector<int> ended;
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

TEST_CASE("who has said what callers say stays longer than who has said nothing, or has not gone on") {
  Door door;
  for (int i = 0; i < 3; ++i) door.call("a");
  door.say(0, door.hello.size());
  door.say(1, door.hello.size() - 1);
  door.say(2, door.hello.size());
  CHECK(door.poller.dispatch() == 3);
  CHECK(door.ended.empty());
  CHECK(door.call("a") == 1);
  CHECK(door.call("a") == 3);
  door.say(4, door.hello.size());
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
