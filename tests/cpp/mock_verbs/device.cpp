#include <pthread.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <utility>

#include "mock_verbs/objects.h"

namespace mock {

int poll(ibv_cq* of, int most, ibv_wc* into);
int arm(ibv_cq* of, int only_solicited);
int post_send(ibv_qp* of, ibv_send_wr* wr, ibv_send_wr** bad);
int post_receive(ibv_qp* of, ibv_recv_wr* wr, ibv_recv_wr** bad);
int post_shared_receive(ibv_srq* of, ibv_recv_wr* wr, ibv_recv_wr** bad);

namespace {

constexpr char kName[] = "mock0";

int describe(ibv_context*, std::uint8_t port, ibv_port_attr* attr, std::size_t length) {
  const Lock lock(world().mutex);
  if (port != 1 || world().removed) return EINVAL;
  if (const int error = world().faults.refusal("query_port")) return error;
  ibv_port_attr told{};
  told.state = static_cast<ibv_port_state>(world().faults.port_state);
  told.max_mtu = told.active_mtu = IBV_MTU_4096;
  told.gid_tbl_len = 1;
  told.max_msg_sz = static_cast<std::uint32_t>(world().faults.max_message);
  told.active_width = 2;
  told.active_speed = 4;
  const bool by_lid = world().reached == Faults::Reached::by_lid;
  told.link_layer = by_lid || world().faults.infiniband ? IBV_LINK_LAYER_INFINIBAND : IBV_LINK_LAYER_ETHERNET;
  if (by_lid) told.lid = kLid;
  std::memcpy(attr, &told, std::min(length, sizeof told));
  return 0;
}

int describe_more(ibv_context*, const ibv_query_device_ex_input*, ibv_device_attr_ex* attr, std::size_t) {
  const Lock lock(world().mutex);
  *attr = {};
  attr->odp_caps.general_caps = world().faults.odp ? IBV_ODP_SUPPORT : 0;
  attr->odp_caps.per_transport_caps.rc_odp_caps = static_cast<std::uint32_t>(world().faults.odp);
  return 0;
}

// A child of fork() has the memory of its parent's device, and no thread that is one. What it inherited of
// the sockets would keep the parent's connections alive.
void after_fork() {
  World& all = world();
  for (const auto& [number, id] : all.ids) {
    if (id->own && id->own->door >= 0 && id->own->door != id->fd) ::close(id->own->door);
    if (id->own) id->own->door = -1;
    if (id->fd >= 0) ::close(std::exchange(id->fd, -1));
  }
  ::close(std::exchange(all.poller, -1));
  ::close(std::exchange(all.wake, -1));
  all.removed = all.forked = true;
  all.mutex.unlock();
}

void open_device(World& all) {
  all.opened = true;
  const char* const text = std::getenv("PYFAB_MOCK_VERBS");
  if (text && !all.faults.set(text)) {
    std::fprintf(
        stderr, "mock verbs: PYFAB_MOCK_VERBS is \"%s\", which tests/cpp/mock_verbs/faults.h does not know\n",
        text);
    std::abort();
  }
  all.reached = all.faults.reached;
  std::strcpy(all.device.name, kName);
  all.device.node_type = all.faults.iwarp ? IBV_NODE_RNIC : IBV_NODE_CA;
  all.device.transport_type = all.faults.iwarp ? IBV_TRANSPORT_IWARP : IBV_TRANSPORT_IB;
  all.context.sz = sizeof all.context;
  all.context.query_port = describe;
  all.context.query_device_ex = describe_more;
  ibv_context& context = all.context.context;
  context.device = &all.device;
  context.abi_compat = __VERBS_ABI_IS_EXTENDED;
  context.num_comp_vectors = 1;
  context.cmd_fd = -1;
  context.async_fd = ::eventfd(0, EFD_SEMAPHORE | EFD_CLOEXEC);
  context.ops.poll_cq = poll;
  context.ops.req_notify_cq = arm;
  context.ops.post_send = post_send;
  context.ops.post_recv = post_receive;
  context.ops.post_srq_recv = post_shared_receive;
  ::pthread_atfork([] { world().mutex.lock(); }, [] { world().mutex.unlock(); }, after_fork);
  start_device();
}

}  // namespace

World& world() {
  static World* const all = new World;
  return *all;
}

int fail(int error) {
  errno = error;
  return -1;
}

void wake_device() { ::eventfd_write(world().wake, 1); }

Qp* queue_pair_of(const ibv_async_event& event) {
  const bool of_one =
      event.event_type == IBV_EVENT_QP_LAST_WQE_REACHED || event.event_type == IBV_EVENT_QP_FATAL;
  return of_one ? static_cast<Qp*>(event.element.qp) : nullptr;
}

void tell(const ibv_async_event& event) {
  world().async.push_back(event);
  ::eventfd_write(world().context.context.async_fd, 1);
}

// Every connection ends, and work requests are flushed: the device does nothing any more.
void remove_device() {
  World& all = world();
  all.removed = true;
  tell({.element = {}, .event_type = IBV_EVENT_DEVICE_FATAL});
  for (const auto& [number, id] : all.ids) {
    if (id->qp) to_error(*static_cast<Qp*>(id->qp));
    unwatch(*id);
    id->state = Id::State::closed;
    if (id->verbs) tell(*id, RDMA_CM_EVENT_DEVICE_REMOVAL);
  }
}

}  // namespace mock

using namespace mock;

extern "C" {

ibv_context** rdma_get_devices(int* count) {
  const Lock lock(world().mutex);
  if (!world().opened) open_device(world());
  if (const int error = world().faults.refusal("get_devices")) return fail(error), nullptr;
  auto** const list = static_cast<ibv_context**>(std::calloc(2, sizeof(ibv_context*)));
  if (!world().removed) list[0] = &world().context.context;
  if (count) *count = world().removed ? 0 : 1;
  return list;
}

void rdma_free_devices(ibv_context** list) { std::free(list); }

int ibv_fork_init() { return 0; }

ibv_fork_status ibv_is_fork_initialized() {
  const Lock lock(world().mutex);
  return static_cast<ibv_fork_status>(world().faults.fork_status);
}

const char* ibv_get_device_name(ibv_device* device) { return device->name; }

int ibv_query_device(ibv_context*, ibv_device_attr* attr) {
  const Lock lock(world().mutex);
  if (world().removed) return EIO;
  if (const int error = world().faults.refusal("query_device")) return error;
  const Faults& faults = world().faults;
  *attr = {};
  attr->max_mr_size = faults.max_mr_size;
  attr->vendor_id = static_cast<std::uint32_t>(faults.vendor);
  attr->page_size_cap = 4096;
  attr->max_qp = attr->max_cq = attr->max_pd = attr->max_srq = 1 << 16;
  attr->max_mr = static_cast<int>(std::min<std::uint64_t>(faults.mr_limit, INT32_MAX));
  attr->max_qp_wr = attr->max_srq_wr = 1 << 14;
  attr->max_sge = attr->max_srq_sge = 16;
  attr->max_cqe = static_cast<int>(faults.max_cqe);
  attr->max_qp_rd_atom = static_cast<int>(faults.reads_served);
  attr->max_qp_init_rd_atom = static_cast<int>(faults.reads_begun);
  attr->atomic_cap = IBV_ATOMIC_HCA;
  attr->phys_port_cnt = 1;
  return 0;
}

int ibv_query_port(ibv_context* context, std::uint8_t port, _compat_ibv_port_attr* attr) {
  return describe(context, port, reinterpret_cast<ibv_port_attr*>(attr), sizeof(ibv_port_attr));
}

int ibv_get_async_event(ibv_context* context, ibv_async_event* event) {
  for (;;) {
    eventfd_t one;
    if (::eventfd_read(context->async_fd, &one) != 0) return -1;
    const Lock lock(world().mutex);
    auto& events = world().async;
    if (events.empty()) continue;  // its queue pair has gone
    *event = events.front();
    events.pop_front();
    if (Qp* const qp = queue_pair_of(*event)) ++qp->unacknowledged;
    return 0;
  }
}

void ibv_ack_async_event(ibv_async_event* event) {
  const Lock lock(world().mutex);
  if (Qp* const qp = queue_pair_of(*event)) --qp->unacknowledged;
  world().acknowledged.notify_all();
}

// For tests: what goes wrong from now on, in place of what did. A device that was removed is there again.
// Returns 0, or -1 if the faults cannot be read.
int mock_verbs_set(const char* faults) {
  const Lock lock(world().mutex);
  if (!world().faults.set(faults)) return -1;
  world().faults_changed.notify_all();
  world().removed = world().forked;
  return 0;
}

// For tests: lets the device tell something by itself: "port_err", "port_active", "gid_change" or
// "device_fatal"; "qp_fatal", "cq_err" or "srq_err" of each object of that kind. Returns -1 for other names.
int mock_verbs_tell(const char* what) {
  const Lock lock(world().mutex);
  const std::string name = what;
  const std::map<std::string, ibv_event_type> of_device = {{"port_err", IBV_EVENT_PORT_ERR},
                                                           {"port_active", IBV_EVENT_PORT_ACTIVE},
                                                           {"gid_change", IBV_EVENT_GID_CHANGE},
                                                           {"device_fatal", IBV_EVENT_DEVICE_FATAL}};
  if (const auto found = of_device.find(name); found != of_device.end())
    return tell({.element = {.port_num = 1}, .event_type = found->second}), 0;
  if (name == "srq_err") {
    for (Srq* const srq : world().shared_receives)
      tell({.element = {.srq = srq}, .event_type = IBV_EVENT_SRQ_ERR});
    return 0;
  }
  std::set<ibv_cq*> queues;
  for (const auto& [number, id] : world().ids) {
    if (!id->qp) continue;
    queues.insert(id->qp->send_cq);
    if (name != "qp_fatal") continue;
    to_error(*static_cast<Qp*>(id->qp));
    tell({.element = {.qp = id->qp}, .event_type = IBV_EVENT_QP_FATAL});
  }
  wake_device();
  if (name == "cq_err")
    for (ibv_cq* const cq : queues) tell({.element = {.cq = cq}, .event_type = IBV_EVENT_CQ_ERR});
  return name == "cq_err" || name == "qp_fatal" ? 0 : -1;
}

// How many faults have been injected into requests since the last mock_verbs_set().
std::uint64_t mock_verbs_injected() {
  const Lock lock(world().mutex);
  return world().faults.injected();
}

// Objects of this process: "pd", "cq", "qp", "mr" or "cm_id"; "held" for regions that hold_mr holds up;
// "shared_receive" for the receives that the device has of shared queues. "most_reads": how many reads and
// atomics a queue pair has had under way; "longest": bytes of a request; "longest_writable": of a region that
// peers may write; "relaxed": registrations so far with relaxed ordering; "read", "written": that reads and
// writes have moved; "traffic_class", "ack_timeout", "retries": that were last asked for. -1 for other names.
int mock_verbs_objects(const char* what) {
  const Lock lock(world().mutex);
  const World& all = world();
  const std::string name = what;
  if (name == "pd") return all.domains;
  if (name == "cq") return static_cast<int>(all.completion_queues.size());
  if (name == "qp") return all.queue_pairs;
  if (name == "mr") return static_cast<int>(all.regions.size());
  int receives = 0;
  for (const Srq* const srq : all.shared_receives) receives += static_cast<int>(srq->receives.size());
  if (name == "shared_receive") return receives;
  if (name == "traffic_class") return all.traffic_class;
  if (name == "ack_timeout") return all.ack_timeout;
  if (name == "retries") return all.retries;
  if (name == "longest") return static_cast<int>(all.longest);
  if (name == "read") return static_cast<int>(all.read);
  if (name == "written") return static_cast<int>(all.written);
  if (name == "relaxed") return all.relaxed;
  if (name == "longest_writable") return static_cast<int>(all.longest_writable);
  if (name == "most_reads") return static_cast<int>(all.most_reads);
  if (name == "held") return all.held;
  if (name == "cm_id") return static_cast<int>(all.ids.size());
  return -1;
}
}
