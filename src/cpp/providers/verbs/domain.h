#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "fabric/provider.h"
#include "providers/verbs/device/device.h"
#include "providers/verbs/device/regions.h"
#include "providers/verbs/device/transport_options.h"
#include "providers/verbs/exchange/port.h"

namespace fab::verbs {

// An open device. Its settings are:
//
// "verbs_atomics": "native" (the default) or "cpu". With "native" the devices do atomics, if they can and
// nothing but verbs reaches the memory.
//
// "verbs_odp": "off" (the default) or "on". With "on" memory is registered with on-demand paging: it is
// neither pinned nor counted against the limit of locked memory.
//
// "verbs_relaxed_ordering": RelaxedOrdering has the meaning of "off", "on" and "auto" (the default).
//
// "verbs_gid_index": the index of the GID, and so of the IP address, to use on RoCE. The default is the first
// address.
//
// "verbs_connect": "cm", by rdma_cm and the port's IP addresses; "exchange", where peers need no IP address
// of the port but one of this machine (exchange/exchange.h); or "auto" (the default): "cm" if the port has an
// IP address.
//
// "verbs_listen": HOST or HOST:PORT, an address of this machine where exchanges are made. Context i listens
// on PORT + i. By default it is the address from which the machine calls most others, and any port.
//
// "verbs_srq": the number of slots, of 16 KiB, in a receive queue that all peers of an endpoint share. With 0
// (the default) each peer has receives of its own.
//
// TransportOptions has the others.
class VerbsDomain final : public Domain {
 public:
  VerbsDomain(Device device, Info info, std::string link, const DomainServices& services);

  const Info& info() const noexcept override { return info_; }
  std::vector<LinkRegistrations> registrations() const override { return {regions_.registrations(link_)}; }
  DeviceMemory* device_memory() noexcept override { return &regions_; }
  PartCheck part_check() const override;
  std::unique_ptr<Endpoint> open_endpoint(const EndpointServices& services) override;

 private:
  const Device device_;
  Info info_;
  const std::string link_;
  const DomainServices services_;
  const bool by_exchange_;
  const SocketAddress address_;
  const std::optional<PortPlace> port_;
  const bool atomics_;
  const std::uint32_t receive_slots_;
  const TransportOptions transport_;
  // Streams have a protection domain of their own, so that a caller that has proven nothing reaches no
  // region.
  OwnPd streams_;
  OwnPd protection_domain_;
  DeviceRegions regions_;
};

}  // namespace fab::verbs
