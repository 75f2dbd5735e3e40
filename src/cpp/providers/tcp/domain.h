#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/network/tcp_socket.h"
#include "fabric/provider.h"

namespace fab::tcp {

// Settings: "tcp_listen" = HOST or HOST:PORT to listen on instead of the interface's address, "tcp_port" =
// PORT. Context i listens on PORT + i; without a port, the system chooses. "tcp_kernel_tls" = "on": the
// kernel seals what is encrypted; "off" (the default): this process does.
class TcpDomain final : public Domain {
 public:
  TcpDomain(Info info, std::string link, const DomainServices& services);

  const Info& info() const noexcept override { return info_; }
  std::vector<LinkRegistrations> registrations() const override { return {{.link = link_}}; }
  PartCheck part_check() const override;
  std::unique_ptr<Endpoint> open_endpoint(const EndpointServices& services) override;

 private:
  Info info_;
  const std::string link_;
  const DomainServices services_;
  SocketAddress listen_;
};

}  // namespace fab::tcp
