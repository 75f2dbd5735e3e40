#pragma once

#include <rdma/fabric.h>
#include <rdma/fi_domain.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "fabric/address_vector/socket_name.h"
#include "fabric/domain/domain_core.h"
#include "libfabric/domain/node_name.h"
#include "libfabric/plugin/uses.h"
#include "libfabric/queues/eq.h"
#include "libfabric/queues/triggers.h"

namespace fab::fi {

// What opens endpoints, of one context each or of several: the room that has endpoints comes after this one.
using EndpointOpener = int (*)(fid_domain* domain, fi_info* info, fid_ep** out, void* context);
struct EndpointOpeners {
  EndpointOpener endpoint, scalable;
};

// A domain (fi_domain(3)) over one of the core. Safe from any thread.
class Domain final : public fid_domain {
 public:
  // The links of the core's domain are the name of `info`'s; `fabric` counts the users of this one.
  static int open(Users& fabric, const fi_info& info, EndpointOpeners openers, void* user_context,
                  fid_domain** out);

  const std::shared_ptr<DomainCore>& core() const noexcept { return core_; }
  Users& users() noexcept { return users_; }
  Triggers& triggers() noexcept { return triggers_; }
  // Null: registrations tell no queue.
  Eq* events() const noexcept { return tells_regions_ ? events_.get() : nullptr; }
  const std::string& links() const noexcept { return links_; }
  // How addresses look, and where endpoints listen that have socket addresses.
  AddressFormat format() const noexcept { return format_; }
  const std::optional<SocketAddress>& source() const noexcept { return source_; }
  // Shows the name of an endpoint at the port that the program gave with a node; each further one of the
  // domain at the next port.
  NodeName show_on_node(std::string_view name);

 private:
  friend struct DomainCalls;
  Domain(Users& fabric, std::shared_ptr<DomainCore> core, const fi_info& info, EndpointOpeners openers,
         void* user_context);

  const Use fabric_;
  const std::shared_ptr<DomainCore> core_;
  const std::string links_;
  const AddressFormat format_;
  const std::optional<SocketAddress> source_;
  const EndpointOpeners openers_;
  std::atomic<std::uint16_t> node_port_;  // 0: none was given
  Users users_{0};
  BoundEq events_;
  std::atomic<bool> tells_regions_{false};
  Triggers triggers_;
};

}  // namespace fab::fi
