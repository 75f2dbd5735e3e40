#pragma once

#include <memory>
#include <string>
#include <vector>

#include "fabric/provider.h"
#include "providers/verbs/device/device.h"
#include "providers/verbs/device/regions.h"

namespace fab::verbs {

// Settings: "verbs_atomics" = "native" (the default: by the devices, where they can and nothing but verbs
// reaches the memory) or "cpu". "verbs_odp" = "off" (the default) or "on": memory is registered with
// on-demand paging, neither pinned nor counted against the limit of locked memory. "verbs_relaxed_ordering" =
// "off" (the default) or "on": the devices may write the bytes of puts and gets to memory in any order.
// "verbs_gid_index" = the index of the GID, that is of the IP address, to use on RoCE; the default is the
// first address. "verbs_srq" = slots (of 16 KiB) of a shared receive queue for all peers of an endpoint; the
// default, 0, is receives for each.
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
  const SocketAddress address_;
  const bool atomics_;
  const std::uint32_t receive_slots_;
  OwnPd streams_;  // apart: a stream that has not proven who it is reaches no region
  OwnPd protection_domain_;
  DeviceRegions regions_;
};

}  // namespace fab::verbs
