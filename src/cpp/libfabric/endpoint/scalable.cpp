#include "libfabric/endpoint/scalable.h"

#include <rdma/fi_cm.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>

#include <algorithm>
#include <string>
#include <utility>

#include "libfabric/domain/names.h"
#include "libfabric/plugin/boundary.h"
#include "libfabric/plugin/object.h"

namespace fab::fi {
namespace {

ScalableEndpoint& whole_of(fid* known) noexcept { return object_of_fid<ScalableEndpoint, fid_ep>(known); }

}  // namespace

struct ScalableCalls {
  static int close(fid* known) {
    ScalableEndpoint& whole = whole_of(known);
    if (in_use(whole.users_)) return -FI_EBUSY;
    delete &whole;
    return 0;
  }
  static int bind(fid* known, fid* other, std::uint64_t) {
    return boundary(FI_LOG_EP_CTRL, "fi_scalable_ep_bind", [&] { return whole_of(known).bind(other); });
  }
  static int control(fid* known, int command, void*) {
    return boundary(FI_LOG_EP_CTRL, "fi_control",
                    [&] { return command == FI_ENABLE ? whole_of(known).enable() : -FI_ENOSYS; });
  }
  static int tx_ctx(fid_ep* ep, int index, fi_tx_attr* attr, fid_ep** out, void* context) {
    return boundary(FI_LOG_EP_CTRL, "fi_tx_context", [&] {
      auto& whole = object_of<ScalableEndpoint>(ep);
      const std::uint64_t flags = attr ? attr->op_flags : whole.traits_.send_flags;
      return whole.open_side(ScalableEndpoint::kTransmits, index, flags, out, context);
    });
  }
  static int rx_ctx(fid_ep* ep, int index, fi_rx_attr* attr, fid_ep** out, void* context) {
    return boundary(FI_LOG_EP_CTRL, "fi_rx_context", [&] {
      auto& whole = object_of<ScalableEndpoint>(ep);
      const std::uint64_t flags = attr ? attr->op_flags : whole.traits_.receive_flags;
      return whole.open_side(ScalableEndpoint::kReceives, index, flags, out, context);
    });
  }
  static ssize_t cancel(fid*, void*) { return -FI_ENOSYS; }
  static int getopt(fid*, int, int, void*, std::size_t*) { return -FI_ENOPROTOOPT; }
  static int setopt(fid*, int, int, const void*, std::size_t) { return -FI_ENOPROTOOPT; }
  static ssize_t size_left(fid_ep*) { return -FI_ENOSYS; }

  static int getname(fid* known, void* address, std::size_t* length) {
    return boundary(FI_LOG_EP_CTRL, "fi_getname", [&] { return whole_of(known).name(address, *length); });
  }

  static fi_ops fid_calls;
  static fi_ops_ep calls;
  static fi_ops_cm connection_calls;
};

fi_ops ScalableCalls::fid_calls = fid_ops(close, bind, control);
fi_ops_ep ScalableCalls::calls = {.size = sizeof(fi_ops_ep),
                                  .cancel = cancel,
                                  .getopt = getopt,
                                  .setopt = setopt,
                                  .tx_ctx = tx_ctx,
                                  .rx_ctx = rx_ctx,
                                  .rx_size_left = size_left,
                                  .tx_size_left = size_left};
fi_ops_cm ScalableCalls::connection_calls = connection_calls_with(getname);

int ScalableEndpoint::open(fid_domain* domain, fi_info* info, fid_ep** out, void* user_context) {
  return boundary(FI_LOG_EP_CTRL, "fi_scalable_ep", [&] {
    Endpoint::check(info);
    for (const std::size_t count : {info->ep_attr->tx_ctx_cnt, info->ep_attr->rx_ctx_cnt})
      if (count > kMostContexts)
        throw Error(Errc::invalid, std::to_string(count) + " contexts of one endpoint; max_ep_tx_ctx is " +
                                       std::to_string(kMostContexts));
    *out = new ScalableEndpoint(object_of<Domain>(domain), *info, user_context);
    return 0;
  });
}

ScalableEndpoint::ScalableEndpoint(Domain& domain, const fi_info& info, void* user_context)
    : fid_ep{},
      domain_(domain),
      domain_use_(domain.users()),
      traits_(Endpoint::traits_of(info)),
      counts_({std::max<std::size_t>(info.ep_attr->tx_ctx_cnt, 1),
               std::max<std::size_t>(info.ep_attr->rx_ctx_cnt, 1)}),
      number_(domain.core()->contexts().next_endpoint_number()),
      pairs_(std::max(counts_[kTransmits], counts_[kReceives])) {
  fid = {.fclass = FI_CLASS_SEP, .context = user_context, .ops = &ScalableCalls::fid_calls};
  ops = &ScalableCalls::calls;
  cm = &ScalableCalls::connection_calls;
}

int ScalableEndpoint::open_side(Side side, int index, std::uint64_t flags, fid_ep** out, void* user_context) {
  if (index < 0 || std::cmp_greater_equal(index, counts_[side]))
    throw Error(Errc::invalid, "context " + std::to_string(index) + " of an endpoint that was opened with " +
                                   std::to_string(counts_[side]));
  const LockGuard lock(mutex_);
  Pair& pair = pairs_[static_cast<std::size_t>(index)];
  // What a context receives is told where its receiving side says, from its beginning on.
  if (pair.sides[side] || pair.ended || (pair.context && side == kReceives)) return -FI_EBUSY;
  Endpoint::Traits traits = traits_;
  (side == kTransmits ? traits.send_flags : traits.receive_flags) = flags;
  auto* const opened = new Endpoint(domain_, traits, user_context,
                                    {.whole = this,
                                     .users = &users_,
                                     .index = static_cast<std::uint16_t>(index),
                                     .kind = side == kTransmits ? FI_CLASS_TX_CTX : FI_CLASS_RX_CTX});
  pair.sides[side] = opened;
  *out = opened;
  return 0;
}

int ScalableEndpoint::bind(::fid* other) {
  if (enabled_) return -FI_EOPBADSTATE;
  switch (other->fclass) {
    case FI_CLASS_AV:
      if (av_) return -FI_EINVAL;
      av_ = &object_of_fid<Av, fid_av>(other);
      av_use_ = Use(av_->users());
      return 0;
    case FI_CLASS_EQ:  // such endpoints tell no events
      queues_.emplace_back(object_of_fid<Eq, fid_eq>(other).users());
      return 0;
    default:
      return -FI_EINVAL;
  }
}

int ScalableEndpoint::enable() {
  if (enabled_) return -FI_EOPBADSTATE;
  if (!av_) return -FI_ENOAV;
  const LockGuard lock(mutex_);
  enabled_ = true;
  for (std::size_t index = 0; index < pairs_.size(); ++index) begin(index);
  return 0;
}

// Begins a context for which everything is there, or lets a side that comes later take part in it.
void ScalableEndpoint::begin(std::size_t index, bool late) {
  Pair& pair = pairs_[index];
  if (!late && !pair.sides[kReceives] && index < counts_[kReceives]) return;  // it is to come
  const auto waits_for = [&](Side side) { return pair.sides[side] && !pair.enabled[side]; };
  const bool any = pair.sides[kTransmits] || pair.sides[kReceives];
  if (!enabled_ || pair.ended || !any || waits_for(kTransmits) || waits_for(kReceives)) return;
  if (!pair.context)
    pair.context = Endpoint::open_context(*domain_.core(), number_, static_cast<std::uint16_t>(index), *av_,
                                          pair.sides[kReceives]);
  for (Endpoint* const side : pair.sides)
    if (side && !side->enabled()) side->begin(pair.context);
  if (domain_.format() == AddressFormat::bundle && begun() && !std::exchange(is_shown_, true))
    shown_ = domain_.show_on_node(own_name());
}

ScalableEndpoint::Side ScalableEndpoint::side_of(const Endpoint& part) noexcept {
  return part.fid.fclass == FI_CLASS_TX_CTX ? kTransmits : kReceives;
}

int ScalableEndpoint::enable_part(Endpoint& part) {
  Pair& pair = pairs_[part.index()];
  const Side side = side_of(part);
  if (pair.enabled[side]) return -FI_EOPBADSTATE;
  const LockGuard lock(mutex_);
  pair.enabled[side] = true;
  begin(part.index());
  return 0;
}

void ScalableEndpoint::begin_late(Endpoint& part) {
  const LockGuard lock(mutex_);
  if (pairs_[part.index()].enabled[side_of(part)]) begin(part.index(), true);
}

void ScalableEndpoint::close_part(Endpoint& part) noexcept {
  const LockGuard lock(mutex_);
  Pair& pair = pairs_[part.index()];
  pair.sides[side_of(part)] = nullptr;
  if (pair.context && !pair.ended) domain_.core()->contexts().close(*pair.context);
  pair.ended = pair.ended || pair.context;
}

int ScalableEndpoint::name(void* address, std::size_t& length) {
  {
    const LockGuard lock(mutex_);
    for (std::size_t index = 0; index < pairs_.size(); ++index) begin(index, true);
  }
  if (!begun()) return -FI_EOPBADSTATE;
  const bool by_socket = domain_.format() != AddressFormat::bundle;
  return copy_bytes(by_socket ? socket_name() : own_name(), address, length);
}

bool ScalableEndpoint::begun() const noexcept {
  return std::ranges::all_of(pairs_, [](const Pair& pair) { return pair.context != nullptr; });
}

std::string ScalableEndpoint::own_name() const {
  Name name;
  for (const Pair& pair : pairs_)
    for (Part& part : pair.context->parts()) name.parts.push_back(std::move(part));
  return to_wire(name);
}

// Whoever has the address of the first context looks for the others at the ports behind it.
std::string ScalableEndpoint::socket_name() const {
  const auto at = [&](const Pair& pair) {
    return name_of(*pair.context, domain_.format(), domain_.source());
  };
  const std::string first = at(pairs_.front());
  const auto begin = unpack(first);
  for (std::size_t i = 1; i < pairs_.size(); ++i)
    if (const auto expected = begin ? advance(*begin, 0, i) : begin;
        !expected || pack(*expected) != at(pairs_[i]))
      throw Error(
          Errc::no_data,
          "an endpoint with several contexts has one socket address if its contexts listen on ports in a "
          "row: choose the first one, by fi_getinfo() with FI_SOURCE and a service");
  return first;
}

}  // namespace fab::fi
