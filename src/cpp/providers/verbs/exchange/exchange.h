#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "base/fd.h"
#include "base/network/poller.h"
#include "base/network/tcp_socket.h"
#include "providers/verbs/device/device.h"
#include "providers/verbs/device/transport_options.h"
#include "providers/verbs/exchange/messages.h"
#include "providers/verbs/exchange/port.h"

namespace fab::verbs {

// One side of a connection between queue pairs that is made without rdma_cm: the two sides tell each other
// their cards over tcp, and the tcp connection then stays. Its end is that of the connection: the kernel of a
// process that dies closes it. What happens is told in the words of rdma_cm, so that calls, their limits and
// their deadlines are the same as there. Used under the context's lock.
class Exchange final : public OtherId, private ReadyHandler {
 public:
  // What the exchanges of an endpoint share. It must outlive them.
  struct Services {
    Poller& poller;
    const Device& device;
    const PortPlace& port;
    const TransportOptions& transport;
    double deadline;  // seconds after which tcp gives up a host that is silent
    // Told of what would be an event of rdma_cm, with its private data. May destroy the exchange.
    std::function<void(const rdma_cm_event& event, std::string_view said)> told;
  };
  // Told once, of a caller: it has said its call, or else it says none any more. May destroy the exchange.
  using Greeted = std::function<void(Exchange& caller, bool called)>;

  // A call; connect() makes it.
  Exchange(const Services& services, const SocketAddress& to, std::string said);
  // A caller on a connected socket. Throws std::system_error.
  Exchange(const Services& services, OwnFd socket, const SocketAddress& from, Greeted greeted);
  ~Exchange() override;

  // The exchange that an id of the provider is; null: it is one of rdma_cm.
  static Exchange* of(rdma_cm_id& id) noexcept {
    return id.channel ? nullptr : static_cast<Exchange*>(static_cast<OtherId*>(&id));
  }

  // These do what rdma_create_qp(3) and the others do. They return false if they failed at once.
  bool make_queue_pair(ibv_pd& domain, ibv_qp_init_attr& wanted, bool reached) noexcept;
  bool connect(const rdma_conn_param& wanted) noexcept;
  bool accept(const rdma_conn_param& given) noexcept;
  void reject(std::string_view said) noexcept;
  void disconnect() noexcept;

  void tell_call() noexcept;  // of a caller that has said its call
  // The socket address that was called, from the point of view of this side.
  SocketAddress called_at() const noexcept;
  int descriptor() const noexcept { return socket_.get(); }
  std::uint64_t heard() const noexcept { return heard_; }  // bytes
  // Whether a caller that waits for its answer is still there.
  bool waits() const noexcept { return state_ == State::asked; }

 private:
  enum class State : std::uint8_t { idle, connecting, asking, greeting, asked, connected, ended };

  void on_ready(std::uint32_t events) noexcept override;
  void watch(std::uint32_t events);
  void close() noexcept;
  bool read() noexcept;
  void read_message() noexcept;
  void on_connected() noexcept;
  void on_answer(const ExchangeMessage& message) noexcept;
  void on_end(int status) noexcept;
  bool say(ExchangeMessage::Type type, std::string_view said) noexcept;
  void tell(rdma_cm_event_type type, int status) noexcept;
  QueuePairCard card_of(const rdma_conn_param& param) const noexcept;

  const Services& services_;
  Greeted greeted_;
  OwnFd socket_;
  State state_ = State::idle;
  const bool caller_;
  std::string said_;   // by the caller, of a refusal by the called side
  std::string begun_;  // what has come of a message
  QueuePairCard own_, peer_;
  std::uint32_t first_packet_;
  std::uint64_t heard_ = 0;
};

}  // namespace fab::verbs
