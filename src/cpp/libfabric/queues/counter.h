#pragma once

#include <rdma/fi_domain.h>
#include <rdma/fi_eq.h>

#include <memory>

#include "fabric/completion/counter.h"
#include "fabric/domain/domain_core.h"
#include "libfabric/plugin/uses.h"
#include "libfabric/queues/driven.h"

namespace fab::fi {

// A counter (fi_cntr(3)). Safe from any thread.
class Cntr final : public fid_cntr {
 public:
  static int open(const std::shared_ptr<DomainCore>& core, Users& domain, const fi_cntr_attr& attr,
                  void* user_context, fid_cntr** out);

  const std::shared_ptr<Counter>& counter() const noexcept { return counter_; }
  Driven& driven() noexcept { return driven_; }
  Users& users() noexcept { return users_; }

 private:
  friend struct CntrCalls;
  Cntr(const std::shared_ptr<DomainCore>& core, Users& domain, void* user_context);
  void progress();
  int wait(std::uint64_t threshold, int timeout);

  const std::shared_ptr<DomainCore> core_;
  const Use domain_;
  Users users_{0};
  const std::shared_ptr<Counter> counter_;
  Driven driven_;
};

}  // namespace fab::fi
