#include "base/network/tcp_socket.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <linux/sockios.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <sys/ioctl.h>

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <system_error>

namespace fab {
namespace {

void set_option(int fd, int level, int name, int value) noexcept {
  ::setsockopt(fd, level, name, &value, sizeof value);
}

}  // namespace

SocketAddress::SocketAddress(const sockaddr* address, socklen_t length) {
  std::memcpy(&storage_, address, std::min<std::size_t>(length, sizeof storage_));
}

SocketAddress SocketAddress::from_bytes(std::string_view bytes, std::uint16_t port) {
  SocketAddress address;
  if (bytes.size() == 4) {
    auto& v4 = reinterpret_cast<sockaddr_in&>(address.storage_);
    v4.sin_family = AF_INET;
    std::memcpy(&v4.sin_addr, bytes.data(), 4);
  } else if (bytes.size() == 16) {
    auto& v6 = reinterpret_cast<sockaddr_in6&>(address.storage_);
    v6.sin6_family = AF_INET6;
    std::memcpy(&v6.sin6_addr, bytes.data(), 16);
  }
  return address.with_port(port);
}

std::string SocketAddress::bytes() const {
  if (v6())
    return {reinterpret_cast<const char*>(&reinterpret_cast<const sockaddr_in6&>(storage_).sin6_addr), 16};
  return {reinterpret_cast<const char*>(&reinterpret_cast<const sockaddr_in&>(storage_).sin_addr), 4};
}

std::uint16_t SocketAddress::port() const noexcept {
  return ntohs(v6() ? reinterpret_cast<const sockaddr_in6&>(storage_).sin6_port
                    : reinterpret_cast<const sockaddr_in&>(storage_).sin_port);
}

SocketAddress SocketAddress::with_port(std::uint16_t port) const {
  SocketAddress other = *this;
  (v6() ? reinterpret_cast<sockaddr_in6&>(other.storage_).sin6_port
        : reinterpret_cast<sockaddr_in&>(other.storage_).sin_port) = htons(port);
  return other;
}

bool SocketAddress::loopback() const noexcept {
  if (v6()) return IN6_IS_ADDR_LOOPBACK(&reinterpret_cast<const sockaddr_in6&>(storage_).sin6_addr);
  return ntohl(reinterpret_cast<const sockaddr_in&>(storage_).sin_addr.s_addr) >> 24 == 127;
}

bool SocketAddress::wildcard() const noexcept {
  if (v6()) return IN6_IS_ADDR_UNSPECIFIED(&reinterpret_cast<const sockaddr_in6&>(storage_).sin6_addr);
  return reinterpret_cast<const sockaddr_in&>(storage_).sin_addr.s_addr == 0;
}

bool SocketAddress::link_local() const noexcept {
  return v6() && IN6_IS_ADDR_LINKLOCAL(&reinterpret_cast<const sockaddr_in6&>(storage_).sin6_addr);
}

std::string SocketAddress::host() const {
  char text[INET6_ADDRSTRLEN] = "?";
  const void* raw = v6()
                        ? static_cast<const void*>(&reinterpret_cast<const sockaddr_in6&>(storage_).sin6_addr)
                        : &reinterpret_cast<const sockaddr_in&>(storage_).sin_addr;
  ::inet_ntop(storage_.ss_family, raw, text, sizeof text);
  return text;
}

std::string SocketAddress::text() const {
  return (v6() ? "[" + host() + "]" : host()) + ":" + std::to_string(port());
}

SocketAddress parse_socket_address(const std::string& text, std::uint16_t default_port) {
  const auto invalid = [&](const std::string& why) {
    return std::invalid_argument("\"" + text + "\" is not a socket address: " + why +
                                 "; write HOST, HOST:PORT or [IPV6]:PORT");
  };
  std::string host = text, port = std::to_string(default_port);
  if (text.starts_with('[')) {
    const auto end = text.find(']');
    if (end == std::string::npos) throw invalid("a bracket is missing");
    host = text.substr(1, end - 1);
    if (end + 1 < text.size()) {
      if (text[end + 1] != ':') throw invalid("a port follows a colon");
      port = text.substr(end + 2);
    }
  } else if (const auto colon = text.find(':'); colon != std::string::npos && colon == text.rfind(':')) {
    host = text.substr(0, colon);
    port = text.substr(colon + 1);
  }
  const bool digits = !port.empty() && port.size() <= 5 &&
                      std::ranges::all_of(port, [](char c) { return c >= '0' && c <= '9'; });
  if (!digits || std::stoul(port) > 65535) throw invalid("the port is a number from 0 to 65535");
  if (host.empty()) throw invalid("the host is missing");

  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (const int error = ::getaddrinfo(host.c_str(), port.c_str(), &hints, &found); error != 0)
    throw invalid(::gai_strerror(error));
  const SocketAddress address(found->ai_addr, found->ai_addrlen);
  ::freeaddrinfo(found);
  if (address.get()->sa_family != AF_INET && address.get()->sa_family != AF_INET6)
    throw invalid("it is neither IPv4 nor IPv6");
  return address;
}

OwnFd listen_tcp(const SocketAddress& address, const std::string& absent) {
  OwnFd fd(check_call(::socket(address.get()->sa_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0),
                      "socket"));
  set_option(fd.get(), SOL_SOCKET, SO_REUSEADDR, 1);
  if (address.v6()) set_option(fd.get(), IPPROTO_IPV6, IPV6_V6ONLY, 1);
  if (!absent.empty()) set_option(fd.get(), IPPROTO_IP, IP_FREEBIND, 1);  // holds for IPv6 sockets too
  if (!absent.empty() && address.wildcard())  // the wildcard must not reach other interfaces
    check_call(::setsockopt(fd.get(), SOL_SOCKET, SO_BINDTODEVICE, absent.data(),
                            static_cast<socklen_t>(absent.size())),
               "SO_BINDTODEVICE");
  if (::bind(fd.get(), address.get(), address.length()) == 0 && ::listen(fd.get(), SOMAXCONN) == 0) return fd;
  throw std::system_error(errno, std::generic_category(), "listen on " + address.text());
}

OwnFd connect_tcp(const SocketAddress& address) noexcept {
  OwnFd fd(::socket(address.get()->sa_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (fd.valid() && ::connect(fd.get(), address.get(), address.length()) != 0 && errno != EINPROGRESS) {
    const int error = errno;
    fd.reset();
    errno = error;
  }
  return fd;
}

SocketAddress local_address(int fd) noexcept {
  sockaddr_storage storage{};
  socklen_t length = sizeof storage;
  ::getsockname(fd, reinterpret_cast<sockaddr*>(&storage), &length);
  return {reinterpret_cast<sockaddr*>(&storage), length};
}

SocketAddress peer_address(int fd) noexcept {
  sockaddr_storage storage{};
  socklen_t length = sizeof storage;
  ::getpeername(fd, reinterpret_cast<sockaddr*>(&storage), &length);
  return {reinterpret_cast<sockaddr*>(&storage), length};
}

void tune_tcp(int fd, double deadline) noexcept {
  const auto seconds = [&](double share) {
    return std::clamp(static_cast<int>(deadline * share), 1, 30'000);
  };
  set_option(fd, IPPROTO_TCP, TCP_NODELAY, 1);
  set_option(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
  set_option(fd, IPPROTO_TCP, TCP_KEEPIDLE, seconds(0.5));
  set_option(fd, IPPROTO_TCP, TCP_KEEPINTVL, seconds(0.125));
  set_option(fd, IPPROTO_TCP, TCP_KEEPCNT, 4);
  set_option(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, static_cast<int>(std::clamp(deadline * 1000, 100.0, 2e9)));
}

std::size_t unacknowledged_bytes(int fd) noexcept {
  int count = 0;
  return ::ioctl(fd, SIOCOUTQ, &count) == 0 ? static_cast<std::size_t>(count) : 0;
}

void discard_input(int fd) noexcept {
  constexpr int kMostReads = 1024;  // of a peer that goes on sending
  // TCP copies nothing (MSG_TRUNC). TLS in the kernel does, and wants room beside the bytes for what they
  // are.
  char away[64 * 1024], beside[64];
  iovec piece{away, sizeof away};
  for (int reads = 0; reads < kMostReads; ++reads) {
    msghdr message{};
    message.msg_iov = &piece;
    message.msg_iovlen = 1;
    message.msg_control = beside;
    message.msg_controllen = sizeof beside;
    const auto got = ::recvmsg(fd, &message, MSG_DONTWAIT | MSG_TRUNC);
    if (got == 0 || (got < 0 && errno != EINTR)) return;
  }
}

std::optional<SocketAddress> source_towards(const SocketAddress& address) {
  const OwnFd probe(::socket(address.get()->sa_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  if (!probe.valid() && is_shortage(errno)) throw std::system_error(errno, std::generic_category(), "socket");
  if (!probe.valid() || ::connect(probe.get(), address.get(), address.length()) != 0) return {};
  return local_address(probe.get()).with_port(0);
}

bool has_route(const SocketAddress& address) { return source_towards(address).has_value(); }

}  // namespace fab
