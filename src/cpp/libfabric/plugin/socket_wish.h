#pragma once

#include <rdma/fabric.h>

#include <cstdint>
#include <optional>
#include <string>

#include "base/network/tcp_socket.h"
#include "fabric/address_vector/socket_name.h"

namespace fab::fi {

// Names have a format of their own, which no other provider reads (libfabric/domain/names.h).
inline constexpr std::uint32_t kAddressFormat = FI_PROV_SPECIFIC | 0x7066;

// What a program says of socket addresses when it asks for an fi_info (fi_getinfo(3)): by a node and a
// service, or by its hints. Without any of these, names are those of our own format.
struct SocketWish {
  AddressFormat format = AddressFormat::bundle;      // bundle: none are asked for
  std::optional<SocketAddress> source, destination;  // where to listen, and the peer
  std::string own_source, own_destination;           // the same in our own format, where hints bring it

  bool wanted() const noexcept { return format != AddressFormat::bundle; }
  // The wish where only shared memory leads to peers: an own name that stands for the port on this node.
  // Throws Error(no_data) for addresses of other hosts.
  SocketWish on_node() const;
};

// Throws Error(no_data) for what is no address of a host, and for formats that are not offered.
SocketWish socket_wish(const char* node, const char* service, std::uint64_t flags, const fi_info* hints);

// The format of a socket address in libfabric's words, and the reverse of it; others are our own.
std::uint32_t socket_format(AddressFormat format) noexcept;
AddressFormat format_of(std::uint32_t theirs) noexcept;

// The local address from which packets to `destination` go, with port 0; the wildcard if that is unknown.
SocketAddress source_towards(const std::optional<SocketAddress>& destination, bool v6);

}  // namespace fab::fi
