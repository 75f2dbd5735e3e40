// Two network links to one peer, as programs use them: what one of them carries goes over the other once it
// is cut.

#include <doctest/doctest.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "fab/fab.h"
#include "fab/pair.h"

using fab::test::Pair;

namespace {

// Links over the loopback and over another device of this machine; none where there is no other one.
std::optional<std::string> two_rails() {
  ifaddrs* list = nullptr;
  REQUIRE(::getifaddrs(&list) == 0);
  std::optional<std::string> found;
  for (const ifaddrs* at = list; at; at = at->ifa_next) {
    const bool works = (at->ifa_flags & IFF_UP) != 0 && (at->ifa_flags & IFF_LOOPBACK) == 0;
    if (works && at->ifa_addr && at->ifa_addr->sa_family == AF_INET)
      found = "tcp:lo," + std::string(at->ifa_name);
  }
  ::freeifaddrs(list);
  return found;
}

// Ends the connections of this process. Returns how many there were.
int cut_all() {
  std::vector<int> descriptors;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd"))
    descriptors.push_back(std::stoi(entry.path().filename().string()));
  int ended = 0;
  for (const int fd : descriptors) {
    sockaddr_storage peer;
    socklen_t length = sizeof peer;
    if (::getpeername(fd, reinterpret_cast<sockaddr*>(&peer), &length) == 0 && peer.ss_family == AF_INET)
      ended += ::shutdown(fd, SHUT_RDWR) == 0;
  }
  return ended;
}

void check_round(Pair& rails, int round) {
  CAPTURE(round);
  const std::string large(512 * 1024, static_cast<char>('a' + round));
  fab::Request put = rails.initiator.put(rails.peer, large, rails.remote, 0);
  put.wait(30);
  CHECK(put.error().empty());
  std::string got(large.size(), '\0');
  rails.initiator.get(rails.peer, got, rails.remote, 0).wait(30);
  CHECK(got == large);
  std::string taken(5, '\0');
  fab::Request receive = rails.target.recv(taken, static_cast<std::uint64_t>(round));
  rails.initiator.send(rails.peer, std::string("round"), static_cast<std::uint64_t>(round)).wait(30);
  receive.wait(30);
  CHECK(taken == "round");
  const fab::Request added = rails.initiator.fetch_add<std::uint64_t>(rails.peer, 1, rails.remote, 0);
  added.wait(30);
  CHECK(std::to_integer<char>(rails.bytes.data()[0]) == large[0] + 1);
}

}  // namespace

TEST_CASE("over two rails operations go on while every connection is cut, plain and encrypted") {
  const auto links = two_rails();
  if (!links) {
    MESSAGE("skipped: this machine has no network device besides the loopback");
    return;
  }
  for (const bool encrypt : {false, true}) {
    CAPTURE(encrypt);
    Pair rails(*links, fab::Memory(std::vector<std::byte>(1 << 20)),
               {.auth_key = encrypt ? "a key of both sides" : "", .encrypt = encrypt});
    int cut = 0;
    for (int round = 0; round < 6; ++round) {
      check_round(rails, round);
      CHECK(rails.initiator.way_to(rails.peer).find("tcp.1") != std::string::npos);
      cut += cut_all();
    }
    CHECK(cut > 0);
  }
}
