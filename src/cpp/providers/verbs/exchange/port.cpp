#include "providers/verbs/exchange/port.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <optional>

#include "base/bytes/number.h"
#include "fabric/types/error.h"

namespace fab::verbs {
namespace {

constexpr std::uint8_t kHopLimit = 64;
constexpr std::uint8_t kNotReadyDelay = 12;  // 0.64 ms, as over rdma_cm (connection.cpp)
constexpr std::size_t kPrefix = 8;           // bytes of a GID that name the subnet

QueuePairCard::Network network_of(const Device& device, const std::string& type) noexcept {
  if (device.link_layer == IBV_LINK_LAYER_INFINIBAND) return QueuePairCard::Network::infiniband;
  return type == "RoCE v2" ? QueuePairCard::Network::roce_v2 : QueuePairCard::Network::roce_v1;
}

Gid gid_with_index(const Device& device, const std::string& index) {
  std::string there;
  for (Gid& gid : list_gids(device)) {
    const std::string number = std::to_string(gid.index);
    if (number == index) return std::move(gid);
    there += (there.empty() ? "" : ", ") + number + " (" + gid.type + ")";
  }
  throw Error(Errc::invalid,
              "verbs_gid_index is \"" + index + "\", which is no GID of " + device.name + "; " +
                  (there.empty() ? "it has none, leave the setting out" : "there is " + there));
}

// ibv_modify_qp() returns an error number.
bool done(int error) noexcept {
  if (error != 0) errno = error;
  return error == 0;
}

}  // namespace

PortPlace PortPlace::of(const Device& device, const std::string& gid_index) {
  const auto gid = gid_index.empty() ? usual_gid(device) : gid_with_index(device, gid_index);
  if (!reached_without_ip(device))
    throw Error(Errc::not_supported_here,
                device.name +
                    " can be reached by IP addresses only: it is of iWARP, or has neither a GID "
                    "nor a LID");
  PortPlace place{.lid = device.lid,
                  .mtu = static_cast<std::uint8_t>(device.mtu),
                  .needs_gid = device.needs_gid || device.link_layer != IBV_LINK_LAYER_INFINIBAND};
  place.network = network_of(device, gid ? gid->type : "");
  if (gid) {
    std::ranges::copy(gid->bytes, place.gid.begin());
    place.gid_index = static_cast<std::uint8_t>(gid->index);
  }
  return place;
}

bool PortPlace::by_gid(const QueuePairCard& peer) const noexcept {
  return needs_gid || lid == 0 || peer.lid == 0;
}

bool PortPlace::reaches(const QueuePairCard& peer) const noexcept {
  if (peer.network != network) return false;
  constexpr QueuePairCard::GidBytes kNone{};
  if (network != QueuePairCard::Network::infiniband) return true;
  if (gid == kNone || peer.gid == kNone) return !by_gid(peer);
  // Only the subnet manager knows the routers between subnets.
  return std::memcmp(gid.data(), peer.gid.data(), kPrefix) == 0;
}

bool initialise(ibv_qp& queue_pair, std::uint8_t port, bool reached) noexcept {
  ibv_qp_attr wanted{};
  wanted.qp_state = IBV_QPS_INIT;
  wanted.port_num = port;
  if (reached)
    wanted.qp_access_flags = IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC;
  return done(library().modify_qp(&queue_pair, &wanted,
                                  IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS));
}

bool connect(ibv_qp& queue_pair, const Device& device, const PortPlace& place,
             const TransportOptions& transport, const Introduced& sides) noexcept {
  const auto& [own, peer] = sides;
  ibv_qp_attr receives{};
  receives.qp_state = IBV_QPS_RTR;
  receives.path_mtu = static_cast<ibv_mtu>(std::min(own.mtu, peer.mtu));
  receives.dest_qp_num = peer.number;
  receives.rq_psn = peer.first_packet;
  receives.max_dest_rd_atomic = std::min(own.reads_served, peer.reads_begun);
  receives.min_rnr_timer = kNotReadyDelay;
  ibv_ah_attr& way = receives.ah_attr;
  way.port_num = device.port;
  way.dlid = peer.lid;
  if (place.by_gid(peer)) {
    way.is_global = 1;
    std::ranges::copy(peer.gid, way.grh.dgid.raw);
    way.grh.sgid_index = place.gid_index;
    way.grh.hop_limit = kHopLimit;
    way.grh.traffic_class = transport.traffic_class.value_or(0);
  }
  if (!done(library().modify_qp(&queue_pair, &receives,
                                IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                                    IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER)))
    return false;
  ibv_qp_attr sends{};
  sends.qp_state = IBV_QPS_RTS;
  sends.sq_psn = own.first_packet;
  sends.timeout = transport.ack_timeout;
  sends.retry_cnt = transport.retries;
  sends.rnr_retry = peer.not_ready_retries;
  sends.max_rd_atomic = std::min(own.reads_begun, peer.reads_served);
  return done(library().modify_qp(&queue_pair, &sends,
                                  IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT |
                                      IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC));
}

}  // namespace fab::verbs
