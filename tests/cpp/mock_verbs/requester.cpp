#include <algorithm>
#include <cerrno>
#include <utility>

#include "mock_verbs/objects.h"

// The half of a queue pair that sends requests and is told what became of them.
namespace mock {
namespace {

bool reads(ibv_wr_opcode opcode) {
  return opcode == IBV_WR_RDMA_READ || opcode == IBV_WR_ATOMIC_CMP_AND_SWP ||
         opcode == IBV_WR_ATOMIC_FETCH_AND_ADD;
}

ibv_wc_opcode told_as(ibv_wr_opcode opcode) {
  switch (opcode) {
    case IBV_WR_RDMA_WRITE:
    case IBV_WR_RDMA_WRITE_WITH_IMM:
      return IBV_WC_RDMA_WRITE;
    case IBV_WR_RDMA_READ:
      return IBV_WC_RDMA_READ;
    case IBV_WR_ATOMIC_CMP_AND_SWP:
      return IBV_WC_COMP_SWAP;
    case IBV_WR_ATOMIC_FETCH_AND_ADD:
      return IBV_WC_FETCH_ADD;
    default:
      return IBV_WC_SEND;
  }
}

std::uint64_t bytes_of(const std::vector<ibv_sge>& places) {
  std::uint64_t sum = 0;
  for (const ibv_sge& place : places) sum += place.length;
  return sum;
}

void end(Qp& qp, const Work& work, ibv_wc_status status) {
  ++qp.unretired;
  if (!qp.oldest_unretired) qp.oldest_unretired = work.id;
  if (status == IBV_WC_SUCCESS && !qp.all_signaled && !(work.flags & IBV_SEND_SIGNALED)) return;
  ibv_wc wc{};
  const bool vague = world().faults.vague_errors && status != IBV_WC_SUCCESS && status != IBV_WC_WR_FLUSH_ERR;
  wc.wr_id = vague ? *qp.oldest_unretired : work.id;
  qp.oldest_unretired.reset();
  wc.status = status;
  wc.opcode = told_as(work.opcode);
  wc.byte_len = static_cast<std::uint32_t>(bytes_of(work.places));
  complete(qp, false, wc);
}

// The bytes that go with a request.
ibv_wc_status gather(const Qp& qp, const Work& work, std::string& bytes) {
  if (reads(work.opcode)) return IBV_WC_SUCCESS;
  if (work.flags & IBV_SEND_INLINE) {
    bytes = work.inlined;
    return IBV_WC_SUCCESS;
  }
  bytes.resize(bytes_of(work.places));
  std::size_t at = 0;
  for (const ibv_sge& place : work.places) {
    if (place.length == 0) continue;
    const Mr* const mr = find_region(place.lkey, place.addr, place.length, qp.pd, 0);
    if (!mr || !copy(bytes.data() + at, mr->at(place.addr), place.length)) return IBV_WC_LOC_PROT_ERR;
    at += place.length;
  }
  return IBV_WC_SUCCESS;
}

// Sends a request, or knows its outcome without the peer.
void begin(Qp& qp, Work& work) {
  work.verdict = world().faults.judge(work.opcode);
  const bool done_by_peer = work.verdict == IBV_WC_SUCCESS || work.verdict == IBV_WC_RETRY_EXC_ERR;
  std::string bytes;
  ibv_wc_status local = gather(qp, work, bytes);
  const std::uint64_t length = bytes_of(work.places);
  world().longest = std::max(world().longest, length);
  if (length > world().faults.max_message) local = IBV_WC_LOC_LEN_ERR;
  if (!done_by_peer || local != IBV_WC_SUCCESS) {
    work.answer = local;
    return;
  }
  if (reads(work.opcode)) {
    if (qp.reads >= std::max<unsigned>(1, qp.id->peer.responder_resources)) {  // more than the peer serves
      work.answer = IBV_WC_REM_INV_REQ_ERR;
      return;
    }
    world().most_reads = std::max(world().most_reads, ++qp.reads);
  }
  if (world().faults.keeps(work.opcode)) return;
  work.header.bytes = static_cast<std::uint32_t>(bytes.size());
  say(*qp.id, work.header, bytes.data(), bytes.size());
}

// Tells outcomes in the order of the requests.
void settle(Qp& qp) {
  while (!qp.outstanding.empty() && qp.outstanding.front().answer) {
    const Work work = std::move(qp.outstanding.front());
    qp.outstanding.pop_front();
    const ibv_wc_status status = work.verdict != IBV_WC_SUCCESS ? work.verdict : *work.answer;
    end(qp, work, status);
    if (status != IBV_WC_SUCCESS) return to_error(qp);
  }
}

Work work_of(const ibv_send_wr& wr) {
  Work work{.id = wr.wr_id, .opcode = wr.opcode, .flags = wr.send_flags};
  work.places.assign(wr.sg_list, wr.sg_list + wr.num_sge);
  Header& header = work.header;
  header = {.kind = Kind::request,
            .opcode = static_cast<std::uint8_t>(wr.opcode),
            .solicited = (wr.send_flags & IBV_SEND_SOLICITED) != 0,
            .length = static_cast<std::uint32_t>(bytes_of(work.places)),
            .immediate = wr.imm_data};
  if (wr.opcode == IBV_WR_ATOMIC_CMP_AND_SWP || wr.opcode == IBV_WR_ATOMIC_FETCH_AND_ADD) {
    header.address = wr.wr.atomic.remote_addr;
    header.rkey = wr.wr.atomic.rkey;
    header.compare = wr.wr.atomic.compare_add;
    header.swap = wr.wr.atomic.swap;
  } else if (wr.opcode != IBV_WR_SEND && wr.opcode != IBV_WR_SEND_WITH_IMM) {
    header.address = wr.wr.rdma.remote_addr;
    header.rkey = wr.wr.rdma.rkey;
  }
  if (wr.send_flags & IBV_SEND_INLINE)
    for (const ibv_sge& place : work.places)
      work.inlined.append(reinterpret_cast<const char*>(place.addr), place.length);
  return work;
}

// As the drivers refuse a request at once: see ibv_post_send(3).
int refuses(const Qp& qp, const ibv_send_wr& wr) {
  if (qp.state != IBV_QPS_RTS && qp.state != IBV_QPS_ERR) return EINVAL;
  if (qp.sends_used >= qp.cap.max_send_wr) return ENOMEM;
  if (const int error = world().faults.refusal("post_send")) return error;
  if (wr.num_sge < 0 || static_cast<std::uint32_t>(wr.num_sge) > qp.cap.max_send_sge) return EINVAL;
  if (wr.opcode > IBV_WR_ATOMIC_FETCH_AND_ADD) return EOPNOTSUPP;
  std::uint64_t bytes = 0;
  for (int i = 0; i < wr.num_sge; ++i) bytes += wr.sg_list[i].length;
  if ((wr.send_flags & IBV_SEND_INLINE) && (bytes > qp.cap.max_inline_data || reads(wr.opcode)))
    return EINVAL;
  return 0;
}

}  // namespace

void advance(Qp& qp) {
  constexpr std::size_t kMostUnsent = 4u << 20;                     // bytes
  if (qp.id->own && !qp.id->own->joined && qp.id->fd >= 0) return;  // the peer has not said who it is
  const bool peer_gone = qp.id->fd < 0;
  if (peer_gone && qp.state == IBV_QPS_RTS && (!qp.waiting.empty() || !qp.outstanding.empty())) {
    // The device tries again, in vain.
    auto& first = qp.outstanding.empty() ? qp.waiting : qp.outstanding;
    const Work work = std::move(first.front());
    first.pop_front();
    end(qp, work, IBV_WC_RETRY_EXC_ERR);
    return to_error(qp);
  }
  while (qp.state == IBV_QPS_RTS && !qp.waiting.empty() && qp.id->out.size() - qp.id->sent < kMostUnsent) {
    Work& next = qp.waiting.front();
    if (!qp.outstanding.empty() && qp.outstanding.back().answer) break;  // it has failed, so nothing follows
    if (reads(next.opcode) && qp.reads >= std::max(1u, qp.id->begins)) break;
    if ((next.flags & IBV_SEND_FENCE) && qp.reads != 0) break;
    begin(qp, next);
    qp.outstanding.push_back(std::move(next));
    qp.waiting.pop_front();
    settle(qp);
  }
}

void on_answer(Qp& qp, const Header& header, const std::string& bytes) {
  if (qp.state != IBV_QPS_RTS) return;
  const auto work = std::ranges::find_if(qp.outstanding, [](const Work& each) { return !each.answer; });
  if (work == qp.outstanding.end()) return;
  work->answer = static_cast<ibv_wc_status>(header.status);
  if (reads(work->opcode)) {
    --qp.reads;
    // Over iWARP the peer's device writes the answer, by the key of the place, which has to let it.
    const int rights = IBV_ACCESS_LOCAL_WRITE | (world().faults.iwarp ? IBV_ACCESS_REMOTE_WRITE : 0);
    if (work->answer == IBV_WC_SUCCESS) work->answer = scatter(qp, work->places, bytes, rights);
    if (work->answer == IBV_WC_SUCCESS) world().read += bytes.size();
  } else if (told_as(work->opcode) == IBV_WC_RDMA_WRITE && work->answer == IBV_WC_SUCCESS) {
    world().written += bytes_of(work->places);
  }
  settle(qp);
}

void to_error(Qp& qp) {
  const ibv_qp_state before = std::exchange(qp.state, IBV_QPS_ERR);
  if (before == IBV_QPS_RESET) return;
  if (before != IBV_QPS_ERR && qp.srq)
    world().last[&qp] = Clock::now() + std::chrono::microseconds(world().faults.last_receive_late_us);
  qp.reads = 0;
  for (auto* const queue : {&qp.outstanding, &qp.waiting})
    for (const Work& work : std::exchange(*queue, {})) end(qp, work, IBV_WC_WR_FLUSH_ERR);
  for (const Receive& receive : std::exchange(qp.receives, {})) {
    ibv_wc wc{};
    wc.wr_id = receive.id;
    wc.status = IBV_WC_WR_FLUSH_ERR;
    complete(qp, true, wc);
  }
  world().busy.insert(qp.id);
}

int post_send(ibv_qp* of, ibv_send_wr* wr, ibv_send_wr** bad) {
  const Lock lock(world().mutex);
  Qp& qp = *static_cast<Qp*>(of);
  int refused = 0;
  for (; wr && refused == 0; wr = refused ? wr : wr->next) {
    refused = refuses(qp, *wr);
    if (refused) {
      *bad = wr;
      break;
    }
    ++qp.sends_used;
    if (qp.state == IBV_QPS_ERR)
      end(qp, work_of(*wr), IBV_WC_WR_FLUSH_ERR);
    else
      qp.waiting.push_back(work_of(*wr));
    if (world().faults.removes()) remove_device();
  }
  world().busy.insert(qp.id);
  wake_device();
  return refused;
}

}  // namespace mock
