#include "providers/tcp/domain.h"

#include <stdexcept>

#include "base/bytes/number.h"
#include "base/crypto/libssl.h"
#include "base/crypto/tls_kernel.h"
#include "fabric/address_vector/socket_name.h"
#include "fabric/session/frames/hello.h"
#include "providers/tcp/endpoint.h"

namespace fab::tcp {
namespace {

std::uint16_t parse_port(const std::string& text) {
  const auto port = number_in<std::uint16_t>(text);
  if (!port)
    throw Error(Errc::invalid,
                "tcp_port is \"" + text + "\"; it must be a number from 0 (the system chooses) to 65535");
  return *port;
}

SocketAddress address_to_listen_on(const Info& info, const DomainOptions& options) try {
  const std::uint16_t port = parse_port(options.setting("tcp_port", "0"));
  const std::string everywhere = "0.0.0.0";  // on an interface that has no address yet
  return parse_socket_address(
      options.setting("tcp_listen", info.src_addr.empty() ? everywhere : info.src_addr), port);
} catch (const std::invalid_argument& error) {
  throw Error(Errc::invalid, std::string("tcp_listen: ") + error.what());
}

}  // namespace

TcpDomain::TcpDomain(Info info, std::string link, const DomainServices& services)
    : info_(std::move(info)),
      link_(std::move(link)),
      services_(services),
      listen_(address_to_listen_on(info_, services.options)) {
  if (services.options.encrypt && !libssl())
    throw Error(Errc::not_supported_here,
                "encrypt needs OpenSSL, which cannot be used here: " + std::string(libssl_problem()));
  if (services.options.chosen("tcp_kernel_tls", "off", "on") && !kernel_seals())
    throw Error(
        Errc::not_supported_here,
        "tcp_kernel_tls is \"on\", which needs Linux 6.14 or later with the module tls (modprobe tls) "
        "and an interface lo that is up");
  info_.src_addr = listen_.text();
}

PartCheck TcpDomain::part_check() const {
  return [link = link_](const PartView& part) -> PartVerdict {
    if (part.link == kSocketLink) return {.usable = true, .found = {}};
    if (part.link != link) return {};
    return EndpointAddress::judge(part);
  };
}

std::unique_ptr<Endpoint> TcpDomain::open_endpoint(const EndpointServices& services) {
  if (services_.options.encrypt && services.keys.front().secret.empty())
    throw Error(Errc::invalid,
                "encrypt needs an authorization key, which both sides have, and this endpoint has none; pass "
                "auth_key to the domain or to the endpoint");
  SocketAddress listen = listen_;
  if (listen.port() != 0) {
    if (listen.port() + services.context > 65535)
      throw Error(Errc::invalid, "context " + std::to_string(services.context) +
                                     " would listen on a port beyond 65535; choose a "
                                     "smaller tcp_port");
    listen = listen.with_port(static_cast<std::uint16_t>(listen.port() + services.context));
  }
  return std::make_unique<TcpEndpoint>(services_, services, link_, listen,
                                       info_.absent ? info_.domain : std::string());
}

}  // namespace fab::tcp
