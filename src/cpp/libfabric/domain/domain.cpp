#include "libfabric/domain/domain.h"

#include <rdma/fi_atomic.h>
#include <rdma/fi_errno.h>

#include <utility>

#include "fabric/memory/atomics.h"
#include "libfabric/domain/av.h"
#include "libfabric/domain/region.h"
#include "libfabric/plugin/boundary.h"
#include "libfabric/plugin/object.h"
#include "libfabric/plugin/settings.h"
#include "libfabric/plugin/socket_wish.h"
#include "libfabric/queues/counter.h"
#include "libfabric/queues/cq.h"

namespace fab::fi {
namespace {

Domain& self(fid_domain* domain) noexcept { return object_of<Domain>(domain); }

// Bits that libfabric and the core write alike. BASIC stands for three of them.
std::uint32_t core_mode(int mode) {
  constexpr std::uint32_t kBasicBits = mr_mode::kVirtAddr | mr_mode::kAllocated | mr_mode::kProvKey;
  constexpr std::uint32_t kKnown = mr_mode::kLocal | mr_mode::kRaw | mr_mode::kVirtAddr |
                                   mr_mode::kAllocated | mr_mode::kProvKey | mr_mode::kMmuNotify |
                                   mr_mode::kRmaEvent | mr_mode::kEndpoint;
  if (mode == FI_MR_BASIC) return kBasicBits;
  if (mode == FI_MR_SCALABLE) return 0;
  return static_cast<std::uint32_t>(mode) & kKnown;
}

// Where endpoints with socket addresses are to listen.
std::optional<SocketAddress> source_of(const fi_info& info) {
  if (format_of(info.addr_format) == AddressFormat::bundle || !info.src_addr) return std::nullopt;
  return SocketAddress(static_cast<const sockaddr*>(info.src_addr), static_cast<socklen_t>(info.src_addrlen));
}

std::uint16_t node_port_of(const fi_info& info) {
  const std::string_view place(static_cast<const char*>(info.src_addr), info.src_addr ? info.src_addrlen : 0);
  return format_of(info.addr_format) == AddressFormat::bundle && is_place(place) ? port_of_place(place) : 0;
}

bool atomic_exists(fi_datatype type, fi_op op) noexcept {
  if (type < 0 || type >= kDataTypes || op < 0 || op >= kAtomicOps) return false;
  return atomic_supported(static_cast<AtomicOp>(op), static_cast<DataType>(type));
}

}  // namespace

struct DomainCalls {
  static int av_open(fid_domain* domain, fi_av_attr* attr, fid_av** av, void* context) {
    return boundary(FI_LOG_AV, "fi_av_open", [&] {
      fi_av_attr none{};
      return Av::open(self(domain), attr ? *attr : none, context, av);
    });
  }
  static int cq_open(fid_domain* domain, fi_cq_attr* attr, fid_cq** cq, void* context) {
    return boundary(FI_LOG_CQ, "fi_cq_open", [&] {
      Domain& owner = self(domain);
      return Cq::open(owner.core(), owner.users(), attr ? *attr : fi_cq_attr{}, context, cq);
    });
  }
  static int endpoint(fid_domain* domain, fi_info* info, fid_ep** ep, void* context) {
    return self(domain).openers_.endpoint(domain, info, ep, context);
  }
  static int scalable_ep(fid_domain* domain, fi_info* info, fid_ep** ep, void* context) {
    return self(domain).openers_.scalable(domain, info, ep, context);
  }
  static int cntr_open(fid_domain* domain, fi_cntr_attr* attr, fid_cntr** counter, void* context) {
    return boundary(FI_LOG_CNTR, "fi_cntr_open", [&] {
      Domain& owner = self(domain);
      return Cntr::open(owner.core(), owner.users(), attr ? *attr : fi_cntr_attr{}, context, counter);
    });
  }
  static int query_atomic(fid_domain*, fi_datatype type, fi_op op, fi_atomic_attr* attr,
                          std::uint64_t flags) {
    if (!atomic_exists(type, op)) return -FI_EOPNOTSUPP;
    const auto atomic = static_cast<AtomicOp>(op);
    const bool compares = (flags & FI_COMPARE_ATOMIC) != 0, fetches = (flags & FI_FETCH_ATOMIC) != 0;
    if (compares != needs_compare(atomic)) return -FI_EOPNOTSUPP;
    if (!compares && !fetches && atomic == AtomicOp::atomic_read) return -FI_EOPNOTSUPP;
    attr->size = size_of(static_cast<DataType>(type));
    attr->count = kMaxAtomicBytes / attr->size;
    return 0;
  }

  static int poll_open(fid_domain*, fi_poll_attr*, fid_poll**) { return -FI_ENOSYS; }
  static int stx_ctx(fid_domain*, fi_tx_attr*, fid_stx**, void*) { return -FI_ENOSYS; }
  static int srx_ctx(fid_domain*, fi_rx_attr*, fid_ep**, void*) { return -FI_ENOSYS; }
  static int query_collective(fid_domain*, fi_collective_op, fi_collective_attr*, std::uint64_t) {
    return -FI_ENOSYS;
  }

  static int close(fid* known) {
    auto& domain = object_of_fid<Domain, fid_domain>(known);
    if (in_use(domain.users_)) return -FI_EBUSY;
    return boundary(FI_LOG_DOMAIN, "fi_close", [&] {
      domain.triggers_.end();
      domain.core_->close(false);
      delete &domain;
      return 0;
    });
  }
  static int bind(fid* known, fid* other, std::uint64_t flags) {
    auto& domain = object_of_fid<Domain, fid_domain>(known);
    const int done = domain.events_.bind(other);
    if (done == 0) domain.tells_regions_ = (flags & FI_REG_MR) != 0;
    return done;
  }

  static fi_ops fid_calls;
  static fi_ops_domain calls;
};

fi_ops DomainCalls::fid_calls = fid_ops(close, bind);
fi_ops_domain DomainCalls::calls = {.size = sizeof(fi_ops_domain),
                                    .av_open = av_open,
                                    .cq_open = cq_open,
                                    .endpoint = endpoint,
                                    .scalable_ep = scalable_ep,
                                    .cntr_open = cntr_open,
                                    .poll_open = poll_open,
                                    .stx_ctx = stx_ctx,
                                    .srx_ctx = srx_ctx,
                                    .query_atomic = query_atomic,
                                    .query_collective = query_collective,
                                    .endpoint2 = nullptr};

int Domain::open(Users& fabric, const fi_info& info, EndpointOpeners openers, void* user_context,
                 fid_domain** out) {
  Settings settings = settings_of_environment();
  const fi_domain_attr& attr = *info.domain_attr;
  settings.domain.mr_mode = core_mode(attr.mr_mode);
  settings.domain.manual_progress = attr.data_progress == FI_PROGRESS_MANUAL;
  if (attr.auth_key_size)
    settings.domain.auth_key.assign(reinterpret_cast<const char*>(attr.auth_key), attr.auth_key_size);
  // What the program says of where to listen counts more than the settings do.
  if (const auto source = source_of(info); source && (source->port() != 0 || !source->wildcard()))
    settings.domain.settings["tcp_listen"] = source->port() != 0 ? source->text() : source->host();
  auto core = open_domain(attr.name, std::move(settings.domain), std::move(settings.rails));
  *out = new Domain(fabric, std::move(core), info, openers, user_context);
  return 0;
}

Domain::Domain(Users& fabric, std::shared_ptr<DomainCore> core, const fi_info& info, EndpointOpeners openers,
               void* user_context)
    : fid_domain{},
      fabric_(fabric),
      core_(std::move(core)),
      links_(info.domain_attr->name),
      format_(format_of(info.addr_format)),
      source_(source_of(info)),
      openers_(openers),
      node_port_(node_port_of(info)),
      triggers_(core_) {
  fid = {.fclass = FI_CLASS_DOMAIN, .context = user_context, .ops = &DomainCalls::fid_calls};
  ops = &DomainCalls::calls;
  mr = &region_calls();
}

NodeName Domain::show_on_node(std::string_view name) {
  if (node_port_.load(std::memory_order_relaxed) == 0) return {};
  return {node_port_.fetch_add(1, std::memory_order_relaxed), name};
}

}  // namespace fab::fi
