#include "providers/verbs/connection/connection.h"

#include <algorithm>
#include <cstring>

#include "base/bytes/wire.h"
#include "fabric/types/versions.h"
#include "providers/verbs/connection/shared_receives.h"

namespace fab::verbs {
namespace {

constexpr std::uint32_t kMagic = 0x31766670;  // "pfv1"
constexpr int kResolveMs = 2000;
// Retries when the peer has no receive posted. Credits see to it that a stream needs none.
constexpr std::uint8_t kNotReadyRetries = 6;
// The value that means retrying without end, for peers that share receives. Deadlines end a stream then.
constexpr std::uint8_t kRetryForEver = 7;
constexpr std::uint8_t kNotReadyTimer = 12;  // 0.64 ms; the default of rdma_cm is 655 ms

}  // namespace

void PrivateData::encode(char* out) const noexcept {
  const auto put = [&out](const auto& value) {
    std::memcpy(out, &value, sizeof value);
    out += sizeof value;
  };
  put(to_little(kMagic));
  put(versions::kVerbsCall);
  put(purpose);
  put(std::uint16_t{0});
  put(to);
  put(to_little(token));
}

std::optional<PrivateData> PrivateData::decode(std::string_view bytes) noexcept {
  WireReader reader(bytes.substr(0, std::min(bytes.size(), kBytes)));
  const bool ours =
      reader.get<std::uint32_t>() == kMagic && reader.get<std::uint8_t>() == versions::kVerbsCall;
  const auto purpose = reader.get<std::uint8_t>();
  const auto zero = reader.get<std::uint16_t>();
  PrivateData data{.purpose = static_cast<Purpose>(purpose)};
  const auto id = reader.raw(data.to.size());
  data.token = reader.get<std::uint64_t>();
  if (!ours || !reader.at_end() || zero != 0 || purpose < 1 || purpose > 2) return {};
  std::ranges::copy(id, data.to.begin());
  return data;
}

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
    if (connected_) library().disconnect(id_.get());
    const bool shares = depth_.shared_receives && id_->qp;
    if (shares) depth_.shared_receives->leave(id_->qp->qp_num);
    end_->take(std::move(id_));
    if (shares) services_.queue_pair_ends.add(std::move(end_));
  }
}

bool Connection::call(const SocketAddress& from, const SocketAddress& to, const PrivateData& data) noexcept {
  data.encode(private_data_);
  rdma_cm_id* made = nullptr;
  if (library().create_id(&services_.events, &made, this, RDMA_PS_TCP) != 0) return false;
  id_.reset(made);
  calling_ = true;
  set_options(*made);
  const SocketAddress any_port = from.with_port(0);
  return library().resolve_addr(made, const_cast<sockaddr*>(any_port.get()), const_cast<sockaddr*>(to.get()),
                                kResolveMs) == 0;
}

// A kernel that does not know an option refuses it, and does what it does for everybody.
void Connection::set_options(rdma_cm_id& id) const noexcept {
  std::uint8_t timeout = services_.transport.ack_timeout;
  library().set_option(&id, RDMA_OPTION_ID, RDMA_OPTION_ID_ACK_TIMEOUT, &timeout, sizeof timeout);
  if (auto traffic = services_.transport.traffic_class)
    library().set_option(&id, RDMA_OPTION_ID, RDMA_OPTION_ID_TOS, &*traffic, sizeof *traffic);
}

bool Connection::make_queue_pair() noexcept {
  const std::uint32_t receives = depth_.shared_receives ? 0 : depth_.receives;
  const std::uint32_t room = depth_.sends + receives;
  if (id_->verbs != depth_.protection_domain.context || !end_->take_room(room)) return false;
  // Devices differ in how many bytes they send inline, and none tells its limit. So half as many are asked
  // for until the device agrees.
  for (std::uint32_t bytes = depth_.inline_bytes;; bytes /= 2) {
    ibv_qp_init_attr wanted{};
    wanted.send_cq = wanted.recv_cq = &services_.completions.queue();
    wanted.srq = depth_.shared_receives ? &depth_.shared_receives->queue() : nullptr;
    wanted.qp_type = IBV_QPT_RC;
    wanted.cap = {.max_send_wr = depth_.sends,
                  .max_recv_wr = std::max(1u, receives),
                  .max_send_sge = 1,
                  .max_recv_sge = 1,
                  .max_inline_data = bytes};
    if (library().create_qp(id_.get(), &depth_.protection_domain, &wanted) == 0) {
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
  return library().connect(id_.get(), &wanted) == 0;
}

bool Connection::answer(OwnId id, const rdma_conn_param& asked) noexcept {
  id_ = std::move(id);
  id_->context = this;
  if (!make_queue_pair()) return false;
  rdma_conn_param given{};
  // The event tells both numbers from this side's point of view (rdma_get_cm_event(3)).
  given.responder_resources = std::min(asked.responder_resources, services_.device.reads_served());
  given.initiator_depth = std::min(asked.initiator_depth, services_.device.reads_begun());
  given.retry_count = services_.transport.retries;
  given.rnr_retry_count = depth_.shared_receives ? kRetryForEver : kNotReadyRetries;
  set_options(*id_);
  return library().accept(id_.get(), &given) == 0;
}

void Connection::on_event(rdma_cm_event_type type) noexcept {
  switch (type) {
    case RDMA_CM_EVENT_ADDR_RESOLVED:
      if (library().resolve_route(id_.get(), kResolveMs) != 0) owner_.on_closed(Errc::unreachable);
      return;
    case RDMA_CM_EVENT_ROUTE_RESOLVED:
      if (!make_queue_pair())
        owner_.on_closed(Errc::no_memory);
      else if (!begin_connect())
        owner_.on_closed(Errc::unreachable);
      return;
    case RDMA_CM_EVENT_ESTABLISHED:
      connected_ = true;
      if (depth_.shared_receives) {
        ibv_qp_attr timer{};
        timer.min_rnr_timer = kNotReadyTimer;
        library().modify_qp(id_->qp, &timer, IBV_QP_MIN_RNR_TIMER);
      }
      owner_.on_connected();
      return;
    case RDMA_CM_EVENT_ADDR_ERROR:
    case RDMA_CM_EVENT_ROUTE_ERROR:
    case RDMA_CM_EVENT_CONNECT_ERROR:
    case RDMA_CM_EVENT_UNREACHABLE:
    case RDMA_CM_EVENT_REJECTED:
      owner_.on_closed(calling_ ? Errc::unreachable : Errc::peer_lost);
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
