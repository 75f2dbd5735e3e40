#include <algorithm>
#include <cerrno>
#include <utility>

#include "mock_verbs/objects.h"

// The half of a queue pair that does what the peer asks.
namespace mock {
namespace {

// Microseconds that a peer waits before it sends again: the values of IBV_QP_MIN_RNR_TIMER.
constexpr std::uint32_t kNotReadyUs[32] = {655360, 10,    20,    30,     40,     60,     80,     120,
                                           160,    240,   320,   480,    640,    960,    1280,   1920,
                                           2560,   3840,  5120,  7680,   10240,  15360,  20480,  30720,
                                           40960,  61440, 81920, 122880, 163840, 245760, 327680, 491520};

struct Answer {
  ibv_wc_status status = IBV_WC_SUCCESS;
  std::string bytes{};
};

bool immediate(const Header& header) {
  return header.opcode == IBV_WR_SEND_WITH_IMM || header.opcode == IBV_WR_RDMA_WRITE_WITH_IMM;
}
bool sends(const Header& header) {
  return header.opcode == IBV_WR_SEND || header.opcode == IBV_WR_SEND_WITH_IMM;
}
bool needs_receive(const Header& header) { return sends(header) || immediate(header); }

std::deque<Receive>& receives_of(Qp& qp) {
  return qp.srq ? static_cast<Srq*>(qp.srq)->receives : qp.receives;
}

// Takes the oldest receive, and fills it if the request brings bytes for it.
Answer receive(Qp& qp, const Request& request) {
  auto& queue = receives_of(qp);
  const Receive place = std::move(queue.front());
  queue.pop_front();
  ibv_wc wc{};
  wc.wr_id = place.id;
  wc.opcode = sends(request.header) ? IBV_WC_RECV : IBV_WC_RECV_RDMA_WITH_IMM;
  wc.byte_len = static_cast<std::uint32_t>(request.bytes.size());
  wc.status = IBV_WC_SUCCESS;
  if (immediate(request.header)) {
    wc.wc_flags = IBV_WC_WITH_IMM;
    wc.imm_data = request.header.immediate;
  }
  Answer answer;
  if (sends(request.header)) wc.status = scatter(qp, place.places, request.bytes, IBV_ACCESS_LOCAL_WRITE);
  if (wc.status == IBV_WC_LOC_LEN_ERR) answer.status = IBV_WC_REM_INV_REQ_ERR;
  if (wc.status == IBV_WC_LOC_PROT_ERR) answer.status = IBV_WC_REM_OP_ERR;
  complete(qp, true, wc, request.header.solicited != 0);
  return answer;
}

Answer update(const Header& header, std::byte* at) {
  auto* const word = reinterpret_cast<std::uint64_t*>(at);
  std::uint64_t old = 0;
  if (!copy(&old, word, sizeof old)) return {IBV_WC_REM_OP_ERR};
  if (header.opcode == IBV_WR_ATOMIC_FETCH_AND_ADD) {
    old = __atomic_fetch_add(word, header.compare, __ATOMIC_SEQ_CST);
  } else {
    old = header.compare;
    __atomic_compare_exchange_n(word, &old, header.swap, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
  }
  return {IBV_WC_SUCCESS, {reinterpret_cast<const char*>(&old), sizeof old}};
}

Answer reach(const Qp& qp, const Request& request) {
  const Header& header = request.header;
  const bool atomic =
      header.opcode == IBV_WR_ATOMIC_CMP_AND_SWP || header.opcode == IBV_WR_ATOMIC_FETCH_AND_ADD;
  const int right = atomic                              ? IBV_ACCESS_REMOTE_ATOMIC
                    : header.opcode == IBV_WR_RDMA_READ ? IBV_ACCESS_REMOTE_READ
                                                        : IBV_ACCESS_REMOTE_WRITE;
  const std::uint64_t length = atomic ? sizeof(std::uint64_t) : header.length;
  if (length == 0) return {};
  if (atomic && header.address % sizeof(std::uint64_t)) return {IBV_WC_REM_INV_REQ_ERR};
  const Mr* const mr = find_region(header.rkey, header.address, length, qp.pd, right);
  if (!mr || (qp.rights & static_cast<unsigned>(right)) == 0) return {IBV_WC_REM_ACCESS_ERR};
  std::byte* const at = mr->at(header.address);
  if (atomic) return update(header, at);
  if (header.opcode == IBV_WR_RDMA_READ) {
    Answer answer{.bytes = std::string(length, '\0')};
    if (!copy(answer.bytes.data(), at, length)) return {IBV_WC_REM_OP_ERR};
    return answer;
  }
  return {copy(at, request.bytes.data(), length) ? IBV_WC_SUCCESS : IBV_WC_REM_OP_ERR};
}

Answer perform(Qp& qp, const Request& request) {
  Answer answer;
  if (!sends(request.header)) answer = reach(qp, request);
  if (answer.status == IBV_WC_SUCCESS && needs_receive(request.header)) answer = receive(qp, request);
  return answer;
}

// Lets the first request wait for a receive. Returns whether it still may.
bool waits(Id& id, Qp& qp, Request& first, Clock::time_point now) {
  if (!first.not_ready_since) first.not_ready_since = now;
  if (qp.srq) static_cast<Srq*>(qp.srq)->waiting.insert(&qp);
  const auto until = gives_up(id);
  return !until || now < *until;
}

Receive receive_of(const ibv_recv_wr& wr) { return {wr.wr_id, {wr.sg_list, wr.sg_list + wr.num_sge}}; }

}  // namespace

std::optional<Clock::time_point> gives_up(const Id& id) {
  constexpr unsigned kForEver = 7;
  if (!id.qp || id.requests.empty() || !id.requests.front().not_ready_since) return {};
  const unsigned retries = id.peer.not_ready_retries;
  if (retries == kForEver) return {};
  const auto each =
      std::chrono::microseconds(kNotReadyUs[static_cast<const Qp*>(id.qp)->not_ready_timer % 32]);
  return *id.requests.front().not_ready_since + each * (retries + 1);
}

ibv_wc_status scatter(const Qp& qp, const std::vector<ibv_sge>& places, const std::string& bytes,
                      int rights) {
  std::uint64_t room = 0;
  for (const ibv_sge& place : places) room += place.length;
  if (bytes.size() > room) return IBV_WC_LOC_LEN_ERR;
  std::size_t at = 0;
  for (const ibv_sge& place : places) {
    const std::size_t part = std::min<std::size_t>(place.length, bytes.size() - at);
    if (part == 0) break;
    const Mr* const mr = find_region(place.lkey, place.addr, part, qp.pd, rights);
    if (!mr || !copy(mr->at(place.addr), bytes.data() + at, part)) return IBV_WC_LOC_PROT_ERR;
    at += part;
  }
  return IBV_WC_SUCCESS;
}

void serve(Id& id, Clock::time_point now) {
  while (!id.requests.empty()) {
    auto* const qp = static_cast<Qp*>(id.qp);
    Request& first = id.requests.front();
    Answer answer{.status = IBV_WC_RETRY_EXC_ERR};  // of a queue pair that does not work any more
    bool refused = false;
    if (qp && qp->state == IBV_QPS_RTS) {
      if (needs_receive(first.header) && receives_of(*qp).empty()) {
        if (waits(id, *qp, first, now)) return;
        answer.status = IBV_WC_RNR_RETRY_EXC_ERR;
      } else {
        answer = perform(*qp, first);
        refused = answer.status != IBV_WC_SUCCESS;
      }
    }
    const Header header{.kind = Kind::answer,
                        .status = static_cast<std::uint8_t>(answer.status),
                        .bytes = static_cast<std::uint32_t>(answer.bytes.size())};
    say(id, header, answer.bytes.data(), answer.bytes.size());
    id.requests.pop_front();
    if (refused) to_error(*qp);
  }
}

int post_receive(ibv_qp* of, ibv_recv_wr* wr, ibv_recv_wr** bad) {
  const Lock lock(world().mutex);
  Qp& qp = *static_cast<Qp*>(of);
  for (; wr; wr = wr->next) {
    *bad = wr;
    if (qp.srq || qp.state == IBV_QPS_RESET || static_cast<std::uint32_t>(wr->num_sge) > qp.cap.max_recv_sge)
      return EINVAL;
    if (qp.receives_used >= qp.cap.max_recv_wr) return ENOMEM;
    if (const int error = world().faults.refusal("post_recv")) return error;
    ++qp.receives_used;
    qp.receives.push_back(receive_of(*wr));
    if (qp.state == IBV_QPS_ERR) to_error(qp);
  }
  world().busy.insert(qp.id);
  if (!qp.id->requests.empty()) wake_device();
  return 0;
}

int post_shared_receive(ibv_srq* of, ibv_recv_wr* wr, ibv_recv_wr** bad) {
  const Lock lock(world().mutex);
  Srq& srq = *static_cast<Srq*>(of);
  for (; wr; wr = wr->next) {
    *bad = wr;
    if (srq.used >= srq.most) return ENOMEM;
    ++srq.used;
    srq.receives.push_back(receive_of(*wr));
  }
  for (Qp* const qp : std::exchange(srq.waiting, {})) world().busy.insert(qp->id);
  if (!world().busy.empty()) wake_device();
  return 0;
}

}  // namespace mock

using namespace mock;

extern "C" {

ibv_srq* ibv_create_srq(ibv_pd* pd, ibv_srq_init_attr* wanted) {
  const Lock lock(world().mutex);
  if (world().removed) return fail(EIO), nullptr;
  if (const int error = world().faults.refusal("create_srq")) return fail(error), nullptr;
  auto* const srq = new Srq{};
  srq->context = pd->context;
  srq->srq_context = wanted->srq_context;
  srq->pd = pd;
  srq->most = wanted->attr.max_wr;
  world().shared_receives.insert(srq);
  ++static_cast<Pd*>(pd)->users;
  return srq;
}

int ibv_destroy_srq(ibv_srq* of) {
  const Lock lock(world().mutex);
  auto* const srq = static_cast<Srq*>(of);
  if (srq->users != 0) return EBUSY;
  --static_cast<Pd*>(srq->pd)->users;
  world().shared_receives.erase(srq);
  delete srq;
  return 0;
}
}
