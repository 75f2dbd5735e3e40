#include "providers/verbs/route.h"

#include <exception>

namespace fab::verbs {
namespace {

std::optional<Route> find_exchange(const EndpointAddress& peer) {
  const bool here = peer.network == this_network();
  for (const SocketAddress& address : peer.addresses)
    if (!address.wildcard() && (address.loopback() ? here : has_route(address)))
      return Route{.from = {}, .to = address, .by_exchange = true};
  return {};
}

}  // namespace

std::optional<Route> find_route(const EndpointAddress& peer, const Ways& ways) {
  if (peer.by_exchange) return ways.exchange ? find_exchange(peer) : std::nullopt;
  if (!ways.address) return {};
  for (const SocketAddress& address : peer.addresses)
    if (address.v6() == ways.address->v6() && !address.wildcard() && !address.loopback() &&
        has_route(address))
      return Route{.from = *ways.address, .to = address};
  return {};
}

std::optional<Route> route_to(const EndpointAddress& peer, const Ways& ways) noexcept try {
  return find_route(peer, ways);
} catch (const std::exception&) {
  return {};
}

}  // namespace fab::verbs
