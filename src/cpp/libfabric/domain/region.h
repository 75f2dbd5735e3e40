#pragma once

#include <rdma/fi_domain.h>

#include <memory>

#include "fabric/domain/memory_region.h"
#include "libfabric/domain/domain.h"

namespace fab::fi {

// Registered memory (fi_mr(3)). The program owns the memory, and keeps it until the region is closed.
class Mr final : public fid_mr {
 public:
  static int open(Domain& domain, const fi_mr_attr& attr, std::uint64_t flags, fid_mr** out);

 private:
  friend struct MrCalls;
  Mr(Domain& domain, std::shared_ptr<MemoryRegion> region, void* user_context);
  int bind(::fid* other, std::uint64_t flags);
  int close();

  const Use domain_;
  const std::shared_ptr<MemoryRegion> region_;
};

fi_ops_mr& region_calls() noexcept;

}  // namespace fab::fi
