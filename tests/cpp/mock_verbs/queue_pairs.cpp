#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <thread>
#include <utility>

#include "mock_verbs/objects.h"

// Queue pairs: those of rdma_cm's ids, and those that programs connect themselves (ibv_modify_qp(3)). The
// number of one of the latter is a name among the abstract Unix sockets. Once both sides may send, the one
// with the smaller number connects to the other.
namespace mock {
namespace {

constexpr int kMostInline = 512;
constexpr std::uint8_t kGid[16] = {0xfe, 0x80, 0, 0, 0, 0, 0,    0,
                                   0,    0,    0, 0, 0, 0, 0x6d, 0x6b};  // also in CMakeLists.txt

sockaddr_un place_of(std::uint32_t number, socklen_t& length) {
  const std::string name = "pyfab mock verbs/queue pair/" + std::to_string(number);
  sockaddr_un place{.sun_family = AF_UNIX, .sun_path = {}};
  name.copy(place.sun_path + 1, sizeof place.sun_path - 1);
  length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  return place;
}

int unix_socket() { return ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0); }

void be_slow(Lock& lock) {
  const std::chrono::microseconds slow(world().faults.slow_qp_us);
  if (slow.count() == 0) return;
  lock.unlock();
  std::this_thread::sleep_for(slow);
  lock.lock();
}

// Returns null, with errno set, if the device makes none.
Qp* make(ibv_pd* pd, const ibv_qp_init_attr& wanted) {
  World& all = world();
  if (all.removed || wanted.cap.max_inline_data > kMostInline || wanted.qp_type != IBV_QPT_RC)
    return fail(EINVAL), nullptr;
  if (const int error = all.faults.refusal("create_qp")) return fail(error), nullptr;
  auto* const qp = new Qp{};
  qp->context = pd->context;
  qp->qp_context = wanted.qp_context;
  qp->pd = pd;
  qp->send_cq = wanted.send_cq;
  qp->recv_cq = wanted.recv_cq;
  qp->srq = wanted.srq;
  qp->qp_num = all.next_queue_pair++;
  qp->qp_type = IBV_QPT_RC;
  qp->cap = wanted.cap;
  qp->all_signaled = wanted.sq_sig_all != 0;
  ++static_cast<Pd*>(pd)->users;
  ++static_cast<Cq*>(qp->send_cq)->users;
  ++static_cast<Cq*>(qp->recv_cq)->users;
  if (qp->srq) ++static_cast<Srq*>(qp->srq)->users;
  ++all.queue_pairs;
  return qp;
}

void destroy(Lock& lock, Qp* qp) {
  if (!world().acknowledged.wait_for(lock, std::chrono::seconds(10), [&] { return !qp->unacknowledged; })) {
    std::fputs("mock verbs: a queue pair with an unacknowledged event would be waited for, for ever\n",
               stderr);
    std::abort();
  }
  forget_completions(*qp);
  --static_cast<Pd*>(qp->pd)->users;
  --static_cast<Cq*>(qp->send_cq)->users;
  --static_cast<Cq*>(qp->recv_cq)->users;
  if (qp->srq) {
    --static_cast<Srq*>(qp->srq)->users;
    static_cast<Srq*>(qp->srq)->waiting.erase(qp);
  }
  --world().queue_pairs;
  delete qp;
}

// Gives the queue pair a number that no process has, and listens there.
bool open_door(Qp& qp, Own& own) {
  static std::mt19937 random{std::random_device{}()};
  own.door = unix_socket();
  if (own.door < 0) return false;
  for (int attempt = 0; attempt < 1000; ++attempt) {
    qp.qp_num = static_cast<std::uint32_t>(2 + random() % ((1u << 24) - 2));
    socklen_t length = 0;
    const sockaddr_un place = place_of(qp.qp_num, length);
    if (::bind(own.door, reinterpret_cast<const sockaddr*>(&place), length) == 0)
      return ::listen(own.door, 1) == 0;
  }
  return false;
}

void close_door(Id& id) {
  if (id.own->door >= 0) ::close(std::exchange(id.own->door, -1));
}

void say_join(Id& id) {
  say(id, {.kind = Kind::join, .bytes = sizeof id.own->says}, &id.own->says, sizeof id.own->says);
}

int initialise(Qp& qp, const ibv_qp_attr& wanted, int mask) {
  if (mask != (IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS) ||
      wanted.port_num != 1 || qp.state != IBV_QPS_RESET)
    return EINVAL;
  qp.rights = wanted.qp_access_flags;
  qp.state = IBV_QPS_INIT;
  return 0;
}

int to_receive(Qp& qp, const ibv_qp_attr& wanted, int mask) {
  constexpr int kNeeded = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                          IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
  const ibv_ah_attr& way = wanted.ah_attr;
  const bool by_lid = world().reached == Faults::Reached::by_lid;
  if (mask != kNeeded || qp.state != IBV_QPS_INIT || way.port_num != 1) return EINVAL;
  if (!way.is_global && !by_lid) return EINVAL;  // RoCE has no other addresses
  if (way.is_global && way.grh.sgid_index != 0) return EINVAL;
  Own& own = *qp.id->own;
  own.there = way.is_global ? std::equal(kGid, kGid + sizeof kGid, way.grh.dgid.raw) : way.dlid == kLid;
  own.says = {.from = qp.qp_num,
              .to = wanted.dest_qp_num,
              .sends_at = 0,
              .takes_at = wanted.rq_psn,
              .mtu = static_cast<std::uint8_t>(wanted.path_mtu),
              .serves = wanted.max_dest_rd_atomic,
              .not_ready_retries = 0,
              .reserved = 0};
  qp.not_ready_timer = wanted.min_rnr_timer;
  if (way.is_global) world().traffic_class = way.grh.traffic_class;
  qp.state = IBV_QPS_RTR;
  return 0;
}

int to_send(Qp& qp, const ibv_qp_attr& wanted, int mask) {
  constexpr int kNeeded = IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT |
                          IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC;
  if (mask != kNeeded || qp.state != IBV_QPS_RTR) return EINVAL;
  Id& id = *qp.id;
  id.own->says.sends_at = wanted.sq_psn;
  id.own->says.not_ready_retries = wanted.rnr_retry;
  id.begins = wanted.max_rd_atomic;
  world().retries = wanted.retry_cnt;
  world().ack_timeout = wanted.timeout;
  qp.state = IBV_QPS_RTS;
  const std::uint32_t peer = id.own->says.to;
  if (id.own->there && qp.qp_num > peer) {
    id.state = Id::State::joining;
    id.fd = id.own->door;
    watch(id);
    return 0;
  }
  close_door(id);
  socklen_t length = 0;
  const sockaddr_un place = place_of(peer, length);
  id.fd = id.own->there ? unix_socket() : -1;
  if (id.fd < 0) return 0;  // packets go nowhere
  watch(id);
  if (::connect(id.fd, reinterpret_cast<const sockaddr*>(&place), length) != 0) {
    unwatch(id);
    return 0;
  }
  id.state = Id::State::connected;
  say_join(id);
  return 0;
}

}  // namespace

// A queue pair has connected.
void on_door(Id& id) {
  const int fd = ::accept4(id.own->door, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
  if (fd < 0) return;
  unwatch(id);
  id.fd = fd;
  id.state = Id::State::connected;
  watch(id);
  say_join(id);
}

// Packets that do not fit go nowhere.
void on_join(Id& id, const JoinBody& body) {
  if (!id.own) return;
  const JoinBody& says = id.own->says;
  const bool fits = body.from == says.to && body.to == says.from && body.sends_at == says.takes_at &&
                    body.takes_at == says.sends_at && body.mtu == says.mtu;
  if (!fits) return on_end(id);
  id.own->joined = true;
  id.peer.responder_resources = body.serves;
  id.peer.not_ready_retries = body.not_ready_retries;
  world().busy.insert(&id);
}

int step(Qp& qp, const ibv_qp_attr& wanted, int mask) {
  if (wanted.qp_state == IBV_QPS_ERR) return to_error(qp), 0;
  if (!qp.id->own) return EINVAL;  // rdma_cm does it
  switch (wanted.qp_state) {
    case IBV_QPS_INIT:
      return initialise(qp, wanted, mask);
    case IBV_QPS_RTR:
      return to_receive(qp, wanted, mask);
    case IBV_QPS_RTS:
      return to_send(qp, wanted, mask);
    default:
      return EINVAL;
  }
}

}  // namespace mock

using namespace mock;

extern "C" {

int rdma_create_qp(rdma_cm_id* given, ibv_pd* pd, ibv_qp_init_attr* wanted) {
  Lock lock(world().mutex);
  be_slow(lock);
  if (given->qp || !given->verbs || pd->context != given->verbs) return fail(EINVAL);
  Qp* const qp = make(pd, *wanted);
  if (!qp) return -1;
  qp->state = IBV_QPS_INIT;
  qp->id = static_cast<Id*>(given);
  given->qp = qp;
  given->pd = pd;
  return 0;
}

void rdma_destroy_qp(rdma_cm_id* id) {
  Lock lock(world().mutex);
  if (auto* const qp = static_cast<Qp*>(std::exchange(id->qp, nullptr))) destroy(lock, qp);
}

ibv_qp* ibv_create_qp(ibv_pd* pd, ibv_qp_init_attr* wanted) {
  Lock lock(world().mutex);
  be_slow(lock);
  Qp* const qp = make(pd, *wanted);
  if (!qp) return nullptr;
  auto* const id = new Id{};
  id->own.emplace();
  id->verbs = pd->context;
  id->port_num = 1;
  id->qp = qp;
  id->number = world().next_id++;
  qp->id = id;
  qp->state = IBV_QPS_RESET;
  if (!open_door(*qp, *id->own)) {
    close_door(*id);
    destroy(lock, qp);
    delete id;
    return fail(ENOMEM), nullptr;
  }
  world().ids[id->number] = id;
  return qp;
}

int ibv_destroy_qp(ibv_qp* given) {
  Lock lock(world().mutex);
  auto* const qp = static_cast<Qp*>(given);
  Id* const id = qp->id;
  flush(*id);
  unwatch(*id);
  close_door(*id);
  id->qp = nullptr;
  destroy(lock, qp);
  world().busy.erase(id);
  world().ids.erase(id->number);
  delete id;
  return 0;
}

int ibv_modify_qp(ibv_qp* given, ibv_qp_attr* attr, int mask) {
  const Lock lock(world().mutex);
  auto& qp = *static_cast<Qp*>(given);
  if (world().removed && attr->qp_state != IBV_QPS_ERR) return EIO;
  int error = 0;
  if (mask & IBV_QP_STATE)
    error = step(qp, *attr, mask);
  else if (mask & IBV_QP_MIN_RNR_TIMER)
    qp.not_ready_timer = attr->min_rnr_timer;
  wake_device();
  return error;
}
}
