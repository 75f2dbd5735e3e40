#include "providers/verbs/exchange/exchange.h"

#include <sys/epoll.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <exception>
#include <utility>

#include "base/bytes/random.h"

namespace fab::verbs {
namespace {

constexpr std::uint32_t kPacketNumbers = (1u << 24) - 1;
constexpr int kNobodyThere = 8;  // IB_CM_REJ_INVALID_SERVICE_ID: the words of rdma_cm for it
constexpr int kToldWhy = 28;     // IB_CM_REJ_CONSUMER_DEFINED
constexpr int kLetGo = 0;        // refused without a word, as by a process that ended

void store(const SocketAddress& address, sockaddr_storage& into) noexcept {
  std::memcpy(&into, address.get(), address.length());
}

SocketAddress stored(const sockaddr_storage& address) noexcept {
  return {reinterpret_cast<const sockaddr*>(&address), sizeof address};
}

}  // namespace

Exchange::Exchange(const Services& services, const SocketAddress& to, std::string said)
    : services_(services),
      caller_(true),
      said_(std::move(said)),
      first_packet_(static_cast<std::uint32_t>(random_u64()) & kPacketNumbers) {
  verbs = services.device.context;
  port_num = services.device.port;
  store(to, route.addr.dst_storage);
}

Exchange::Exchange(const Services& services, OwnFd socket, const SocketAddress& from, Greeted greeted)
    : services_(services),
      greeted_(std::move(greeted)),
      socket_(std::move(socket)),
      state_(State::greeting),
      caller_(false),
      first_packet_(static_cast<std::uint32_t>(random_u64()) & kPacketNumbers) {
  verbs = services.device.context;
  port_num = services.device.port;
  store(from, route.addr.dst_storage);
  store(local_address(socket_.get()), route.addr.src_storage);
  tune_tcp(socket_.get(), services.deadline);
  watch(EPOLLIN);
}

Exchange::~Exchange() {
  close();
  if (qp) library().destroy_raw_qp(qp);
}

void Exchange::watch(std::uint32_t events) { services_.poller.add(socket_.get(), events, *this); }

void Exchange::close() noexcept {
  state_ = State::ended;
  if (!socket_.valid()) return;
  services_.poller.remove(socket_.get(), *this);
  socket_.reset();
}

SocketAddress Exchange::called_at() const noexcept {
  return stored(caller_ ? route.addr.dst_storage : route.addr.src_storage);
}

bool Exchange::make_queue_pair(ibv_pd& domain, ibv_qp_init_attr& wanted, bool reached) noexcept {
  qp = library().create_raw_qp(&domain, &wanted);
  if (!qp) return false;
  if (initialise(*qp, services_.device.port, reached)) return true;
  library().destroy_raw_qp(std::exchange(qp, nullptr));
  return false;
}

QueuePairCard Exchange::card_of(const rdma_conn_param& param) const noexcept {
  return {.number = qp->qp_num,
          .first_packet = first_packet_,
          .lid = services_.port.lid,
          .gid = services_.port.gid,
          .mtu = services_.port.mtu,
          .network = services_.port.network,
          .reads_served = param.responder_resources,
          .reads_begun = param.initiator_depth,
          .not_ready_retries = param.rnr_retry_count};
}

bool Exchange::connect(const rdma_conn_param& wanted) noexcept try {
  own_ = card_of(wanted);
  socket_ = connect_tcp(stored(route.addr.dst_storage));
  if (!socket_.valid()) return false;
  state_ = State::connecting;
  watch(EPOLLOUT);
  return true;
} catch (const std::exception&) {
  socket_.reset();
  errno = ENOMEM;
  return false;
}

bool Exchange::accept(const rdma_conn_param& given) noexcept {
  if (state_ != State::asked || !services_.port.reaches(peer_)) return false;
  own_ = card_of(given);
  // The caller may send as soon as it has the card.
  if (!verbs::connect(*qp, services_.device, services_.port, services_.transport, {own_, peer_}))
    return false;
  if (!say(ExchangeMessage::Type::answer, {})) return false;
  state_ = State::connected;
  return true;
}

void Exchange::reject(std::string_view said) noexcept {
  if (state_ != State::asked) return;
  say(ExchangeMessage::Type::refusal, said);  // without it the caller finds that it was let go
  close();
}

// What the device still has to send goes with the queue pair, as over rdma_cm.
void Exchange::disconnect() noexcept {
  close();
  if (!qp) return;
  ibv_qp_attr failed{};
  failed.qp_state = IBV_QPS_ERR;
  library().modify_qp(qp, &failed, IBV_QP_STATE);
}

// --- what is said

// A message is shorter than what the socket of a new connection takes at once.
bool Exchange::say(ExchangeMessage::Type type, std::string_view said) noexcept try {
  const std::string bytes = ExchangeMessage{.type = type, .said = std::string(said), .card = own_}.encode();
  const auto sent = ::send(socket_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  return sent >= 0 && static_cast<std::size_t>(sent) == bytes.size();
} catch (const std::exception&) {
  return false;
}

void Exchange::on_ready(std::uint32_t) noexcept {
  switch (state_) {
    case State::connecting:
      return on_connected();
    case State::asking:
    case State::greeting:
      return read_message();
    case State::asked:  // nobody may say more than a call, so it has ended
      return close();
    case State::connected: {
      char more;
      const auto got = ::recv(socket_.get(), &more, sizeof more, MSG_DONTWAIT);
      if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
      return on_end(kLetGo);
    }
    default:
      return;
  }
}

void Exchange::on_connected() noexcept {
  int error = 0;
  socklen_t length = sizeof error;
  ::getsockopt(socket_.get(), SOL_SOCKET, SO_ERROR, &error, &length);
  if (error != 0) return on_end(error == ECONNREFUSED ? kNobodyThere : kLetGo);
  tune_tcp(socket_.get(), services_.deadline);
  services_.poller.modify(socket_.get(), EPOLLIN, *this);
  state_ = State::asking;
  if (!say(ExchangeMessage::Type::call, said_)) on_end(kLetGo);
}

// Reads what is missing of the message, and no byte more. Returns false if the other side says none.
bool Exchange::read() noexcept try {
  while (const auto missing = ExchangeMessage::missing(begun_)) {
    if (*missing == 0) return true;
    char bytes[ExchangeMessage::kLongest];
    const auto got = ::recv(socket_.get(), bytes, *missing, MSG_DONTWAIT);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) return true;
    if (got <= 0) return false;
    begun_.append(bytes, static_cast<std::size_t>(got));
    heard_ += static_cast<std::uint64_t>(got);
  }
  return false;
} catch (const std::exception&) {
  return false;
}

void Exchange::read_message() noexcept try {
  const bool called = state_ == State::greeting;
  const bool goes_on = read();
  const auto message = goes_on ? ExchangeMessage::parse(begun_) : std::nullopt;
  if (goes_on && !message && ExchangeMessage::missing(begun_) != 0u) return;  // the rest is on its way
  if (!called) return message ? on_answer(*message) : on_end(kLetGo);
  const bool asks = message && message->type == ExchangeMessage::Type::call;
  if (asks) {
    peer_ = message->card;
    said_ = message->said;
    state_ = State::asked;
  } else {
    close();
  }
  const Greeted greeted = std::exchange(greeted_, {});  // may destroy this object
  greeted(*this, asks);
} catch (const std::exception&) {
  on_end(kLetGo);
}

void Exchange::on_answer(const ExchangeMessage& message) noexcept {
  if (message.type == ExchangeMessage::Type::refusal) {
    said_ = message.said;
    return on_end(kToldWhy);
  }
  peer_ = message.card;
  const bool stands =
      message.type == ExchangeMessage::Type::answer && services_.port.reaches(peer_) &&
      verbs::connect(*qp, services_.device, services_.port, services_.transport, {own_, peer_});
  if (!stands) return on_end(kNobodyThere);
  state_ = State::connected;
  tell(RDMA_CM_EVENT_ESTABLISHED, 0);
}

// The other side has ended the tcp connection, or said what it may not.
void Exchange::on_end(int status) noexcept {
  const State before = state_;
  close();
  if (before == State::connected) return tell(RDMA_CM_EVENT_DISCONNECTED, 0);
  if (status != kToldWhy) said_.clear();
  tell(RDMA_CM_EVENT_REJECTED, status);
}

void Exchange::tell_call() noexcept { tell(RDMA_CM_EVENT_CONNECT_REQUEST, 0); }

// The last thing that is done, because whoever is told may destroy this object.
void Exchange::tell(rdma_cm_event_type type, int status) noexcept {
  rdma_cm_event news{};
  news.id = this;
  news.event = type;
  news.status = status;
  // What one side begins the other side serves: an event is seen from the side that gets it.
  news.param.conn.responder_resources = peer_.reads_begun;
  news.param.conn.initiator_depth = peer_.reads_served;
  news.param.conn.rnr_retry_count = peer_.not_ready_retries;
  const std::string said = std::move(said_);
  services_.told(news, said);
}

}  // namespace fab::verbs
