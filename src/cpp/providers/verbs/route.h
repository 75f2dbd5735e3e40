#pragma once

#include <optional>

#include "base/network/tcp_socket.h"
#include "fabric/session/frames/hello.h"
#include "providers/verbs/connection/connection.h"

namespace fab::verbs {

// How this side can make connections.
struct Ways {
  const SocketAddress* address;  // of the device, for rdma_cm; null: it has none
  bool exchange;
};

// The way to the first address of the peer that this side may reach.
std::optional<Route> find_route(const EndpointAddress& peer, const Ways& ways);

// Does what find_route() does, and returns nothing if descriptors or memory have run out.
std::optional<Route> route_to(const EndpointAddress& peer, const Ways& ways) noexcept;

}  // namespace fab::verbs
