#include "libfabric/info.h"

#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>
#include <string_view>

#include "libfabric/domain/node_name.h"
#include "libfabric/queues/operation.h"

namespace fab::fi {
namespace {

constexpr std::size_t kSpareRoom = 256;
constexpr std::size_t kQueueSize = 1024, kMostReceives = 16384;

constexpr std::uint64_t kPrimary = FI_MSG | FI_TAGGED | FI_RMA | FI_ATOMIC;
constexpr std::uint64_t kRmaModifiers = FI_READ | FI_WRITE | FI_REMOTE_READ | FI_REMOTE_WRITE;
constexpr std::uint64_t kMessageModifiers = FI_SEND | FI_RECV;
constexpr std::uint64_t kReach = FI_LOCAL_COMM | FI_REMOTE_COMM;
constexpr std::uint64_t kSecondary =
    FI_MULTI_RECV | FI_SOURCE | FI_DIRECTED_RECV | FI_RMA_EVENT | FI_RMA_PMEM;
constexpr std::uint64_t kAll = kPrimary | kRmaModifiers | kMessageModifiers | kReach | kSecondary |
                               FI_NAMED_RX_CTX | FI_SHARED_AV | FI_TRIGGER;
constexpr std::uint64_t kTransmitCaps =
    kPrimary | FI_SEND | FI_READ | FI_WRITE | FI_NAMED_RX_CTX | FI_TRIGGER;
constexpr std::uint64_t kReceiveCaps = kPrimary | FI_RECV | FI_REMOTE_READ | FI_REMOTE_WRITE | kSecondary;
constexpr std::uint64_t kTransmitOpFlags = FI_COMPLETION | FI_INJECT | FI_INJECT_COMPLETE |
                                           FI_TRANSMIT_COMPLETE | FI_DELIVERY_COMPLETE | FI_COMMIT_COMPLETE;
constexpr std::uint64_t kReceiveOpFlags = FI_COMPLETION | FI_MULTI_RECV;
constexpr std::uint64_t kOrder = FI_ORDER_SAS;

template <class Part>
Part* new_part() {
  auto* const part = static_cast<Part*>(std::calloc(1, sizeof(Part) + kSpareRoom));
  if (!part) throw std::bad_alloc();
  return part;
}

char* new_text(const std::string& text) {
  char* const copy = ::strdup(text.c_str());
  if (!copy) throw std::bad_alloc();
  return copy;
}

InfoPtr new_info() {
  InfoPtr info(new_part<fi_info>());
  info->tx_attr = new_part<fi_tx_attr>();
  info->rx_attr = new_part<fi_rx_attr>();
  info->ep_attr = new_part<fi_ep_attr>();
  info->domain_attr = new_part<fi_domain_attr>();
  info->fabric_attr = new_part<fi_fabric_attr>();
  return info;
}

// The capabilities that a program gets: the primary ones that it asks for and no others, because programs
// answer to what they are offered.
std::uint64_t granted_caps(const fi_info* hints, std::uint64_t reach) noexcept {
  if (!hints || !hints->caps) return kAll & (~kReach | reach);
  std::uint64_t caps = hints->caps | reach;
  if ((caps & (FI_RMA | FI_ATOMIC)) && !(caps & kRmaModifiers)) caps |= kRmaModifiers;
  if ((caps & (FI_MSG | FI_TAGGED)) && !(caps & kMessageModifiers)) caps |= kMessageModifiers;
  return caps;
}

// The mode that makes as few demands on registered memory as the interface lets the provider make.
int granted_mr_mode(std::uint32_t version, const fi_info* hints) noexcept {
  const int asked = hints && hints->domain_attr ? hints->domain_attr->mr_mode : 0;
  if (asked == FI_MR_BASIC || asked == FI_MR_SCALABLE) return asked;
  return FI_VERSION_LT(version, FI_VERSION(1, 5)) ? FI_MR_SCALABLE : 0;
}

template <class Value>
Value or_default(Value asked, Value otherwise) noexcept {
  return asked ? asked : otherwise;
}

// Bits as the headers of libfabric write them.
std::string in_hex(std::uint64_t bits) {
  char text[24];
  std::snprintf(text, sizeof text, "0x%llx", static_cast<unsigned long long>(bits));
  return text;
}

// Compares hints with an offer, and notes the first thing that does not fit.
class Judge final {
 public:
  explicit Judge(std::string& why) noexcept : why_(why) {}
  bool fits() const noexcept { return fits_; }
  void subset(std::uint64_t asked, std::uint64_t offered, const char* what) {
    if (const std::uint64_t missing = asked & ~offered) refuse(what + (", without bits " + in_hex(missing)));
  }
  void at_most(std::size_t asked, std::size_t offered, const char* what) {
    if (asked > offered) refuse(what);
  }
  void equal(const char* asked, const std::string& offered, const char* what) {
    if (asked && *asked && offered != asked) refuse(what);
  }
  void require(bool holds, const char* what) {
    if (!holds) refuse(what);
  }

 private:
  void refuse(const std::string& what) {
    if (fits_) why_ = what;
    fits_ = false;
  }
  std::string& why_;
  bool fits_ = true;
};

void judge(Judge& judge, const fi_info& hints, const fi_info& offer) {
  judge.subset(hints.caps, offer.caps, "caps");
  const bool any_socket = hints.addr_format == FI_SOCKADDR && offer.addr_format != kAddressFormat;
  judge.require(hints.addr_format == FI_FORMAT_UNSPEC || hints.addr_format == offer.addr_format || any_socket,
                "addr_format");
  if (const fi_ep_attr* const ep = hints.ep_attr) {
    judge.require(ep->type == FI_EP_UNSPEC || ep->type == FI_EP_RDM, "ep_attr->type: FI_EP_RDM is offered");
    judge.require(ep->protocol == FI_PROTO_UNSPEC || ep->protocol == offer.ep_attr->protocol,
                  "ep_attr->protocol");
    judge.at_most(ep->max_msg_size, offer.ep_attr->max_msg_size, "ep_attr->max_msg_size");
    judge.at_most(ep->tx_ctx_cnt, kMostContexts, "ep_attr->tx_ctx_cnt: at most 16, and none that is shared");
    judge.at_most(ep->rx_ctx_cnt, kMostContexts, "ep_attr->rx_ctx_cnt: at most 16, and none that is shared");
    judge.require(ep->auth_key_size == 0, "ep_attr->auth_key: a domain has one, for all its endpoints");
    judge.at_most(ep->max_order_raw_size, 0, "ep_attr->max_order_raw_size");
    judge.at_most(ep->max_order_war_size, 0, "ep_attr->max_order_war_size");
    judge.at_most(ep->max_order_waw_size, 0, "ep_attr->max_order_waw_size");
  }
  if (const fi_domain_attr* const domain = hints.domain_attr) {
    judge.equal(domain->name, offer.domain_attr->name, "domain_attr->name");
    judge.at_most(domain->mr_key_size, offer.domain_attr->mr_key_size, "domain_attr->mr_key_size");
    judge.at_most(domain->cq_data_size, offer.domain_attr->cq_data_size, "domain_attr->cq_data_size");
    judge.at_most(domain->mr_iov_limit, offer.domain_attr->mr_iov_limit, "domain_attr->mr_iov_limit");
    judge.subset(domain->caps, offer.domain_attr->caps, "domain_attr->caps");
    judge.require(domain->auth_key_size == 0 || domain->auth_key,
                  "domain_attr->auth_key: the keys of an address vector are not offered");
  }
  if (const fi_tx_attr* const tx = hints.tx_attr) {
    judge.subset(tx->caps, offer.caps, "tx_attr->caps");
    judge.subset(tx->op_flags, kTransmitOpFlags, "tx_attr->op_flags");
    judge.subset(tx->msg_order, kOrder, "tx_attr->msg_order: FI_ORDER_SAS is offered");
    judge.subset(tx->comp_order, FI_ORDER_NONE, "tx_attr->comp_order");
    judge.at_most(tx->inject_size, kInjectBytes, "tx_attr->inject_size");
    judge.at_most(tx->size, kMostReceives, "tx_attr->size");
    judge.at_most(tx->iov_limit, kMaxPiecesOfCall, "tx_attr->iov_limit");
    judge.at_most(tx->rma_iov_limit, kMaxPiecesOfCall, "tx_attr->rma_iov_limit");
  }
  if (const fi_rx_attr* const rx = hints.rx_attr) {
    judge.subset(rx->caps, offer.caps, "rx_attr->caps");
    judge.subset(rx->op_flags, kReceiveOpFlags, "rx_attr->op_flags");
    judge.subset(rx->msg_order, kOrder, "rx_attr->msg_order: FI_ORDER_SAS is offered");
    judge.subset(rx->comp_order, FI_ORDER_NONE, "rx_attr->comp_order");
    judge.at_most(rx->size, kMostReceives, "rx_attr->size");
    judge.at_most(rx->iov_limit, kMaxPiecesOfCall, "rx_attr->iov_limit");
  }
  if (hints.fabric_attr) judge.equal(hints.fabric_attr->name, kFabricName, "fabric_attr->name");
}

void fill_contexts(fi_info& info, const fi_info* hints) {
  fi_tx_attr& tx = *info.tx_attr;
  tx.caps = info.caps & kTransmitCaps;
  tx.msg_order = kOrder;
  tx.inject_size = kInjectBytes;
  tx.size = kQueueSize;
  tx.iov_limit = tx.rma_iov_limit = kMaxPiecesOfCall;
  fi_rx_attr& rx = *info.rx_attr;
  rx.caps = info.caps & kReceiveCaps;
  rx.msg_order = kOrder;
  rx.size = kQueueSize;
  rx.iov_limit = kMaxPiecesOfCall;
  if (hints && hints->tx_attr) {
    tx.op_flags = hints->tx_attr->op_flags;
    tx.size = std::max(tx.size, hints->tx_attr->size);
  }
  if (hints && hints->rx_attr) {
    rx.op_flags = hints->rx_attr->op_flags;
    rx.size = std::max(rx.size, hints->rx_attr->size);
  }
}

void fill_endpoint(fi_ep_attr& ep, const Info& links, const fi_ep_attr* asked) {
  ep.type = FI_EP_RDM;
  ep.protocol = FI_PROV_SPECIFIC | 0x7066;
  ep.protocol_version = 1;
  ep.max_msg_size = std::min(links.max_msg_size, links.max_rma_size);
  ep.mem_tag_format = ~std::uint64_t{0} >> 1;
  ep.tx_ctx_cnt = asked ? or_default<std::size_t>(asked->tx_ctx_cnt, 1) : 1;
  ep.rx_ctx_cnt = asked ? or_default<std::size_t>(asked->rx_ctx_cnt, 1) : 1;
}

void fill_domain(fi_domain_attr& domain, const Info& links, std::uint64_t reach,
                 const fi_domain_attr* asked) {
  domain.name = new_text(domain_name(links));
  domain.threading = FI_THREAD_SAFE;
  domain.control_progress = domain.data_progress = FI_PROGRESS_AUTO;
  domain.resource_mgmt = FI_RM_ENABLED;
  domain.av_type = FI_AV_TABLE;
  domain.mr_key_size = links.mr_key_size;
  domain.cq_data_size = sizeof(std::uint64_t);
  domain.cq_cnt = domain.cntr_cnt = domain.mr_cnt = 1 << 16;
  domain.ep_cnt = domain.tx_ctx_cnt = domain.rx_ctx_cnt = links.max_contexts;
  domain.max_ep_tx_ctx = domain.max_ep_rx_ctx = kMostContexts;
  domain.mr_iov_limit = links.mr_iov_limit;
  domain.caps = reach;
  if (!asked) return;
  domain.threading = or_default(asked->threading, domain.threading);
  domain.control_progress = or_default(asked->control_progress, domain.control_progress);
  domain.data_progress = or_default(asked->data_progress, domain.data_progress);
  domain.resource_mgmt = or_default(asked->resource_mgmt, domain.resource_mgmt);
  domain.av_type = or_default(asked->av_type, domain.av_type);
  if (!asked->auth_key || asked->auth_key_size == 0) return;
  domain.auth_key = static_cast<std::uint8_t*>(std::malloc(asked->auth_key_size));
  if (!domain.auth_key) throw std::bad_alloc();
  domain.auth_key_size = asked->auth_key_size;
  std::memcpy(domain.auth_key, asked->auth_key, asked->auth_key_size);
}

void fill_address(void*& out, std::size_t& length, std::string_view address) {
  length = address.size();
  out = std::calloc(1, length);
  if (!out) throw std::bad_alloc();
  std::memcpy(out, address.data(), length);
}

void fill_address(void*& out, std::size_t& length, const SocketAddress& address) {
  fill_address(out, length, {reinterpret_cast<const char*>(address.get()), address.length()});
}

void fill_addresses(fi_info& info, const SocketWish& sockets) {
  info.addr_format = sockets.wanted() ? socket_format(sockets.format) : kAddressFormat;
  if (!sockets.wanted()) {
    std::string source = sockets.own_source, destination = sockets.own_destination;
    if (sockets.source && sockets.source->port()) source = place_on_node(sockets.source->port());
    if (sockets.destination) destination = place_on_node(sockets.destination->port());
    if (!source.empty()) fill_address(info.src_addr, info.src_addrlen, source);
    if (!destination.empty()) fill_address(info.dest_addr, info.dest_addrlen, destination);
    return;
  }
  const bool v6 = sockets.format == AddressFormat::sockaddr_in6;
  fill_address(info.src_addr, info.src_addrlen,
               sockets.source ? *sockets.source : source_towards(sockets.destination, v6));
  if (sockets.destination) fill_address(info.dest_addr, info.dest_addrlen, *sockets.destination);
}

}  // namespace

void FreeInfo::operator()(fi_info* info) const noexcept {
  std::free(info->src_addr);
  std::free(info->dest_addr);
  if (info->domain_attr) {
    std::free(info->domain_attr->name);
    std::free(info->domain_attr->auth_key);
  }
  if (info->fabric_attr) std::free(info->fabric_attr->name);
  for (void* const part : {static_cast<void*>(info->tx_attr), static_cast<void*>(info->rx_attr),
                           static_cast<void*>(info->ep_attr), static_cast<void*>(info->domain_attr),
                           static_cast<void*>(info->fabric_attr), static_cast<void*>(info)})
    std::free(part);
}

std::string domain_name(const Info& links) {
  std::string name;
  std::string_view last;  // the provider of the link before
  for (const std::string_view link : links.links) {
    const auto colon = link.find(':');
    const std::string_view provider = link.substr(0, colon);
    if (provider == last && colon != std::string_view::npos)
      name.append(",").append(link.substr(colon + 1));
    else
      name.append(name.empty() ? "" : "+").append(link);
    last = provider;
  }
  return name;
}

InfoPtr offer(const Info& links, std::uint32_t version, const fi_info* hints, const SocketWish& sockets,
              std::string& why) {
  const std::uint64_t reach = (links.caps & caps::kLocalComm ? FI_LOCAL_COMM : 0) |
                              (links.caps & caps::kRemoteComm ? FI_REMOTE_COMM : 0);
  InfoPtr info = new_info();
  info->caps = granted_caps(hints, reach) & (kAll & (~kReach | reach));
  fill_addresses(*info, sockets);
  fill_contexts(*info, hints);
  fill_endpoint(*info->ep_attr, links, hints ? hints->ep_attr : nullptr);
  fill_domain(*info->domain_attr, links, reach, hints ? hints->domain_attr : nullptr);
  info->domain_attr->mr_mode = granted_mr_mode(version, hints);
  info->fabric_attr->name = new_text(kFabricName);
  Judge judging(why);
  if (hints) judge(judging, *hints, *info);
  return judging.fits() ? std::move(info) : nullptr;
}

}  // namespace fab::fi
