#pragma once

#include <rdma/fi_domain.h>

#include <memory>
#include <span>

#include "base/memory/mapping.h"
#include "fabric/address_vector/address_vector.h"
#include "libfabric/domain/domain.h"

namespace fab::fi {

// An address vector (fi_av(3)). Maps and tables are the same: an fi_addr_t is the index of a peer. Safe from
// any thread.
class Av final : public fid_av {
 public:
  // Fills in where the handles of a shared vector stand (fi_av_attr::map_addr).
  static int open(Domain& domain, fi_av_attr& attr, void* user_context, fid_av** out);

  const std::shared_ptr<AddressVector>& peers() const noexcept { return peers_; }
  AddressFormat format() const noexcept { return peers_->options().format; }
  Users& users() noexcept { return users_; }

 private:
  friend struct AvCalls;
  Av(Domain& domain, std::shared_ptr<AddressVector> peers, Mapping handles, bool tells, void* user_context);
  int insert(const void* addresses, std::size_t count, fi_addr_t* handles, std::uint64_t flags,
             void* user_context);
  int remove(const fi_addr_t* handles, std::size_t count);
  int lookup(fi_addr_t handle, void* address, std::size_t& length) const;
  void tell(std::size_t inserted, std::span<const int> errors, void* user_context);

  const Use domain_;
  const std::shared_ptr<AddressVector> peers_;
  const Mapping handles_;  // of a shared vector
  const bool tells_;       // insertions tell the queue of their end (FI_EVENT)
  Users users_{0};
  BoundEq events_;
};

}  // namespace fab::fi
