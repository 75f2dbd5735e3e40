#pragma once

#include <rdma/fabric.h>

#include "libfabric/plugin/uses.h"

namespace fab::fi {

// A fabric (fi_fabric(3)), which opens domains and event queues.
class Fabric final : public fid_fabric {
 public:
  static int open(const fi_fabric_attr& attr, void* user_context, fid_fabric** out);

  Users& users() noexcept { return users_; }

 private:
  friend struct FabricCalls;
  explicit Fabric(void* user_context);

  Users users_{0};
};

}  // namespace fab::fi
