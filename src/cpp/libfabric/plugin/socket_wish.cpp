#include "libfabric/plugin/socket_wish.h"

#include <netdb.h>
#include <sys/socket.h>

#include <memory>
#include <string>

#include "base/fd.h"
#include "fabric/types/error.h"

namespace fab::fi {
namespace {

SocketAddress resolve(const char* node, const char* service, std::uint64_t flags, int family) {
  addrinfo asked{};
  asked.ai_family = family;
  asked.ai_socktype = SOCK_STREAM;
  asked.ai_flags = (flags & FI_SOURCE ? AI_PASSIVE : 0) | (flags & FI_NUMERICHOST ? AI_NUMERICHOST : 0);
  addrinfo* found = nullptr;
  const int failed = ::getaddrinfo(node, service, &asked, &found);
  if (failed != 0)
    throw Error(Errc::no_data, std::string("there is no address of ") + (node ? node : "this host") +
                                   ", service " + (service ? service : "(none)") + ": " +
                                   ::gai_strerror(failed));
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> owner(found, &::freeaddrinfo);
  return {found->ai_addr, found->ai_addrlen};
}

// An address that the hints bring.
std::optional<SocketAddress> brought(const void* address, std::size_t length) {
  if (!address) return std::nullopt;
  const auto* const socket = static_cast<const sockaddr*>(address);
  const bool whole =
      length >= sizeof(sockaddr_in) &&
      (socket->sa_family == AF_INET || (socket->sa_family == AF_INET6 && length >= sizeof(sockaddr_in6)));
  if (!whole)
    throw Error(Errc::no_data, "src_addr and dest_addr are IPv4 or IPv6 addresses, where they are given");
  return SocketAddress(socket, static_cast<socklen_t>(length));
}

std::string bytes_of(const void* address, std::size_t length) {
  return address ? std::string(static_cast<const char*>(address), length) : std::string();
}

// Of a node that has addresses of both families, the one that goes with the address of the other side.
int family_of(std::uint32_t format, const std::optional<SocketAddress>& other) {
  if (format == FI_SOCKADDR_IN6) return AF_INET6;
  if (format == FI_SOCKADDR_IN) return AF_INET;
  if (!other) return AF_UNSPEC;
  return other->v6() ? AF_INET6 : AF_INET;
}

}  // namespace

std::uint32_t socket_format(AddressFormat format) noexcept {
  if (format == AddressFormat::sockaddr_in6) return FI_SOCKADDR_IN6;
  return FI_SOCKADDR_IN;
}

AddressFormat format_of(std::uint32_t theirs) noexcept {
  if (theirs == FI_SOCKADDR_IN) return AddressFormat::sockaddr_in;
  return theirs == FI_SOCKADDR_IN6 ? AddressFormat::sockaddr_in6 : AddressFormat::bundle;
}

SocketWish socket_wish(const char* node, const char* service, std::uint64_t flags, const fi_info* hints) {
  const std::uint32_t format = hints ? hints->addr_format : std::uint32_t{FI_FORMAT_UNSPEC};
  SocketWish wish;
  if (format == kAddressFormat) {
    wish.own_source = bytes_of(hints->src_addr, hints->src_addrlen);
    wish.own_destination = bytes_of(hints->dest_addr, hints->dest_addrlen);
  } else if (hints) {
    wish.source = brought(hints->src_addr, hints->src_addrlen);
    wish.destination = brought(hints->dest_addr, hints->dest_addrlen);
  }
  if (node || service) {
    const bool listens = (flags & FI_SOURCE) != 0;
    const int family = family_of(format, listens ? wish.destination : wish.source);
    (listens ? wish.source : wish.destination) = resolve(node, service, flags, family);
  }
  const bool named = format == FI_SOCKADDR || format == FI_SOCKADDR_IN || format == FI_SOCKADDR_IN6;
  if (!wish.source && !wish.destination && !named) return wish;
  if (format != FI_FORMAT_UNSPEC && !named)
    throw Error(Errc::no_data,
                "addresses of hosts go with addr_format FI_SOCKADDR, FI_SOCKADDR_IN or FI_SOCKADDR_IN6");
  const auto& given = wish.source ? wish.source : wish.destination;
  const bool v6 = given ? given->v6() : format == FI_SOCKADDR_IN6;
  wish.format = v6 ? AddressFormat::sockaddr_in6 : AddressFormat::sockaddr_in;
  if (wish.source && wish.destination && wish.source->v6() != wish.destination->v6())
    throw Error(Errc::no_data, "src_addr and dest_addr are of different families");
  return wish;
}

SocketWish SocketWish::on_node() const {
  for (const auto& address : {source, destination}) {
    if (!address || address->wildcard()) continue;
    const OwnFd probe(::socket(address->v6() ? AF_INET6 : AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    const SocketAddress any_port = address->with_port(0);
    if (!probe.valid() || ::bind(probe.get(), any_port.get(), any_port.length()) != 0)
      throw Error(Errc::no_data, address->host() +
                                     " is no address of this host, and PYFAB_FI_LINKS has no tcp link to "
                                     "other hosts");
  }
  SocketWish own = *this;
  own.format = AddressFormat::bundle;
  return own;
}

SocketAddress source_towards(const std::optional<SocketAddress>& destination, bool v6) {
  if (destination) {
    const OwnFd probe(::socket(v6 ? AF_INET6 : AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    const SocketAddress any_port = destination->port() ? *destination : destination->with_port(9);
    if (probe.valid() && ::connect(probe.get(), any_port.get(), any_port.length()) == 0)
      return local_address(probe.get()).with_port(0);
  }
  return SocketAddress::from_bytes(std::string(v6 ? 16 : 4, '\0'), 0);
}

}  // namespace fab::fi
