#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <utility>

#include "mock_verbs/objects.h"

namespace mock {
namespace {

void give_notice(Cq& cq) {
  cq.armed = false;
  if (!cq.channel) return;
  static_cast<Channel*>(cq.channel)->notices.push_back(&cq);
  ::eventfd_write(cq.channel->fd, 1);
}

void deliver(Cq& cq, const Cq::Entry& entry) {
  // A device stops with an overrun queue. Who makes queues that are too small shall see it at once.
  if (static_cast<int>(cq.entries.size()) >= cq.cqe) {
    std::fputs("mock verbs: a completion queue is overrun\n", stderr);
    std::abort();
  }
  cq.entries.push_back(entry);
  if (cq.armed && (!cq.only_solicited || entry.solicited || entry.wc.status != IBV_WC_SUCCESS))
    give_notice(cq);
}

}  // namespace

void complete(Qp& qp, bool receive, const ibv_wc& given, bool solicited) {
  ibv_wc wc = given;
  wc.qp_num = qp.qp_num;
  if (wc.status != IBV_WC_SUCCESS) {  // the other fields say nothing then, so they mislead
    wc.opcode = IBV_WC_TM_NO_TAG;
    wc.byte_len = 0xBAD0BAD0;
    wc.vendor_err = 0x77;
  }
  Cq& cq = *static_cast<Cq*>(receive ? qp.recv_cq : qp.send_cq);
  const std::uint32_t retires = receive ? 1 : std::exchange(qp.unretired, 0);
  const Cq::Entry entry{.wc = wc, .of = &qp, .retires = retires, .receive = receive, .solicited = solicited};
  const auto lateness = world().faults.lateness();
  const auto now = Clock::now();
  if (lateness.count() == 0 && qp.last_due <= now) return deliver(cq, entry);
  qp.last_due = std::max(qp.last_due, now + lateness);
  auto& delayed = world().delayed;
  const auto behind =
      std::ranges::find_if(delayed, [&](const Delayed& other) { return other.due > qp.last_due; });
  delayed.insert(behind, {qp.last_due, &cq, entry});
  wake_device();
}

void deliver_due(Clock::time_point now) {
  auto& delayed = world().delayed;
  while (!delayed.empty() && delayed.front().due <= now) {
    deliver(*delayed.front().to, delayed.front().entry);
    delayed.pop_front();
  }
  // A queue pair that has failed takes no shared receive any more, and has told of those that it took.
  std::erase_if(world().last, [&](const auto& failed) {
    Qp* const qp = failed.first;
    if (world().faults.last_receive_never || failed.second > now) return false;
    if (std::ranges::any_of(delayed, [&](const Delayed& late) { return late.entry.of == qp; })) return false;
    tell({.element = {.qp = qp}, .event_type = IBV_EVENT_QP_LAST_WQE_REACHED});
    return true;
  });
}

// Drivers drop what a queue pair has completed when it goes.
void forget_completions(Qp& qp) {
  world().last.erase(&qp);
  std::erase_if(world().async, [&](const ibv_async_event& event) { return queue_pair_of(event) == &qp; });
  world().delayed.remove_if([&](const Delayed& late) { return late.entry.of == &qp; });
  for (ibv_cq* const of : {qp.send_cq, qp.recv_cq}) {
    auto& entries = static_cast<Cq*>(of)->entries;
    for (const Cq::Entry& entry : entries)
      if (entry.of == &qp && entry.receive && qp.srq) --static_cast<Srq*>(qp.srq)->used;
    std::erase_if(entries, [&](const Cq::Entry& entry) { return entry.of == &qp; });
  }
}

int poll(ibv_cq* of, int most, ibv_wc* into) {
  const Lock lock(world().mutex);
  Cq& cq = *static_cast<Cq*>(of);
  int count = 0;
  for (; count < most && !cq.entries.empty(); ++count) {
    const Cq::Entry& entry = cq.entries.front();
    into[count] = entry.wc;
    if (!entry.receive)
      entry.of->sends_used -= entry.retires;
    else if (entry.of->srq)
      --static_cast<Srq*>(entry.of->srq)->used;
    else
      --entry.of->receives_used;
    cq.entries.pop_front();
  }
  return count;
}

int arm(ibv_cq* of, int only_solicited) {
  const Lock lock(world().mutex);
  Cq& cq = *static_cast<Cq*>(of);
  cq.only_solicited = only_solicited && (!cq.armed || cq.only_solicited);
  cq.armed = true;
  return 0;
}

}  // namespace mock

using namespace mock;

extern "C" {

ibv_comp_channel* ibv_create_comp_channel(ibv_context* context) {
  const Lock lock(world().mutex);
  if (const int error = world().faults.refusal("comp_channel")) return fail(error), nullptr;
  const int fd = ::eventfd(0, EFD_SEMAPHORE | EFD_CLOEXEC);
  if (fd < 0) return nullptr;
  auto* const channel = new Channel{};
  channel->context = context;
  channel->fd = fd;
  return channel;
}

int ibv_destroy_comp_channel(ibv_comp_channel* channel) {
  const Lock lock(world().mutex);
  if (channel->refcnt != 0) return EBUSY;
  ::close(channel->fd);
  delete static_cast<Channel*>(channel);
  return 0;
}

ibv_cq* ibv_create_cq(ibv_context* context, int room, void* cq_context, ibv_comp_channel* channel, int) {
  const Lock lock(world().mutex);
  if (world().removed) return fail(EIO), nullptr;
  if (room < 1 || std::cmp_greater(room, world().faults.max_cqe)) return fail(EINVAL), nullptr;
  if (const int error = world().faults.refusal("create_cq")) return fail(error), nullptr;
  auto* const cq = new Cq{};
  cq->context = context;
  cq->channel = channel;
  cq->cq_context = cq_context;
  cq->cqe = room;
  if (channel) ++channel->refcnt;
  world().completion_queues.insert(cq);
  return cq;
}

int ibv_resize_cq(ibv_cq* cq, int room) {
  const Lock lock(world().mutex);
  if (room < static_cast<int>(static_cast<Cq*>(cq)->entries.size())) return EINVAL;
  if (std::cmp_greater(room, world().faults.max_cqe)) return EINVAL;
  cq->cqe = room;
  return 0;
}

int ibv_destroy_cq(ibv_cq* of) {
  const Lock lock(world().mutex);
  auto* const cq = static_cast<Cq*>(of);
  if (cq->users != 0) return EBUSY;
  if (cq->told != cq->comp_events_completed) {
    std::fputs("mock verbs: a completion queue with unacknowledged notices would be waited for, for ever\n",
               stderr);
    std::abort();
  }
  if (cq->channel) {
    std::erase(static_cast<Channel*>(cq->channel)->notices, cq);
    --cq->channel->refcnt;
  }
  world().completion_queues.erase(cq);
  delete cq;
  return 0;
}

int ibv_get_cq_event(ibv_comp_channel* channel, ibv_cq** cq, void** cq_context) {
  for (;;) {
    eventfd_t one;
    if (::eventfd_read(channel->fd, &one) != 0) return -1;
    const Lock lock(world().mutex);
    auto& notices = static_cast<Channel*>(channel)->notices;
    if (notices.empty()) continue;  // its queue has gone
    Cq* const of = notices.front();
    notices.pop_front();
    ++of->told;
    *cq = of;
    *cq_context = of->cq_context;
    return 0;
  }
}

void ibv_ack_cq_events(ibv_cq* cq, unsigned count) {
  const Lock lock(world().mutex);
  cq->comp_events_completed += count;
}
}
