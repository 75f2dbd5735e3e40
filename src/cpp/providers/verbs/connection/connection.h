#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string_view>

#include "base/network/tcp_socket.h"
#include "base/queues/linked_list.h"
#include "fabric/types/error.h"
#include "providers/verbs/connection/device_completion_queue.h"
#include "providers/verbs/connection/owner.h"
#include "providers/verbs/connection/private_data.h"
#include "providers/verbs/connection/queue_pair_end.h"
#include "providers/verbs/device/library.h"
#include "providers/verbs/device/transport_options.h"
#include "providers/verbs/exchange/exchange.h"

namespace fab::verbs {

class SharedReceives;

struct ToConnect;  // names the list of connections whose route is known

// The way of a call.
struct Route {
  SocketAddress from;  // of rdma_cm
  SocketAddress to;
  bool by_exchange = false;  // `to` is an address of tcp, where an exchange is made (Exchange)
};

// A queue pair and its connection, by rdma_cm or by exchange. Neither calling nor ending waits. The owner is
// told of events under the context's lock, and may destroy the connection there.
class Connection final : public Linked<ToConnect> {
 public:
  // What the connections of an endpoint share. It must outlive them.
  struct Services {
    const Device& device;
    rdma_event_channel& events;
    DeviceCompletionQueue& completions;
    EndpointEvents& device_events;
    QueuePairEnds& queue_pair_ends;
    const TransportOptions& transport;
    // Calls whose route is known. The endpoint lets them go_on(), a few in each turn.
    LinkedList<Connection, ToConnect>& to_connect;
    const Exchange::Services* exchanges;  // null: this side can make none
    std::function<void()> calls_wait;     // called when one was added to `to_connect` outside of an event
  };
  struct Depth {
    std::uint32_t sends, receives, inline_bytes;
    ibv_pd& protection_domain;
    // Where messages arrive. If it is null, the queue pair has receives of its own.
    SharedReceives* shared_receives = nullptr;
    bool reached = false;  // the peer's device reaches memory of the protection domain
  };

  // Tells `owner` of the connection, and of the completions whose ids work_id() made.
  Connection(const Services& services, ConnectionOwner& owner, const Depth& depth);
  ~Connection();
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  // These return false if they failed at once; the owner is not told then.
  bool call(const Route& route, const PrivateData& data) noexcept;
  bool answer(OwnId id, const rdma_conn_param& asked) noexcept;

  // Answers a call that is not accepted.
  static void refuse(rdma_cm_id& id, Refusal::Why why) noexcept;

  bool connected() const noexcept { return connected_; }
  ibv_qp* queue_pair() const noexcept { return id_->qp; }
  std::uint32_t inline_bytes() const noexcept { return inline_bytes_; }
  // The id of a work request. Only 31 bits of `number` are kept.
  std::uint64_t work_id(std::uint32_t number, bool receive) const noexcept {
    return work_id(work_number_, number, receive);
  }
  static std::uint64_t work_id(std::uint32_t work_number, std::uint32_t number, bool receive) noexcept {
    return (std::uint64_t{work_number} << 32) | (receive ? 1u << 31 : 0) | (number & 0x7FFFFFFF);
  }
  static std::uint32_t number_of(const ibv_wc& completion) noexcept {
    return static_cast<std::uint32_t>(completion.wr_id) & 0x7FFFFFFF;
  }
  static bool is_receive(const ibv_wc& completion) noexcept { return (completion.wr_id >> 31 & 1) != 0; }

  std::uint32_t work_number() const noexcept { return work_number_; }
  // To be called by the endpoint. `said` is the private data of a refusal.
  void on_event(const rdma_cm_event& event, std::string_view said) noexcept;
  // Makes the queue pair of a call, which takes long, and asks the peer.
  void go_on() noexcept;

 private:
  void set_options(rdma_cm_id& id) const noexcept;
  bool create_queue_pair(ibv_qp_init_attr& wanted) noexcept;
  bool make_queue_pair() noexcept;
  bool begin_connect() noexcept;
  bool accept(const rdma_conn_param& asked) noexcept;
  void establish() noexcept;

  const Services& services_;
  ConnectionOwner& owner_;
  const Depth depth_;
  OwnId id_;
  std::unique_ptr<QueuePairEnd> end_;  // takes id_
  std::uint32_t work_number_ = 0;
  std::uint32_t inline_bytes_ = 0;
  bool calling_ = false, connected_ = false;
  char private_data_[PrivateData::kBytes];
};

}  // namespace fab::verbs
