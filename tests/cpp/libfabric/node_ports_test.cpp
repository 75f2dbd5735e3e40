// Where shared memory alone leads to peers, endpoints are found by a port of this host.

#include <doctest/doctest.h>

#include <cstring>
#include <string>

#include "libfabric/node.h"

using namespace fab::test;

namespace {

constexpr const char* kPort = "4719";

InfoPtr at_port(const char* node, std::uint64_t flags, std::uint32_t format = FI_FORMAT_UNSPEC) {
  Hints hints;
  hints.info.addr_format = format;
  fi_info* found = nullptr;
  const int result = provider().getinfo(FI_VERSION(1, 17), node, kPort, flags, &hints.info, &found);
  return InfoPtr(result == 0 ? found : nullptr);
}

fi_addr_t insert_place(Node& node, const fi_info& info) {
  fi_addr_t address = FI_ADDR_NOTAVAIL;
  return fi_av_insert(node.av, info.dest_addr, 1, &address, 0, nullptr) == 1 ? address : FI_ADDR_NOTAVAIL;
}

}  // namespace

TEST_CASE("an endpoint is found at its port while it lives, and its name is the usual one") {
  const InfoPtr server = at_port(nullptr, FI_SOURCE), client = at_port("127.0.0.1", 0);
  REQUIRE(server);
  REQUIRE(client);
  CHECK(std::string(server->domain_attr->name) == "shm");
  CHECK(server->addr_format == client->addr_format);
  REQUIRE(client->dest_addr);
  Node here;
  CHECK(insert_place(here, *client) == FI_ADDR_NOTAVAIL);
  {
    Node there(server);
    CHECK(fi_enable(there.ep) == 0);
    const fi_addr_t to = insert_place(here, *client);
    REQUIRE(to != FI_ADDR_NOTAVAIL);
    char name[64];
    std::size_t length = sizeof name;
    CHECK(fi_av_lookup(here.av, to, name, &length) == 0);
    CHECK(std::string(name, length) == there.name());
    const char out = 'a';
    char in = 0;
    CHECK(fi_recv(there.ep, &in, 1, nullptr, FI_ADDR_UNSPEC, nullptr) == 0);
    CHECK(fi_send(here.ep, &out, 1, nullptr, to, nullptr) == 0);
    there.entry();
    here.entry();
    CHECK(in == 'a');
  }
  CHECK(insert_place(here, *client) == FI_ADDR_NOTAVAIL);
}

TEST_CASE("a port is for one endpoint, and further ones of the domain take the next ports") {
  const InfoPtr server = at_port("127.0.0.1", FI_SOURCE);
  REQUIRE(server);
  Node first(server);
  CHECK(fi_enable(first.ep) == 0);
  Node other(at_port("127.0.0.1", FI_SOURCE));
  CHECK(fi_enable(other.ep) == -FI_EADDRINUSE);
  fid_ep* second = nullptr;
  REQUIRE(fi_endpoint(first.domain, server.get(), &second, nullptr) == 0);
  REQUIRE(fi_ep_bind(second, &first.av->fid, 0) == 0);
  REQUIRE(fi_ep_bind(second, &first.cq->fid, FI_TRANSMIT | FI_RECV) == 0);
  CHECK(fi_enable(second) == 0);
  CHECK(fi_close(&second->fid) == 0);
}

TEST_CASE("what fi_getinfo told can be asked for again") {
  for (const InfoPtr& told : {at_port("127.0.0.1", FI_SOURCE), at_port("127.0.0.1", 0)}) {
    REQUIRE(told);
    Hints hints;
    hints.info.addr_format = told->addr_format;
    hints.info.src_addr = told->src_addr;
    hints.info.src_addrlen = told->src_addrlen;
    hints.info.dest_addr = told->dest_addr;
    hints.info.dest_addrlen = told->dest_addrlen;
    const InfoPtr again = info_for(hints);
    REQUIRE(again);
    const auto bytes = [](const void* address, std::size_t length) {
      return std::string(static_cast<const char*>(address), address ? length : 0);
    };
    CHECK(bytes(again->src_addr, again->src_addrlen) == bytes(told->src_addr, told->src_addrlen));
    CHECK(bytes(again->dest_addr, again->dest_addrlen) == bytes(told->dest_addr, told->dest_addrlen));
  }
}

TEST_CASE("other hosts, and socket addresses, need a tcp link") {
  CHECK_FALSE(at_port("192.0.2.77", 0));
  CHECK_FALSE(at_port("127.0.0.1", 0, FI_SOCKADDR_IN));
}
