#pragma once

#include <memory>

#include "fabric/provider.h"

namespace fab::verbs {

// The provider for RDMA networks: InfiniBand, RoCE and iWARP devices, by rdma-core.
std::unique_ptr<Provider> make_verbs_provider();

}  // namespace fab::verbs
