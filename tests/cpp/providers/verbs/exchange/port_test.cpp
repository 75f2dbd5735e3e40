// Which ports reach each other without IP, and what their packets carry.
#include "providers/verbs/exchange/port.h"

#include <doctest/doctest.h>

using namespace fab::verbs;
using Network = QueuePairCard::Network;

namespace {

QueuePairCard::GidBytes gid_of(std::uint8_t subnet) { return {0xfe, 0x80, 0, 0, 0, 0, 0, subnet, 1}; }

QueuePairCard card_of(Network network, std::uint16_t lid, QueuePairCard::GidBytes gid = {}) {
  return {.number = 2, .lid = lid, .gid = gid, .network = network};
}

}  // namespace

TEST_CASE("ports reach each other in one network only") {
  const PortPlace roce{.network = Network::roce_v2, .gid = gid_of(0), .needs_gid = true};
  CHECK(roce.reaches(card_of(Network::roce_v2, 0, gid_of(0))));
  CHECK(roce.reaches(card_of(Network::roce_v2, 0, gid_of(1))));  // IP has routers
  CHECK_FALSE(roce.reaches(card_of(Network::roce_v1, 0, gid_of(0))));
  CHECK_FALSE(roce.reaches(card_of(Network::infiniband, 3, gid_of(0))));
  CHECK(roce.by_gid(card_of(Network::roce_v2, 0, gid_of(0))));
}

TEST_CASE("on InfiniBand LIDs do within a subnet, unless a side has none or the port wants more") {
  const PortPlace place{.network = Network::infiniband, .lid = 3, .gid = gid_of(0)};
  CHECK(place.reaches(card_of(Network::infiniband, 5, gid_of(0))));
  CHECK_FALSE(place.reaches(card_of(Network::infiniband, 5, gid_of(1))));  // the way to the router is unknown
  CHECK(place.reaches(card_of(Network::infiniband, 5)));
  CHECK_FALSE(place.by_gid(card_of(Network::infiniband, 5, gid_of(0))));
  CHECK(place.by_gid(card_of(Network::infiniband, 0, gid_of(0))));
  CHECK(place.reaches(card_of(Network::infiniband, 0, gid_of(0))));

  const PortPlace without_gid{.network = Network::infiniband, .lid = 3};
  CHECK(without_gid.reaches(card_of(Network::infiniband, 5, gid_of(1))));
  CHECK_FALSE(without_gid.reaches(card_of(Network::infiniband, 0, gid_of(0))));

  const PortPlace strict{.network = Network::infiniband, .lid = 3, .gid = gid_of(0), .needs_gid = true};
  CHECK(strict.by_gid(card_of(Network::infiniband, 5, gid_of(0))));
  CHECK_FALSE(strict.reaches(card_of(Network::infiniband, 5)));
}
