#include "providers/verbs/connection/connection.h"

#include <algorithm>
#include <cerrno>
#include <new>

#include "providers/verbs/connection/shared_receives.h"

namespace fab::verbs {
namespace {

constexpr int kResolveMs = 2000;
// Retries when the peer has no receive posted. Credits see to it that a stream needs none.
constexpr std::uint8_t kNotReadyRetries = 6;
// The value that means retrying without end, for peers that share receives. Deadlines end a stream then.
constexpr std::uint8_t kRetryForEver = 7;
constexpr std::uint8_t kNotReadyTimer = 12;  // 0.64 ms; the default of rdma_cm is 655 ms

// Why a call was refused. Of refusals without our private data, some say that nobody listens there
// (IB_CM_REJ_INVALID_SERVICE_ID; of iWARP ECONNREFUSED). The others come from a kernel that keeps no more
// calls, or whose process let go of the call.
Errc refusal_of(int status, std::string_view said) noexcept {
  constexpr int kNobodyListens = 8;
  if (const auto told = Refusal::decode(said)) {
    if (told->why == Refusal::Why::busy) return Errc::busy;
    return told->why == Refusal::Why::never ? Errc::closed : Errc::unreachable;
  }
  return status == kNobodyListens || status == -ECONNREFUSED ? Errc::unreachable : Errc::again;
}

}  // namespace

Connection::Connection(const Services& services, ConnectionOwner& owner, const Depth& depth)
    : services_(services),
      owner_(owner),
      depth_(depth),
      end_(std::make_unique<QueuePairEnd>(services.device_events, services.completions, owner)),
      work_number_(services.completions.owners().add(owner)) {}

Connection::~Connection() {
  services_.completions.owners().remove(work_number_);
  if (id_) {
    id_->context = nullptr;
    if (Exchange* const exchange = Exchange::of(*id_))
      exchange->disconnect();
    else if (connected_)
      library().disconnect(id_.get());
    const bool shares = depth_.shared_receives && id_->qp;
    if (shares) depth_.shared_receives->leave(id_->qp->qp_num);
    end_->take(std::move(id_));
    if (shares) services_.queue_pair_ends.add(std::move(end_));
  }
}

bool Connection::call(const Route& route, const PrivateData& data) noexcept try {
  data.encode(private_data_);
  if (route.by_exchange) {
    if (!services_.exchanges) return false;
    id_.reset(new Exchange(*services_.exchanges, route.to, {private_data_, PrivateData::kBytes}));
    id_->context = this;
    calling_ = true;
    services_.to_connect.push_back(*this);
    services_.calls_wait();
    return true;
  }
  rdma_cm_id* made = nullptr;
  if (library().create_id(&services_.events, &made, this, RDMA_PS_TCP) != 0) return false;
  id_.reset(made);
  calling_ = true;
  set_options(*made);
  const SocketAddress any_port = route.from.with_port(0);
  return library().resolve_addr(made, const_cast<sockaddr*>(any_port.get()),
                                const_cast<sockaddr*>(route.to.get()), kResolveMs) == 0;
} catch (const std::bad_alloc&) {
  return false;
}

// A kernel that does not know an option refuses it, and does what it does for everybody.
void Connection::set_options(rdma_cm_id& id) const noexcept {
  std::uint8_t timeout = services_.transport.ack_timeout;
  library().set_option(&id, RDMA_OPTION_ID, RDMA_OPTION_ID_ACK_TIMEOUT, &timeout, sizeof timeout);
  if (auto traffic = services_.transport.traffic_class)
    library().set_option(&id, RDMA_OPTION_ID, RDMA_OPTION_ID_TOS, &*traffic, sizeof *traffic);
}

bool Connection::create_queue_pair(ibv_qp_init_attr& wanted) noexcept {
  if (Exchange* const exchange = Exchange::of(*id_))
    return exchange->make_queue_pair(depth_.protection_domain, wanted, depth_.reached);
  return library().create_qp(id_.get(), &depth_.protection_domain, &wanted) == 0;
}

bool Connection::make_queue_pair() noexcept {
  const std::uint32_t receives = depth_.shared_receives ? 0 : depth_.receives;
  const std::uint32_t room = depth_.sends + receives;
  if (id_->verbs != depth_.protection_domain.context) return false;
  ibv_cq* const completions = end_->take_room(room);
  if (!completions) return false;
  // Devices differ in how many bytes they send inline, and none tells its limit. So half as many are asked
  // for until the device agrees.
  for (std::uint32_t bytes = depth_.inline_bytes;; bytes /= 2) {
    ibv_qp_init_attr wanted{};
    wanted.send_cq = wanted.recv_cq = completions;
    wanted.srq = depth_.shared_receives ? &depth_.shared_receives->queue() : nullptr;
    wanted.qp_type = IBV_QPT_RC;
    wanted.cap = {.max_send_wr = depth_.sends,
                  .max_recv_wr = std::max(1u, receives),
                  .max_send_sge = 1,
                  .max_recv_sge = 1,
                  .max_inline_data = bytes};
    if (create_queue_pair(wanted)) {
      inline_bytes_ = bytes;
      break;
    }
    if (bytes == 0) return false;
  }
  if (!end_->watch(*id_->qp)) return false;
  if (depth_.shared_receives && !depth_.shared_receives->join(id_->qp->qp_num, owner_)) return false;
  return owner_.on_made();
}

bool Connection::begin_connect() noexcept {
  rdma_conn_param wanted{};
  wanted.private_data = private_data_;
  wanted.private_data_len = PrivateData::kBytes;
  wanted.responder_resources = services_.device.reads_served();
  wanted.initiator_depth = services_.device.reads_begun();
  wanted.retry_count = services_.transport.retries;
  wanted.rnr_retry_count = depth_.shared_receives ? kRetryForEver : kNotReadyRetries;
  if (Exchange* const exchange = Exchange::of(*id_)) return exchange->connect(wanted);
  return library().connect(id_.get(), &wanted) == 0;
}

bool Connection::answer(OwnId id, const rdma_conn_param& asked) noexcept {
  id_ = std::move(id);
  id_->context = this;
  // A caller by exchange is known to have gone. A queue pair takes long.
  if (const Exchange* const exchange = Exchange::of(*id_); exchange && !exchange->waits()) return false;
  if (make_queue_pair() && accept(asked)) return true;
  refuse(*id_, Refusal::Why::failed);
  return false;
}

void Connection::refuse(rdma_cm_id& id, Refusal::Why why) noexcept {
  char said[Refusal::kBytes];
  Refusal{why}.encode(said);
  if (Exchange* const exchange = Exchange::of(id)) return exchange->reject({said, sizeof said});
  library().reject(&id, said, sizeof said);
}

bool Connection::accept(const rdma_conn_param& asked) noexcept {
  rdma_conn_param given{};
  // The event tells both numbers from this side's point of view (rdma_get_cm_event(3)).
  given.responder_resources = std::min(asked.responder_resources, services_.device.reads_served());
  given.initiator_depth = std::min(asked.initiator_depth, services_.device.reads_begun());
  given.retry_count = services_.transport.retries;
  given.rnr_retry_count = depth_.shared_receives ? kRetryForEver : kNotReadyRetries;
  if (Exchange* const exchange = Exchange::of(*id_)) {
    if (!exchange->accept(given)) return false;
    establish();
    return true;
  }
  set_options(*id_);
  return library().accept(id_.get(), &given) == 0;
}

void Connection::establish() noexcept {
  connected_ = true;
  if (depth_.shared_receives) {
    ibv_qp_attr timer{};
    timer.min_rnr_timer = kNotReadyTimer;
    library().modify_qp(id_->qp, &timer, IBV_QP_MIN_RNR_TIMER);
  }
  owner_.on_connected();
}

void Connection::go_on() noexcept {
  if (!make_queue_pair())
    owner_.on_closed(Errc::no_memory);
  else if (!begin_connect())  // where that waits for the answer (soft-iWARP), errno tells what it was
    owner_.on_closed(errno == ECONNREFUSED ? Errc::unreachable : Errc::again);
}

void Connection::on_event(const rdma_cm_event& event, std::string_view said) noexcept {
  switch (event.event) {
    case RDMA_CM_EVENT_ADDR_RESOLVED:
      if (library().resolve_route(id_.get(), kResolveMs) != 0) owner_.on_closed(Errc::unreachable);
      return;
    case RDMA_CM_EVENT_ROUTE_RESOLVED:
      services_.to_connect.push_back(*this);
      return;
    case RDMA_CM_EVENT_ESTABLISHED:
      return establish();
    case RDMA_CM_EVENT_ADDR_ERROR:
    case RDMA_CM_EVENT_ROUTE_ERROR:
      owner_.on_closed(Errc::unreachable);
      return;
    case RDMA_CM_EVENT_CONNECT_ERROR:
    case RDMA_CM_EVENT_UNREACHABLE:
      owner_.on_closed(calling_ ? Errc::again : Errc::peer_lost);
      return;
    case RDMA_CM_EVENT_REJECTED:
      owner_.on_closed(calling_ ? refusal_of(event.status, said) : Errc::peer_lost);
      return;
    case RDMA_CM_EVENT_DISCONNECTED:
    case RDMA_CM_EVENT_DEVICE_REMOVAL:
      owner_.on_closed(Errc::peer_lost);
      return;
    default:
      return;
  }
}

}  // namespace fab::verbs
