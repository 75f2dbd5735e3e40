#include "providers/verbs/route.h"

#include <exception>

namespace fab::verbs {

std::optional<SocketAddress> find_route(const EndpointAddress& peer, const SocketAddress& from) {
  for (const SocketAddress& address : peer.addresses)
    if (address.v6() == from.v6() && !address.wildcard() && !address.loopback() && has_route(address))
      return address;
  return {};
}

std::optional<SocketAddress> route_to(const EndpointAddress& peer, const SocketAddress& from) noexcept try {
  return find_route(peer, from);
} catch (const std::exception&) {
  return {};
}

}  // namespace fab::verbs
