#include "fabric/address_vector/socket_name.h"

#include <arpa/inet.h>
#include <net/if.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstring>
#include <stdexcept>

#include "base/bytes/hex.h"
#include "base/bytes/wire.h"
#include "fabric/types/error.h"
#include "fabric/types/name.h"

namespace fab {
namespace {

// <rdma/ib.h>: struct sockaddr_ib is part of the kernel's interface.
constexpr sa_family_t kFamilyIb = 27;
struct SocketAddressIb {
  std::uint16_t family, pkey;
  std::uint32_t flow_info;
  std::array<std::uint8_t, 16> gid;
  std::uint64_t service_id, service_mask, scope_id;  // service_id: port space and port
};
static_assert(sizeof(SocketAddressIb) == 48);

constexpr std::string_view kIn = "fi_sockaddr_in://", kIn6 = "fi_sockaddr_in6://", kIb = "fi_sockaddr_ib://",
                           kBundle = "fi_bundle://";

template <class T>
std::optional<T> number(std::string_view text, int base) {
  if (base == 16 && text.starts_with("0x")) text.remove_prefix(2);
  T value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, base);
  return error == std::errc() && end == text.data() + text.size() && !text.empty() ? std::optional(value)
                                                                                   : std::nullopt;
}

[[noreturn]] void refuse(std::string_view text, const char* why) {
  throw Error(Errc::invalid, "\"" + std::string(text.substr(0, 200)) + "\" is no address: " + why);
}

std::string print_ib(std::string_view bytes) {
  SocketAddressIb ib;
  std::memcpy(&ib, bytes.data(), sizeof ib);
  char gid[INET6_ADDRSTRLEN] = "?";
  ::inet_ntop(AF_INET6, ib.gid.data(), gid, sizeof gid);
  return std::string(kIb) + "[" + gid + "]:" + hex(ntohs(ib.pkey)) + ":" +
         hex(__builtin_bswap64(ib.service_id)) + ":" + hex(__builtin_bswap64(ib.scope_id));
}

std::string parse_ib(std::string_view all, std::string_view text) {
  const auto close = text.find("]:");
  if (!text.starts_with('[') || close == std::string_view::npos)
    refuse(all, "it wants [GID]:0xPKEY:0xPS:0xSCOPE");
  SocketAddressIb ib{};
  ib.family = kFamilyIb;
  if (::inet_pton(AF_INET6, std::string(text.substr(1, close - 1)).c_str(), ib.gid.data()) != 1)
    refuse(all, "the GID is written like an IPv6 address");
  text.remove_prefix(close + 2);
  const auto first = text.find(':'),
             second = first == std::string_view::npos ? std::string_view::npos : text.find(':', first + 1);
  if (second == std::string_view::npos) refuse(all, "it wants [GID]:0xPKEY:0xPS:0xSCOPE");
  const auto pkey = number<std::uint16_t>(text.substr(0, first), 16);
  const auto service = number<std::uint64_t>(text.substr(first + 1, second - first - 1), 16);
  const auto scope = number<std::uint64_t>(text.substr(second + 1), 16);
  if (!pkey || !service || !scope) refuse(all, "its numbers are hexadecimal");
  ib.pkey = htons(*pkey);
  ib.service_id = __builtin_bswap64(*service);
  ib.scope_id = __builtin_bswap64(*scope);
  return {reinterpret_cast<const char*>(&ib), sizeof ib};
}

std::string parse_ip(std::string_view all, std::string_view text, bool v6) {
  const auto colon = text.rfind(':');
  if (colon == std::string_view::npos) refuse(all, "the port is missing");
  const auto port = number<std::uint16_t>(text.substr(colon + 1), 10);
  if (!port) refuse(all, "the port is a number from 0 to 65535");
  std::string host(text.substr(0, colon));
  if (v6) {
    if (!host.starts_with('[') || !host.ends_with(']')) refuse(all, "an IPv6 address stands in brackets");
    host = host.substr(1, host.size() - 2);
    sockaddr_in6 address{};
    address.sin6_family = AF_INET6;
    address.sin6_port = htons(*port);
    if (const auto percent = host.find('%'); percent != std::string::npos) {
      const auto scope = number<std::uint32_t>(std::string_view(host).substr(percent + 1), 10);
      address.sin6_scope_id = scope ? *scope : ::if_nametoindex(host.c_str() + percent + 1);
      if (address.sin6_scope_id == 0) refuse(all, "there is no such interface");
      host.resize(percent);
    }
    if (::inet_pton(AF_INET6, host.c_str(), &address.sin6_addr) != 1) refuse(all, "that is no IPv6 address");
    return {reinterpret_cast<const char*>(&address), sizeof address};
  }
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(*port);
  if (::inet_pton(AF_INET, host.c_str(), &address.sin_addr) != 1) refuse(all, "that is no IPv4 address");
  return {reinterpret_cast<const char*>(&address), sizeof address};
}

}  // namespace

std::string pack(const SocketAddress& address) {
  if (address.v6()) {
    sockaddr_in6 v6;
    std::memcpy(&v6, address.get(), sizeof v6);
    v6.sin6_flowinfo = 0;
    return {reinterpret_cast<const char*>(&v6), sizeof v6};
  }
  sockaddr_in v4;
  std::memcpy(&v4, address.get(), sizeof v4);
  std::ranges::fill(v4.sin_zero, std::uint8_t{0});
  return {reinterpret_cast<const char*>(&v4), sizeof v4};
}

std::optional<SocketAddress> unpack(std::string_view bytes) {
  sa_family_t family = 0;
  if (bytes.size() >= sizeof family) std::memcpy(&family, bytes.data(), sizeof family);
  const std::size_t expected = family == AF_INET    ? sizeof(sockaddr_in)
                               : family == AF_INET6 ? sizeof(sockaddr_in6)
                                                    : 0;
  if (expected == 0 || bytes.size() != expected) return {};
  sockaddr_storage storage{};
  std::memcpy(&storage, bytes.data(), bytes.size());
  SocketAddress address(reinterpret_cast<const sockaddr*>(&storage), static_cast<socklen_t>(bytes.size()));
  return address.port() ? std::optional(address) : std::nullopt;
}

std::optional<SocketAddress> advance(const SocketAddress& from, std::uint64_t nodes, std::uint64_t ports) {
  if (ports > 65535u - from.port()) return {};
  const auto port = static_cast<std::uint16_t>(from.port() + ports);
  std::string packed = pack(from.with_port(port));
  char* const bytes =
      packed.data() + (from.v6() ? offsetof(sockaddr_in6, sin6_addr) : offsetof(sockaddr_in, sin_addr));
  for (int i = from.v6() ? 15 : 3; i >= 0 && nodes; --i) {
    nodes += static_cast<unsigned char>(bytes[i]);
    bytes[i] = static_cast<char>(nodes & 0xff);
    nodes >>= 8;
  }
  return nodes ? std::nullopt : unpack(packed);
}

std::string print_address(std::string_view bytes) {
  sa_family_t family = 0;
  if (bytes.size() >= sizeof family) std::memcpy(&family, bytes.data(), sizeof family);
  if (family == AF_INET && bytes.size() == sizeof(sockaddr_in)) {
    sockaddr_in address;
    std::memcpy(&address, bytes.data(), sizeof address);
    return std::string(kIn) +
           SocketAddress(reinterpret_cast<const sockaddr*>(&address), sizeof address).text();
  }
  if (family == AF_INET6 && bytes.size() == sizeof(sockaddr_in6)) {
    sockaddr_in6 address;
    std::memcpy(&address, bytes.data(), sizeof address);
    const SocketAddress socket(reinterpret_cast<const sockaddr*>(&address), sizeof address);
    const std::string scope =
        address.sin6_scope_id ? "%" + std::to_string(address.sin6_scope_id) : std::string();
    return std::string(kIn6) + "[" + socket.host() + scope + "]:" + std::to_string(socket.port());
  }
  if (family == kFamilyIb && bytes.size() == sizeof(SocketAddressIb)) return print_ib(bytes);
  try {
    std::vector<PartView> parts;
    Name::decode(bytes, parts);
  } catch (const Error&) {
    return {};
  }
  std::string text(kBundle);
  for (const char c : bytes) {
    const auto byte = static_cast<unsigned char>(c);
    text += "0123456789abcdef"[byte >> 4];
    text += "0123456789abcdef"[byte & 15];
  }
  return text;
}

std::string parse_address(std::string_view text) {
  if (text.starts_with(kIn)) return parse_ip(text, text.substr(kIn.size()), false);
  if (text.starts_with(kIn6)) return parse_ip(text, text.substr(kIn6.size()), true);
  if (text.starts_with(kIb)) return parse_ib(text, text.substr(kIb.size()));
  if (!text.starts_with(kBundle))
    refuse(text, "it starts with fi_sockaddr_in://, fi_sockaddr_in6://, fi_sockaddr_ib:// or fi_bundle://");
  const auto digits = text.substr(kBundle.size());
  std::string bytes(digits.size() / 2, '\0');
  if (digits.size() % 2) refuse(text, "a digit is missing");
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    const auto byte = number<std::uint8_t>(digits.substr(2 * i, 2), 16);
    if (!byte) refuse(text, "it holds what is no hexadecimal digit");
    bytes[i] = static_cast<char>(*byte);
  }
  std::vector<PartView> parts;
  Name::decode(bytes, parts);
  return bytes;
}

}  // namespace fab
