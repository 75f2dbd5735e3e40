#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/network/tcp_socket.h"

// Socket addresses as addresses of peers (fi_av(3), FI_SOCKADDR_IN, FI_SOCKADDR_IN6, FI_ADDR_STR): packed as
// the system's structures, and as text.
namespace fab {

enum class AddressFormat : std::uint32_t {
  bundle,        // Name::encode()
  sockaddr_in,   // 16 bytes
  sockaddr_in6,  // 28 bytes
  any_sockaddr,  // either
};

// The link of the part that a packed socket address stands for.
inline constexpr std::string_view kSocketLink = "sockaddr";

std::string pack(const SocketAddress& address);  // padding and flow information are zero
// No value for what is no IPv4 or IPv6 socket address, or has port 0.
std::optional<SocketAddress> unpack(std::string_view bytes);
// The address `nodes` further on (with carry over all of its bits) and `ports` further; no value beyond the
// last one.
std::optional<SocketAddress> advance(const SocketAddress& from, std::uint64_t nodes, std::uint64_t ports);

// "fi_sockaddr_in://1.2.3.4:80", "fi_sockaddr_in6://[::1]:80", "fi_sockaddr_ib://[gid]:0xpkey:0xps:0xscope",
// "fi_bundle://" and hexadecimal digits. Empty for bytes of no known format.
std::string print_address(std::string_view bytes);
// The reverse. Throws Error(invalid).
std::string parse_address(std::string_view text);

}  // namespace fab
