#pragma once

#include <cstdint>
#include <string>

#include "providers/verbs/device/device.h"
#include "providers/verbs/device/transport_options.h"
#include "providers/verbs/exchange/messages.h"

namespace fab::verbs {

// Where a port is in its RDMA network, for peers that reach it without IP.
struct PortPlace {
  QueuePairCard::Network network = QueuePairCard::Network::infiniband;
  std::uint16_t lid = 0;
  QueuePairCard::GidBytes gid{};
  std::uint8_t gid_index = 0;  // means something only where there is a GID
  std::uint8_t mtu = 1;
  bool needs_gid = false;

  // `gid_index`: of the GID to use; empty: the usual one. Throws Error(invalid) for an index that is none,
  // and Error(not_supported_here) if the port cannot be reached without IP.
  static PortPlace of(const Device& device, const std::string& gid_index);
  // Whether packets can go between this port and that of the peer.
  bool reaches(const QueuePairCard& peer) const noexcept;
  // Whether the packets to the peer carry GIDs, or LIDs alone.
  bool by_gid(const QueuePairCard& peer) const noexcept;
};

// Lets a new queue pair take receives. `reached`: the peer's device may read and write memory of the queue
// pair's protection domain. Returns false, with errno set, if the device refuses.
bool initialise(ibv_qp& queue_pair, std::uint8_t port, bool reached) noexcept;

// The two sides of a connection.
struct Introduced {
  const QueuePairCard& own;
  const QueuePairCard& peer;
};
// Connects a queue pair for which initialise() was called: from then on it receives and sends. Returns false,
// with errno set, if the device refuses.
bool connect(ibv_qp& queue_pair, const Device& device, const PortPlace& place,
             const TransportOptions& transport, const Introduced& sides) noexcept;

}  // namespace fab::verbs
