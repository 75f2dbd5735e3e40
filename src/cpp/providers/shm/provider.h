#pragma once

#include <memory>

#include "fabric/provider.h"

namespace fab::shm {

// Peers on the same node: the initiator moves the bytes itself where the kernel lets it (docs/shm.md).
class ShmProvider final : public Provider {
 public:
  std::string_view name() const noexcept override { return "shm"; }
  std::vector<Info> discover() const override;
  std::string problem() const override { return ""; }
  std::unique_ptr<Domain> open(const Info& info, std::string link,
                               const DomainServices& services) const override;
};

std::unique_ptr<Provider> make_shm_provider();

}  // namespace fab::shm
