#pragma once

#include <memory>
#include <string>
#include <vector>

#include "fabric/provider.h"
#include "providers/shm/endpoint.h"

namespace fab::shm {

// Shared memory needs no registrations of its own: the region table is all that peers need.
class ShmDomain final : public Domain {
 public:
  // Throws Error(invalid) for a "shm_copy" that is unknown, and Error(not_supported) for one that the kernel
  // forbids.
  ShmDomain(Info info, std::string link, const DomainServices& services);

  const Info& info() const noexcept override { return info_; }
  std::vector<LinkRegistrations> registrations() const override { return {{.link = link_}}; }
  PartCheck part_check() const override;
  std::unique_ptr<Endpoint> open_endpoint(const EndpointServices& services) override;

 private:
  const Info info_;
  const std::string link_;
  const DomainServices services_;
  CopyMode mode_;
};

}  // namespace fab::shm
