#include <arpa/inet.h>
#include <ifaddrs.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <random>
#include <string>
#include <utility>

#include "mock_verbs/objects.h"

// rdma_cm: who calls whom. Where an id listens is a name among the abstract Unix sockets.
namespace mock {
namespace {

constexpr int kRejected = 28;  // the status of a call that its receiver refused

sockaddr_un place_of(const sockaddr_storage& address, std::uint16_t port, socklen_t& length) {
  char host[INET6_ADDRSTRLEN] = "";
  const void* const bytes =
      address.ss_family == AF_INET6
          ? static_cast<const void*>(&reinterpret_cast<const sockaddr_in6&>(address).sin6_addr)
          : &reinterpret_cast<const sockaddr_in&>(address).sin_addr;
  ::inet_ntop(address.ss_family, bytes, host, sizeof host);
  const std::string name = "pyfab mock verbs/" + std::string(host) + "/" + std::to_string(port);
  sockaddr_un place{.sun_family = AF_UNIX, .sun_path = {}};
  name.copy(place.sun_path + 1, sizeof place.sun_path - 1);
  length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  return place;
}

// The port has the same place in both families.
in_port_t& port_of(sockaddr_storage& address) { return reinterpret_cast<sockaddr_in&>(address).sin_port; }

std::size_t size_of(const sockaddr* address) {
  return address->sa_family == AF_INET6 ? sizeof(sockaddr_in6) : sizeof(sockaddr_in);
}

bool same_host(const sockaddr* one, const sockaddr* other) {
  if (!one || one->sa_family != other->sa_family) return false;
  if (one->sa_family == AF_INET)
    return reinterpret_cast<const sockaddr_in*>(one)->sin_addr.s_addr ==
           reinterpret_cast<const sockaddr_in*>(other)->sin_addr.s_addr;
  return std::memcmp(&reinterpret_cast<const sockaddr_in6*>(one)->sin6_addr,
                     &reinterpret_cast<const sockaddr_in6*>(other)->sin6_addr, sizeof(in6_addr)) == 0;
}

// The device has all addresses of this machine but those of the loopback interface.
bool of_device(const sockaddr* address) {
  if (world().reached != Faults::Reached::by_ip) return false;
  ifaddrs* all = nullptr;
  if (::getifaddrs(&all) != 0) return false;
  bool found = false;
  for (const ifaddrs* each = all; each; each = each->ifa_next)
    found |= same_host(each->ifa_addr, address) && std::strcmp(each->ifa_name, "lo") != 0;
  ::freeifaddrs(all);
  return found;
}

void attach(Id& id) {
  id.verbs = &world().context.context;
  id.port_num = 1;
}

CallBody body_of(const Id& id, const rdma_conn_param* param) {
  CallBody body{};
  body.from = id.route.addr.src_storage;
  body.queue_pair = id.qp ? id.qp->qp_num : 0;
  if (!param) return body;
  body.responder_resources = param->responder_resources;
  body.initiator_depth = param->initiator_depth;
  body.not_ready_retries = param->rnr_retry_count & 7;
  world().retries = param->retry_count;
  if (param->private_data)
    std::memcpy(body.said, param->private_data,
                std::min<std::size_t>(param->private_data_len, kPrivateBytes));
  return body;
}

void say_body(Id& id, Kind kind, const CallBody& body) {
  say(id, {.kind = kind, .bytes = sizeof body}, &body, sizeof body);
}

void to_connected(Id& id) {
  id.state = Id::State::connected;
  if (id.qp && id.qp->state == IBV_QPS_INIT) id.qp->state = IBV_QPS_RTS;
}

bool begin_call(Id& id, const rdma_conn_param* param) {
  socklen_t length = 0;
  auto& to = id.route.addr.dst_storage;
  const sockaddr_un place = place_of(to, ntohs(port_of(to)), length);
  id.fd = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (id.fd < 0) return false;
  watch(id);
  id.state = Id::State::calling;
  id.begins = param->initiator_depth;
  if (world().faults.refusal("silent_call")) return true;
  if (const int error = world().faults.refusal("call")) {
    unwatch(id);
    id.state = Id::State::closed;
    tell(id, RDMA_CM_EVENT_UNREACHABLE, -error);
    return true;
  }
  if (::connect(id.fd, reinterpret_cast<const sockaddr*>(&place), length) != 0) {
    const bool nobody = errno == ECONNREFUSED;
    unwatch(id);
    id.state = Id::State::closed;
    tell(id, nobody ? RDMA_CM_EVENT_REJECTED : RDMA_CM_EVENT_UNREACHABLE, nobody ? 8 : -ETIMEDOUT);
    return true;
  }
  say_body(id, Kind::call, body_of(id, param));
  return true;
}

void on_call(Id& id, const CallBody& body) {
  id.peer = body;
  id.route.addr.dst_storage = body.from;
  id.state = Id::State::asked;
  tell(id, RDMA_CM_EVENT_CONNECT_REQUEST);
  id.listener = nullptr;
}

void destroy(Id* id) {
  auto& queue = static_cast<CmEvents*>(id->channel)->queue;
  // Callers that nobody was told of go with the listener.
  std::vector<Id*> callers;
  for (const auto& [number, other] : world().ids)
    if (other->listener == id) callers.push_back(other);
  for (CmEvent* const event : std::exchange(queue, {})) {
    if (event->id != id && event->listen_id != id) {
      queue.push_back(event);
      continue;
    }
    if (event->id != id) callers.push_back(static_cast<Id*>(event->id));
    delete event;
  }
  for (Id* const caller : callers) destroy(caller);
  flush(*id);
  unwatch(*id);
  world().busy.erase(id);
  world().ids.erase(id->number);
  delete id;
}

void tell_outcome(Id& id, const char* asked, rdma_cm_event_type done, rdma_cm_event_type failed) {
  const int error = world().faults.refusal(asked);
  tell(id, error ? failed : done, -error);
}

bool bind_place(Id& id, std::uint16_t port) {
  socklen_t length = 0;
  const sockaddr_un place = place_of(id.route.addr.src_storage, port, length);
  if (::bind(id.fd, reinterpret_cast<const sockaddr*>(&place), length) != 0) return false;
  port_of(id.route.addr.src_storage) = htons(port);
  return true;
}

}  // namespace

void tell(Id& id, rdma_cm_event_type type, int status) {
  if (!id.channel) return;
  auto* const event = new CmEvent{};
  event->id = &id;
  event->listen_id = type == RDMA_CM_EVENT_CONNECT_REQUEST ? id.listener : nullptr;
  event->event = type;
  event->status = status;
  if (type == RDMA_CM_EVENT_CONNECT_REQUEST || type == RDMA_CM_EVENT_ESTABLISHED ||
      type == RDMA_CM_EVENT_REJECTED) {
    std::memcpy(event->said, id.peer.said, kPrivateBytes);
    event->param.conn.private_data = event->said;
    event->param.conn.private_data_len = kPrivateBytes;
    // What one side begins the other side serves: the event is seen from the side that gets it.
    event->param.conn.responder_resources = id.peer.initiator_depth;
    event->param.conn.initiator_depth = id.peer.responder_resources;
    event->param.conn.rnr_retry_count = id.peer.not_ready_retries;
    event->param.conn.qp_num = id.peer.queue_pair;
  }
  static_cast<CmEvents*>(id.channel)->queue.push_back(event);
  ::eventfd_write(id.channel->fd, 1);
}

void on_packet(Id& id, const Header& header, const std::string& bytes) {
  CallBody body{};
  if (header.kind == Kind::call || header.kind == Kind::accept || header.kind == Kind::reject)
    std::memcpy(&body, bytes.data(), std::min(bytes.size(), sizeof body));
  switch (header.kind) {
    case Kind::call:
      return on_call(id, body);
    case Kind::accept:
      id.peer = body;
      if (world().faults.refusal("answer")) return on_end(id);
      id.begins = std::min<unsigned>(id.begins, body.responder_resources);
      to_connected(id);
      say(id, {.kind = Kind::ready}, nullptr, 0);
      return tell(id, RDMA_CM_EVENT_ESTABLISHED);
    case Kind::reject:
      id.peer = body;
      id.state = Id::State::closed;
      return tell(id, RDMA_CM_EVENT_REJECTED, kRejected);
    case Kind::ready:
      id.state = Id::State::connected;
      return tell(id, RDMA_CM_EVENT_ESTABLISHED);
    case Kind::disconnect:
      return on_end(id);
    case Kind::join: {
      JoinBody join{};
      std::memcpy(&join, bytes.data(), std::min(bytes.size(), sizeof join));
      return on_join(id, join);
    }
    case Kind::request:
      id.requests.push_back({header, bytes});
      return;
    case Kind::answer:
      if (id.qp) on_answer(*static_cast<Qp*>(id.qp), header, bytes);
  }
}

// The other side has ended the connection, or its process.
void on_end(Id& id) {
  unwatch(id);
  world().busy.insert(&id);
  switch (std::exchange(id.state, Id::State::closed)) {
    case Id::State::connected:
      return tell(id, RDMA_CM_EVENT_DISCONNECTED);
    case Id::State::calling:
      return tell(id, RDMA_CM_EVENT_REJECTED, kRejected);
    case Id::State::accepted:
      return tell(id, RDMA_CM_EVENT_CONNECT_ERROR, -ECONNRESET);
    case Id::State::greeting:
      return destroy(&id);
    default:
      return;
  }
}

}  // namespace mock

using namespace mock;

extern "C" {

rdma_event_channel* rdma_create_event_channel() {
  const Lock lock(world().mutex);
  if (const int error = world().faults.refusal("event_channel")) return fail(error), nullptr;
  const int fd = ::eventfd(0, EFD_SEMAPHORE | EFD_CLOEXEC);
  if (fd < 0) return nullptr;
  auto* const channel = new CmEvents{};
  channel->fd = fd;
  return channel;
}

void rdma_destroy_event_channel(rdma_event_channel* channel) {
  const Lock lock(world().mutex);
  ::close(channel->fd);
  delete static_cast<CmEvents*>(channel);
}

int rdma_create_id(rdma_event_channel* channel, rdma_cm_id** into, void* context, rdma_port_space ps) {
  const Lock lock(world().mutex);
  if (const int error = world().faults.refusal("create_id")) return fail(error);
  auto* const id = new Id{};
  id->channel = channel;
  id->context = context;
  id->ps = ps;
  id->number = world().next_id++;
  world().ids[id->number] = id;
  *into = id;
  return 0;
}

int rdma_destroy_id(rdma_cm_id* id) {
  const Lock lock(world().mutex);
  destroy(static_cast<Id*>(id));
  return 0;
}

int rdma_bind_addr(rdma_cm_id* id, sockaddr* address) {
  const Lock lock(world().mutex);
  if (world().removed) return fail(ENODEV);
  if (const int error = world().faults.refusal("bind")) return fail(error);
  if (!of_device(address)) return fail(ENODEV);
  std::memcpy(&id->route.addr.src_storage, address, size_of(address));
  attach(*static_cast<Id*>(id));
  return 0;
}

int rdma_listen(rdma_cm_id* given, int) {
  static std::mt19937 random{std::random_device{}()};
  const Lock lock(world().mutex);
  Id& id = *static_cast<Id*>(given);
  if (world().removed) return fail(ENODEV);
  if (const int error = world().faults.refusal("listen")) return fail(error);
  id.fd = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (id.fd < 0) return -1;
  const std::uint16_t asked = ntohs(port_of(id.route.addr.src_storage));
  bool bound = asked != 0 && bind_place(id, asked);
  for (int attempt = 0; asked == 0 && !bound && attempt < 1000; ++attempt)
    bound = bind_place(id, static_cast<std::uint16_t>(20000 + random() % 40000));
  if (!bound || ::listen(id.fd, SOMAXCONN) != 0) {
    ::close(std::exchange(id.fd, -1));
    return fail(EADDRINUSE);
  }
  id.state = Id::State::listening;
  watch(id);
  return 0;
}

__be16 rdma_get_src_port(rdma_cm_id* id) {
  const Lock lock(world().mutex);
  return port_of(id->route.addr.src_storage);
}

int rdma_resolve_addr(rdma_cm_id* id, sockaddr* from, sockaddr* to, int) {
  const Lock lock(world().mutex);
  if (world().removed || (from && !of_device(from))) return fail(ENODEV);
  if (const int error = world().faults.refusal("resolve")) return fail(error);
  if (from) std::memcpy(&id->route.addr.src_storage, from, size_of(from));
  std::memcpy(&id->route.addr.dst_storage, to, size_of(to));
  attach(*static_cast<Id*>(id));
  tell_outcome(*static_cast<Id*>(id), "address", RDMA_CM_EVENT_ADDR_RESOLVED, RDMA_CM_EVENT_ADDR_ERROR);
  return 0;
}

int rdma_resolve_route(rdma_cm_id* id, int) {
  const Lock lock(world().mutex);
  if (world().removed) return fail(ENODEV);
  if (const int error = world().faults.refusal("resolve_route")) return fail(error);
  tell_outcome(*static_cast<Id*>(id), "route", RDMA_CM_EVENT_ROUTE_RESOLVED, RDMA_CM_EVENT_ROUTE_ERROR);
  return 0;
}

int rdma_connect(rdma_cm_id* id, rdma_conn_param* param) {
  const Lock lock(world().mutex);
  if (world().removed) return fail(ENODEV);
  if (const int error = world().faults.refusal("connect")) return fail(error);
  return begin_call(*static_cast<Id*>(id), param) ? 0 : -1;
}

int rdma_accept(rdma_cm_id* given, rdma_conn_param* param) {
  const Lock lock(world().mutex);
  Id& id = *static_cast<Id*>(given);
  if (world().removed || id.state != Id::State::asked) return fail(EINVAL);
  if (const int error = world().faults.refusal("accept")) return fail(error);
  id.begins = param->initiator_depth;
  say_body(id, Kind::accept, body_of(id, param));
  to_connected(id);
  id.state = Id::State::accepted;
  return 0;
}

int rdma_reject(rdma_cm_id* given, const void* said, std::uint8_t length) {
  const Lock lock(world().mutex);
  Id& id = *static_cast<Id*>(given);
  if (id.state != Id::State::asked) return fail(EINVAL);
  CallBody body{};
  if (said) std::memcpy(body.said, said, std::min<std::size_t>(length, kPrivateBytes));
  say_body(id, Kind::reject, body);
  id.state = Id::State::closed;
  return 0;
}

int rdma_disconnect(rdma_cm_id* given) {
  const Lock lock(world().mutex);
  Id& id = *static_cast<Id*>(given);
  if (id.qp) to_error(*static_cast<Qp*>(id.qp));
  if (id.state != Id::State::connected && id.state != Id::State::accepted) return fail(EINVAL);
  say(id, {.kind = Kind::disconnect}, nullptr, 0);
  id.state = Id::State::closed;
  tell(id, RDMA_CM_EVENT_DISCONNECTED);
  wake_device();
  return 0;
}

int rdma_get_cm_event(rdma_event_channel* channel, rdma_cm_event** into) {
  for (;;) {
    eventfd_t one;
    if (::eventfd_read(channel->fd, &one) != 0) return -1;
    const Lock lock(world().mutex);
    auto& queue = static_cast<CmEvents*>(channel)->queue;
    if (queue.empty()) continue;  // its id has gone
    *into = queue.front();
    queue.pop_front();
    return 0;
  }
}

int rdma_ack_cm_event(rdma_cm_event* event) {
  delete static_cast<CmEvent*>(event);
  return 0;
}

int rdma_set_option(rdma_cm_id*, int level, int option, void* value, std::size_t size) {
  if (level != RDMA_OPTION_ID || size != 1) return 0;
  const Lock lock(world().mutex);
  const int given = *static_cast<const std::uint8_t*>(value);
  if (option == RDMA_OPTION_ID_TOS) world().traffic_class = given;
  if (option == RDMA_OPTION_ID_ACK_TIMEOUT) world().ack_timeout = given;
  return 0;
}
}
