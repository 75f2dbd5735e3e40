#pragma once

#include <optional>

#include "base/network/tcp_socket.h"
#include "fabric/session/frames/hello.h"

namespace fab::verbs {

// The first address of the peer that the device with the address `from` may reach.
std::optional<SocketAddress> find_route(const EndpointAddress& peer, const SocketAddress& from);

// Does what find_route() does, and returns nothing if descriptors or memory have run out.
std::optional<SocketAddress> route_to(const EndpointAddress& peer, const SocketAddress& from) noexcept;

}  // namespace fab::verbs
