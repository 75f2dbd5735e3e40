#include "base/network/tcp_socket.h"

#include <doctest/doctest.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <stdexcept>
#include <string>
#include <system_error>
#include <vector>

#include "base/network/interfaces.h"

using namespace fab;

namespace {

void wait_for(int fd, short events) {
  pollfd watched{fd, events, 0};
  REQUIRE(::poll(&watched, 1, -1) == 1);
}

}  // namespace

TEST_CASE("an address is read as it is written") {
  for (const char* const text : {"127.0.0.1:4711", "[::1]:4711", "[2001:db8::7]:0", "255.255.255.255:65535"})
    CHECK(parse_socket_address(text, 9).text() == text);
  CHECK(parse_socket_address("10.1.2.3", 9).text() == "10.1.2.3:9");
  CHECK(parse_socket_address("::1", 9).text() == "[::1]:9");
  CHECK(parse_socket_address("[::1]", 9).text() == "[::1]:9");
  for (const char* const text :
       {"", ":", ":1", "127.0.0.1:", "127.0.0.1:x", "127.0.0.1:65536", "127.0.0.1:123456", "127.0.0.1:-1",
        "[::1", "[::1]1", "[]:1", "300.1.2.3:1", "no such host"}) {
    CAPTURE(std::string(text));
    CHECK_THROWS_AS(parse_socket_address(text, 9), std::invalid_argument);
  }
}

TEST_CASE("an address says what it is, and its bytes make it again") {
  struct Case {
    const char* text;
    bool v6, loopback, wildcard, link_local;
  };
  for (const auto& shown :
       {Case{"127.9.9.9", false, true, false, false}, Case{"0.0.0.0", false, false, true, false},
        Case{"10.0.0.1", false, false, false, false}, Case{"::1", true, true, false, false},
        Case{"::", true, false, true, false}, Case{"fe80::1", true, false, false, true},
        Case{"2001:db8::1", true, false, false, false}}) {
    const auto& [text, v6, loopback, wildcard, link_local] = shown;
    CAPTURE(std::string(shown.text));
    const SocketAddress address = parse_socket_address(text, 77);
    CHECK(address.v6() == v6);
    CHECK(address.loopback() == loopback);
    CHECK(address.wildcard() == wildcard);
    CHECK(address.link_local() == link_local);
    CHECK(address.host() == text);
    CHECK(address.bytes().size() == (v6 ? 16u : 4u));
    CHECK(SocketAddress::from_bytes(address.bytes(), 77).text() == address.text());
    CHECK(address.with_port(1).port() == 1);
    CHECK(SocketAddress(address.get(), address.length()).text() == address.text());
  }
}

TEST_CASE("a connection has both addresses, and tells what the other end has not taken") {
  for (const char* const here : {"127.0.0.1:0", "[::1]:0"}) {
    CAPTURE(std::string(here));
    if (!has_route(parse_socket_address(here, 0).with_port(1))) continue;  // a machine without IPv6
    const OwnFd listening = listen_tcp(parse_socket_address(here, 0));
    const SocketAddress where = local_address(listening.get());
    CHECK(where.port() != 0);
    CHECK_THROWS_AS(listen_tcp(where), std::system_error);

    OwnFd calling = connect_tcp(where);
    REQUIRE(calling.valid());
    wait_for(calling.get(), POLLOUT);
    wait_for(listening.get(), POLLIN);
    const OwnFd called(::accept(listening.get(), nullptr, nullptr));
    REQUIRE(called.valid());
    tune_tcp(calling.get(), 10);
    CHECK(peer_address(calling.get()).text() == where.text());
    CHECK(peer_address(called.get()).text() == local_address(calling.get()).text());

    // What a reader that takes nothing leaves behind, once its buffer is full.
    const std::vector<char> bytes(1 << 20);
    while (::send(calling.get(), bytes.data(), bytes.size(), MSG_DONTWAIT) > 0) continue;
    CHECK(errno == EAGAIN);
    CHECK(unacknowledged_bytes(calling.get()) > 0);
    std::vector<char> taken(1 << 20);
    while (unacknowledged_bytes(calling.get()) != 0) {
      wait_for(called.get(), POLLIN);
      REQUIRE(::recv(called.get(), taken.data(), taken.size(), 0) > 0);
    }

    // What is under way arrives after a close if nothing unread is left behind.
    while (::recv(called.get(), taken.data(), taken.size(), MSG_DONTWAIT) > 0) continue;
    std::size_t sent = 0, arrived = 0;
    for (ssize_t once = 0; (once = ::send(calling.get(), bytes.data(), bytes.size(), MSG_DONTWAIT)) > 0;)
      sent += static_cast<std::size_t>(once);
    REQUIRE(::send(called.get(), bytes.data(), 100, 0) == 100);
    wait_for(calling.get(), POLLIN);
    discard_input(calling.get());
    calling.reset();
    for (ssize_t once = 0; (once = ::recv(called.get(), taken.data(), taken.size(), 0)) > 0;)
      arrived += static_cast<std::size_t>(once);
    CHECK(arrived == sent);
  }
}

TEST_CASE("an absent interface is listened for only by an address that no other one has") {
  const SocketAddress later = parse_socket_address("192.0.2.77:0", 0);  // for documentation: nobody has it
  CHECK_THROWS_AS(listen_tcp(later), std::system_error);
  const OwnFd listening = listen_tcp(later, "eth7");
  CHECK(local_address(listening.get()).host() == "192.0.2.77");
}

TEST_CASE("the loopback interface comes first, with its addresses") {
  const std::vector<Interface> all = list_interfaces();
  REQUIRE_FALSE(all.empty());
  CHECK(all.front().loopback);
  CHECK(all.front().up);
  REQUIRE_FALSE(all.front().addresses.empty());
  CHECK(all.front().addresses.front().loopback());
  for (const Interface& one : all)
    CHECK(std::ranges::none_of(one.addresses, [](const SocketAddress& it) { return it.link_local(); }));
  CHECK(std::is_sorted(all.begin() + 1, all.end(),
                       [](const Interface& a, const Interface& b) { return a.name < b.name; }));
}
