#pragma once

#include <netinet/in.h>
#include <sys/socket.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/fd.h"

namespace fab {

// An IPv4 or IPv6 address with a port.
class SocketAddress {
 public:
  SocketAddress() = default;
  SocketAddress(const sockaddr* address, socklen_t length);
  // `bytes`: 4 or 16, in network order, as bytes() gives them.
  static SocketAddress from_bytes(std::string_view bytes, std::uint16_t port);

  bool v6() const noexcept { return storage_.ss_family == AF_INET6; }
  std::string bytes() const;
  std::uint16_t port() const noexcept;
  SocketAddress with_port(std::uint16_t port) const;
  bool loopback() const noexcept;
  bool wildcard() const noexcept;
  bool link_local() const noexcept;  // means something only together with an interface
  std::string text() const;          // "127.0.0.1:4711", "[::1]:4711"
  std::string host() const;          // without the port

  const sockaddr* get() const noexcept { return reinterpret_cast<const sockaddr*>(&storage_); }
  socklen_t length() const noexcept { return v6() ? sizeof(sockaddr_in6) : sizeof(sockaddr_in); }

 private:
  sockaddr_storage storage_{};
};

// Parses HOST, HOST:PORT, [V6]:PORT. A host name is looked up, and its first address is taken. Throws
// std::invalid_argument.
SocketAddress parse_socket_address(const std::string& text, std::uint16_t default_port);

// A listening, non-blocking socket. `absent` names an interface that is down or has no address yet: then the
// socket listens on `address` before the interface has it, and a wildcard stands for the addresses of that
// interface only. Throws std::system_error.
OwnFd listen_tcp(const SocketAddress& address, const std::string& absent = {});
// A non-blocking socket whose connection is under way; invalid with errno set if it failed at once.
OwnFd connect_tcp(const SocketAddress& address) noexcept;
SocketAddress local_address(int fd) noexcept;  // without a port, and with errno set: it cannot be told
SocketAddress peer_address(int fd) noexcept;

// Sends at once, and gives up on a silent peer after about `deadline` seconds.
void tune_tcp(int fd, double deadline) noexcept;

// The bytes that the socket has taken and that the other end's kernel has not acknowledged.
std::size_t unacknowledged_bytes(int fd) noexcept;
// Reads away what has come. A socket that closes with unread bytes throws away what the other end's kernel
// has not acknowledged; otherwise the kernel goes on sending that.
void discard_input(int fd) noexcept;

// Whether this host has a route there. Sends nothing. Throws std::system_error when descriptors or memory run
// out.
bool has_route(const SocketAddress& address);
// The address of this host from which it would call that one. Nothing: it has no route there. Sends nothing,
// and throws as has_route() does.
std::optional<SocketAddress> source_towards(const SocketAddress& address);

}  // namespace fab
