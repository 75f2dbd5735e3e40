// Peers that are named by host and port.

#include <arpa/inet.h>
#include <doctest/doctest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cstring>
#include <string>

#include "libfabric/node.h"

using namespace fab::test;

namespace {

InfoPtr info_of(const char* node, const char* service, std::uint64_t flags, const Hints& hints = Hints()) {
  fi_info* found = nullptr;
  const int result = provider().getinfo(FI_VERSION(1, 17), node, service, flags, &hints.info, &found);
  return InfoPtr(result == 0 ? found : nullptr);
}

// Whether this machine has the address.
bool is_here(const InfoPtr& info) {
  const int family = static_cast<const sockaddr*>(info->src_addr)->sa_family;
  const int socket = ::socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const bool bound = socket >= 0 && ::bind(socket, static_cast<const sockaddr*>(info->src_addr),
                                           static_cast<socklen_t>(info->src_addrlen)) == 0;
  if (socket >= 0) ::close(socket);
  return bound;
}

std::string bytes_of(const void* address, std::size_t length) {
  return {static_cast<const char*>(address), length};
}

}  // namespace

TEST_CASE(
    "a host and a port give addresses of the system's kind, over the tcp link of those that are there") {
  const Links over("shm+tcp:lo");
  const InfoPtr server = info_of("127.0.0.1", "4711", FI_SOURCE), client = info_of("127.0.0.1", "4711", 0);
  REQUIRE(server);
  REQUIRE(client);
  CHECK(std::string(server->domain_attr->name) == "tcp:lo");
  CHECK(server->addr_format == FI_SOCKADDR_IN);
  sockaddr_in expected{};
  expected.sin_family = AF_INET;
  expected.sin_port = htons(4711);
  expected.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  CHECK(bytes_of(server->src_addr, server->src_addrlen) == bytes_of(&expected, sizeof expected));
  CHECK(server->dest_addr == nullptr);
  CHECK(bytes_of(client->dest_addr, client->dest_addrlen) == bytes_of(&expected, sizeof expected));
  expected.sin_port = 0;  // of the side that calls the system chooses the port
  CHECK(bytes_of(client->src_addr, client->src_addrlen) == bytes_of(&expected, sizeof expected));

  Hints hints;
  for (const std::uint32_t format : {FI_SOCKADDR, FI_SOCKADDR_IN}) {
    hints.info.addr_format = format;
    const InfoPtr info = info_of(nullptr, nullptr, 0, hints);
    REQUIRE(info);
    CHECK(info->addr_format == FI_SOCKADDR_IN);
    CHECK(info->src_addrlen == sizeof(sockaddr_in));
  }
  hints.info.addr_format = FI_SOCKADDR_IB;
  CHECK_FALSE(info_of(nullptr, nullptr, 0, hints));
  CHECK_FALSE(info_of("127.0.0.1", "4711", 0, hints));
  CHECK_FALSE(info_of("no.such.host.invalid", "4711", FI_NUMERICHOST));
  CHECK(info_of(nullptr, nullptr, 0)->addr_format != FI_SOCKADDR_IN);  // nobody asked for it
  const Links none("shm");
  CHECK_FALSE(info_of("192.0.2.77", "4711", 0));
}

namespace {

// An endpoint that is named by where it listens.
struct Listener : Node {
  explicit Listener(const InfoPtr& info) : Node(0, hints_of(*info)) {}
  static Hints hints_of(const fi_info& info) {
    Hints hints;
    hints.info.addr_format = info.addr_format;
    hints.info.src_addr = info.src_addr;
    hints.info.src_addrlen = info.src_addrlen;
    return hints;
  }
};

}  // namespace

TEST_CASE("of a host with addresses of two families the one that goes with the source is taken") {
  const Links over("tcp:lo");
  const InfoPtr source = info_of("127.0.0.1", "0", FI_SOURCE);
  REQUIRE(source);
  Hints hints;
  hints.info.src_addr = source->src_addr;
  hints.info.src_addrlen = source->src_addrlen;
  const InfoPtr info = info_of("localhost", "4711", 0, hints);
  REQUIRE(info);
  CHECK(static_cast<const sockaddr*>(info->dest_addr)->sa_family == AF_INET);
}

TEST_CASE("an endpoint listens where fi_getinfo was told to") {
  const Links over("tcp:lo");
  std::string chosen;
  {
    const InfoPtr any = info_of("127.0.0.1", "0", FI_SOURCE);
    chosen = Listener(any).name();  // whose port is free then
  }
  sockaddr_in address{};
  std::memcpy(&address, chosen.data(), sizeof address);
  const InfoPtr info = info_of("127.0.0.1", std::to_string(ntohs(address.sin_port)).c_str(), FI_SOURCE);
  REQUIRE(info);
  CHECK(Listener(info).name() == chosen);
}

TEST_CASE("messages go to a host and a port, and names are addresses that can be printed") {
  const Links over("shm+tcp:lo");
  for (const char* const host : {"127.0.0.1", "::1"}) {
    CAPTURE(host);
    const InfoPtr info = info_of(host, "0", FI_SOURCE);
    REQUIRE(info);
    if (!is_here(info)) continue;  // IPv6 may be off
    Listener here(info), there(info);
    const std::string name = there.name();
    CHECK(name.size() == info->src_addrlen);
    fi_addr_t to = FI_ADDR_NOTAVAIL;
    REQUIRE(fi_av_insert(here.av, name.data(), 1, &to, 0, nullptr) == 1);
    std::string found(name.size(), '\0');
    std::size_t length = found.size();
    CHECK(fi_av_lookup(here.av, to, found.data(), &length) == 0);
    CHECK(found == name);
    char text[80];
    length = sizeof text;
    CHECK(std::string(fi_av_straddr(here.av, name.data(), text, &length)).find(host) != std::string::npos);
    std::string nobody = name;
    nobody[0] = 77;
    fi_addr_t none = 0;
    CHECK(fi_av_insert(here.av, nobody.data(), 1, &none, 0, nullptr) < 1);
    length = sizeof text;
    CHECK(std::string(fi_av_straddr(here.av, nobody.data(), text, &length)) == "(no address)");
    std::array<char, 4> landing{};
    REQUIRE(fi_recv(there.ep, landing.data(), landing.size(), nullptr, FI_ADDR_UNSPEC, nullptr) == 0);
    REQUIRE(fi_send(here.ep, "abc", 3, nullptr, to, nullptr) == 0);
    CHECK(there.entry().len == 3);
    CHECK(here.entry().flags == (FI_SEND | FI_MSG));
    CHECK(std::memcmp(landing.data(), "abc", 3) == 0);
  }
}
