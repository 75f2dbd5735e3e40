#pragma once

#include <cstdint>
#include <optional>

namespace fab {
struct DomainOptions;
}

namespace fab::verbs {

// How devices send the packets of connections. The settings of a domain choose it:
//
// "verbs_traffic_class": 0 to 255, the byte that networks choose queues and priorities by (the type of
// service of IPv4, the traffic class of RoCE v2). By default rdma_cm chooses.
//
// "verbs_retries": 0 to 7, how often a packet that nobody acknowledges is sent again. The default is 7.
//
// "verbs_ack_timeout": 1 to 31. A packet is sent again after 4.096 us * 2^N, or up to four times that,
// because devices may wait longer. All attempts together end before a peer counts as lost: the default is 17
// (0.54 s), or what "peer_deadline" leaves room for. iWARP has no such number.
struct TransportOptions {
  std::optional<std::uint8_t> traffic_class;
  std::uint8_t retries;
  std::uint8_t ack_timeout;

  // Throws Error(invalid) for a value that is none.
  static TransportOptions of(const DomainOptions& options);
};

}  // namespace fab::verbs
