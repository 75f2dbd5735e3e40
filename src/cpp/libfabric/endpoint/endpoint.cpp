#include "libfabric/endpoint/endpoint.h"

#include <rdma/fi_atomic.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>
#include <rdma/fi_tagged.h>

#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "libfabric/domain/names.h"
#include "libfabric/plugin/boundary.h"
#include "libfabric/plugin/object.h"

namespace fab::fi {
namespace {

Endpoint& of(fid* known) noexcept { return object_of_fid<Endpoint, fid_ep>(known); }

std::shared_ptr<Counter> core_of(const Cntr* counter) { return counter ? counter->counter() : nullptr; }

// What connected endpoints would have.
struct NoConnections {
  static int setname(fid*, void*, std::size_t) { return -FI_ENOSYS; }
  static int getpeer(fid_ep*, void*, std::size_t*) { return -FI_ENOSYS; }
  static int connect(fid_ep*, const void*, const void*, std::size_t) { return -FI_ENOSYS; }
  static int listen(fid_pep*) { return -FI_ENOSYS; }
  static int accept(fid_ep*, const void*, std::size_t) { return -FI_ENOSYS; }
  static int reject(fid_pep*, fid*, const void*, std::size_t) { return -FI_ENOSYS; }
  static int shutdown(fid_ep*, std::uint64_t) { return -FI_ENOSYS; }
  static int join(fid_ep*, const void*, std::uint64_t, fid_mc**, void*) { return -FI_ENOSYS; }
};

}  // namespace

struct EndpointCalls {
  static int close(fid* known) {
    return boundary(FI_LOG_EP_CTRL, "fi_close", [&] { return of(known).close(); });
  }
  static int bind(fid* known, fid* other, std::uint64_t flags) {
    return boundary(FI_LOG_EP_CTRL, "fi_ep_bind", [&] { return of(known).bind(other, flags); });
  }
  static int control(fid* known, int command, void* argument) {
    return boundary(FI_LOG_EP_CTRL, "fi_control", [&] {
      Endpoint& endpoint = of(known);
      auto* const word = static_cast<std::uint64_t*>(argument);
      switch (command) {
        case FI_ENABLE:
          return endpoint.enable();
        case FI_ALIAS:
          return endpoint.alias(*static_cast<const struct fi_alias*>(argument));
        case FI_GETOPSFLAG:
          *word = *word & FI_TRANSMIT ? endpoint.send_flags_ : endpoint.receive_flags_;
          return 0;
        case FI_SETOPSFLAG:
          (*word & FI_TRANSMIT ? endpoint.send_flags_ : endpoint.receive_flags_) =
              *word & ~(FI_TRANSMIT | FI_RECV);
          return 0;
        default:
          return -FI_ENOSYS;
      }
    });
  }

  static ssize_t cancel(fid* known, void* context) {
    return boundary(FI_LOG_EP_DATA, "fi_cancel", [&] { return of(known).cancel(context); });
  }
  static int getopt(fid* known, int level, int option, void* value, std::size_t* length) {
    return level == FI_OPT_ENDPOINT ? of(known).get_option(option, value, *length) : -FI_ENOPROTOOPT;
  }
  static int setopt(fid* known, int level, int option, const void* value, std::size_t length) {
    return level == FI_OPT_ENDPOINT ? of(known).set_option(option, value, length) : -FI_ENOPROTOOPT;
  }
  static int tx_ctx(fid_ep*, int, fi_tx_attr*, fid_ep**, void*) { return -FI_ENOSYS; }
  static int rx_ctx(fid_ep*, int, fi_rx_attr*, fid_ep**, void*) { return -FI_ENOSYS; }
  static ssize_t size_left(fid_ep*) { return -FI_ENOSYS; }

  static int getname(fid* known, void* address, std::size_t* length) {
    return boundary(FI_LOG_EP_CTRL, "fi_getname", [&] { return of(known).name(address, *length); });
  }

  static fi_ops fid_calls;
  static fi_ops_ep calls;
  static fi_ops_cm connection_calls;
};

fi_ops EndpointCalls::fid_calls = fid_ops(close, bind, control);
fi_ops_ep EndpointCalls::calls = {.size = sizeof(fi_ops_ep),
                                  .cancel = cancel,
                                  .getopt = getopt,
                                  .setopt = setopt,
                                  .tx_ctx = tx_ctx,
                                  .rx_ctx = rx_ctx,
                                  .rx_size_left = size_left,
                                  .tx_size_left = size_left};
fi_ops_cm EndpointCalls::connection_calls = connection_calls_with(getname);

int Endpoint::open(fid_domain* domain, fi_info* info, fid_ep** out, void* user_context) {
  return boundary(FI_LOG_EP_CTRL, "fi_endpoint", [&] {
    check(info);
    *out = new Endpoint(object_of<Domain>(domain), traits_of(*info), user_context, {});
    return 0;
  });
}

void Endpoint::check(const fi_info* info) {
  if (!info || !info->ep_attr || info->ep_attr->type != FI_EP_RDM)
    throw Error(Errc::not_supported_here, "endpoints are reliable datagrams (FI_EP_RDM)");
  if (info->ep_attr->auth_key_size != 0)
    throw Error(Errc::not_supported_here,
                "an endpoint has the domain's authorization key: give fi_domain_attr::auth_key");
}

Endpoint::Traits Endpoint::traits_of(const fi_info& info) noexcept {
  return {.directed = (info.caps & FI_DIRECTED_RECV) != 0,
          .send_flags = info.tx_attr ? info.tx_attr->op_flags : 0,
          .receive_flags = info.rx_attr ? info.rx_attr->op_flags : 0};
}

Endpoint::Endpoint(Domain& domain, const Traits& traits, void* user_context, const Place& place)
    : fid_ep{},
      domain_(domain),
      domain_use_(domain.users()),
      place_(place),
      whole_use_(place.users ? Use(*place.users) : Use()),
      directed_(traits.directed),
      send_flags_(traits.send_flags),
      receive_flags_(traits.receive_flags),
      pool_(std::make_shared<OpPool>()) {
  fid = {.fclass = place.kind, .context = user_context, .ops = &EndpointCalls::fid_calls};
  ops = &EndpointCalls::calls;
  cm = &EndpointCalls::connection_calls;
  msg = &message_calls();
  rma = &rma_calls();
  tagged = &tagged_calls();
  atomic = &atomic_calls();
}

Endpoint::Endpoint(Endpoint& original, std::uint64_t flags)
    : fid_ep(original),
      domain_(original.domain_),
      domain_use_(domain_.users()),
      place_(
          {.whole = nullptr, .users = nullptr, .index = original.place_.index, .kind = original.place_.kind}),
      whole_use_(original.aliases_),
      alias_(true),
      directed_(original.directed_),
      send_flags_(flags & FI_TRANSMIT ? flags & ~FI_TRANSMIT : original.send_flags_),
      receive_flags_(flags & FI_RECV ? flags & ~FI_RECV : original.receive_flags_),
      least_room_(original.least_room_),
      av_(original.av_),
      transmits_(original.transmits_),
      receives_(original.receives_),
      counters_(original.counters_),
      pool_(original.pool_),
      context_(original.context_),
      begun_(true) {}

int Endpoint::alias(const struct fi_alias& asked) {
  if (!enabled() || alias_) return -FI_EOPBADSTATE;
  const std::uint64_t direction = asked.flags & (FI_TRANSMIT | FI_RECV);
  if (direction != FI_TRANSMIT && direction != FI_RECV)
    throw Error(Errc::bad_flags, "the flags of an alias are for FI_TRANSMIT or for FI_RECV");
  *asked.fid = &(new Endpoint(*this, asked.flags))->fid;
  return 0;
}

fi_ops_cm connection_calls_with(int (*getname)(fid*, void*, std::size_t*)) noexcept {
  return {.size = sizeof(fi_ops_cm),
          .setname = NoConnections::setname,
          .getname = getname,
          .getpeer = NoConnections::getpeer,
          .connect = NoConnections::connect,
          .listen = NoConnections::listen,
          .accept = NoConnections::accept,
          .reject = NoConnections::reject,
          .shutdown = NoConnections::shutdown,
          .join = NoConnections::join};
}

// --- binding

void Endpoint::bind_queue(Cq& cq, std::uint64_t flags) {
  if (flags & ~(FI_TRANSMIT | FI_RECV | FI_SELECTIVE_COMPLETION))
    throw Error(Errc::bad_flags, "a completion queue is bound with FI_TRANSMIT, FI_RECV, or both");
  const QueueBinding binding{&cq, (flags & FI_SELECTIVE_COMPLETION) != 0};
  if (flags & FI_TRANSMIT) transmits_ = binding;
  if (flags & FI_RECV) receives_ = binding;
  uses_.emplace_back(cq.users());
}

void Endpoint::bind_counter(Cntr& counter, std::uint64_t flags) {
  if (flags & ~(FI_SEND | FI_RECV | FI_READ | FI_WRITE | FI_REMOTE_READ | FI_REMOTE_WRITE))
    throw Error(Errc::bad_flags,
                "a counter of an endpoint counts FI_SEND, FI_RECV, FI_READ, FI_WRITE, FI_REMOTE_READ and "
                "FI_REMOTE_WRITE");
  if (flags & FI_SEND) counters_.send = &counter;
  if (flags & FI_RECV) counters_.receive = &counter;
  if (flags & FI_READ) counters_.read = &counter;
  if (flags & FI_WRITE) counters_.write = &counter;
  if (flags & FI_REMOTE_READ) counters_.remote_read = &counter;
  if (flags & FI_REMOTE_WRITE) counters_.remote_write = &counter;
  uses_.emplace_back(counter.users());
}

int Endpoint::bind(::fid* other, std::uint64_t flags) {
  if (enabled()) return -FI_EOPBADSTATE;
  switch (other->fclass) {
    case FI_CLASS_CQ:
      bind_queue(object_of_fid<Cq, fid_cq>(other), flags);
      return 0;
    case FI_CLASS_CNTR:
      bind_counter(object_of_fid<Cntr, fid_cntr>(other), flags);
      return 0;
    case FI_CLASS_AV:
      if (av_ || place_.whole) return -FI_EINVAL;
      av_ = &object_of_fid<Av, fid_av>(other);
      uses_.emplace_back(av_->users());
      return 0;
    case FI_CLASS_EQ:  // such endpoints tell no events
      uses_.emplace_back(object_of_fid<Eq, fid_eq>(other).users());
      return 0;
    default:
      return -FI_EINVAL;
  }
}

// Calls visit(driven) for each queue and counter that is bound, some twice.
template <class Visit>
void Endpoint::visit_driven(const Visit& visit) {
  for (const QueueBinding& binding : {transmits_, receives_})
    if (binding.cq) visit(binding.cq->driven());
  for (Cntr* const counter : {counters_.send, counters_.receive, counters_.read, counters_.write,
                              counters_.remote_read, counters_.remote_write})
    if (counter) visit(counter->driven());
}

int Endpoint::enable() {
  if (enabled()) return -FI_EOPBADSTATE;
  if (!place_.whole && !av_) return -FI_ENOAV;
  if (!transmits_.cq && !receives_.cq && !counters_.send && !counters_.write && !counters_.receive)
    return -FI_ENOCQ;
  if (place_.whole) return place_.whole->enable_part(*this);
  DomainCore& core = *domain_.core();
  auto context = open_context(core, core.contexts().next_endpoint_number(), 0, *av_, this);
  try {
    if (domain_.format() == AddressFormat::bundle)
      shown_ = domain_.show_on_node(name_of(*context, domain_.format(), {}));
  } catch (...) {
    core.contexts().close(*context);
    throw;
  }
  begin(std::move(context));
  return 0;
}

std::shared_ptr<Context> Endpoint::open_context(DomainCore& core, std::uint32_t number, std::uint16_t index,
                                                const Av& av, const Endpoint* receiver) {
  const QueueBinding told = receiver ? receiver->receives_ : QueueBinding{};
  const CounterBindings counters = receiver ? receiver->counters_ : CounterBindings{};
  // Here peers leave remote data. Without a queue for what is received, the program asked for none.
  auto arrivals =
      told.cq ? told.cq->queue() : core.open_completion_queue(1, CompletionQueue::WhenFull::forget_oldest);
  return core.open_context(index,
                           {.number = number,
                            .rx_bits = av.peers()->options().rx_bits,
                            .directed_receive = receiver && receiver->directed_,
                            .remote_writes = core_of(counters.remote_write),
                            .remote_reads = core_of(counters.remote_read)},
                           av.peers(), std::move(arrivals));
}

void Endpoint::begin(std::shared_ptr<Context> context) {
  visit_driven([&](Driven& driven) { driven.add(context, pool_); });
  context_ = std::move(context);
  begun_.store(true, std::memory_order_release);
}

int Endpoint::close() {
  if (in_use(aliases_)) return -FI_EBUSY;
  domain_.triggers().forget(this);
  if (alias_) {
    delete this;
    return 0;
  }
  pool_->close();
  if (place_.whole)
    place_.whole->close_part(*this);
  else if (context_)
    domain_.core()->contexts().close(*context_);
  if (context_) visit_driven([&](Driven& driven) { driven.remove(*context_); });
  delete this;
  return 0;
}

int Endpoint::name(void* address, std::size_t& length) const {
  if (!enabled()) return -FI_EOPBADSTATE;
  return copy_bytes(name_of(*context_, domain_.format(), domain_.source()), address, length);
}

int Endpoint::get_option(int option, void* value, std::size_t& length) const {
  if (option != FI_OPT_MIN_MULTI_RECV) return -FI_ENOPROTOOPT;
  if (length < sizeof least_room_) return -FI_ETOOSMALL;
  std::memcpy(value, &least_room_, sizeof least_room_);
  length = sizeof least_room_;
  return 0;
}

int Endpoint::set_option(int option, const void* value, std::size_t length) {
  if (option != FI_OPT_MIN_MULTI_RECV) return -FI_ENOPROTOOPT;
  if (length != sizeof least_room_) return -FI_EINVAL;
  std::memcpy(&least_room_, value, length);
  return 0;
}

}  // namespace fab::fi
