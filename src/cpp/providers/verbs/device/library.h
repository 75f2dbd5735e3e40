#pragma once

#include <infiniband/verbs.h>
#include <rdma/rdma_cma.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

namespace fab::verbs {

// The functions of libibverbs and librdmacm that are used here. The libraries are opened on first use, so
// that a build with verbs runs on machines without them. Inline functions of the headers (posting, polling)
// need no entry.
struct Library {
  decltype(&::ibv_fork_init) fork_init;
  // Null if rdma-core is older than 35. Older headers do not declare what it returns.
  int (*is_fork_initialized)();
  decltype(&::ibv_get_device_name) get_device_name;
  decltype(&::ibv_query_device) query_device;
  decltype(&::ibv_query_port) query_port;
  decltype(&::ibv_alloc_pd) alloc_pd;
  decltype(&::ibv_dealloc_pd) dealloc_pd;
  decltype(&::ibv_reg_mr) reg_mr;
  // Null if rdma-core is older than 28.
  decltype(&::ibv_reg_mr_iova2) reg_mr_iova2;
  // Null if rdma-core is older than 34. Older headers do not declare it, so its type is written out.
  ibv_mr* (*reg_dmabuf_mr)(ibv_pd* pd, std::uint64_t offset, std::size_t length, std::uint64_t iova, int fd,
                           int access);
  decltype(&::ibv_dereg_mr) dereg_mr;
  decltype(&::ibv_create_comp_channel) create_comp_channel;
  decltype(&::ibv_destroy_comp_channel) destroy_comp_channel;
  decltype(&::ibv_create_cq) create_cq;
  decltype(&::ibv_resize_cq) resize_cq;
  decltype(&::ibv_destroy_cq) destroy_cq;
  decltype(&::ibv_create_srq) create_srq;
  decltype(&::ibv_destroy_srq) destroy_srq;
  decltype(&::ibv_create_qp) create_raw_qp;
  decltype(&::ibv_destroy_qp) destroy_raw_qp;
  decltype(&::ibv_modify_qp) modify_qp;
  decltype(&::ibv_get_cq_event) get_cq_event;
  decltype(&::ibv_ack_cq_events) ack_cq_events;
  decltype(&::ibv_get_async_event) get_async_event;
  decltype(&::ibv_ack_async_event) ack_async_event;

  decltype(&::rdma_get_devices) get_devices;
  decltype(&::rdma_free_devices) free_devices;
  decltype(&::rdma_create_event_channel) create_event_channel;
  decltype(&::rdma_destroy_event_channel) destroy_event_channel;
  decltype(&::rdma_create_id) create_id;
  decltype(&::rdma_destroy_id) destroy_id;
  decltype(&::rdma_bind_addr) bind_addr;
  decltype(&::rdma_listen) listen;
  decltype(&::rdma_get_src_port) get_src_port;
  decltype(&::rdma_resolve_addr) resolve_addr;
  decltype(&::rdma_resolve_route) resolve_route;
  decltype(&::rdma_create_qp) create_qp;
  decltype(&::rdma_destroy_qp) destroy_qp;
  decltype(&::rdma_connect) connect;
  decltype(&::rdma_accept) accept;
  decltype(&::rdma_reject) reject;
  decltype(&::rdma_disconnect) disconnect;
  decltype(&::rdma_get_cm_event) get_cm_event;
  decltype(&::rdma_ack_cm_event) ack_cm_event;
  decltype(&::rdma_set_option) set_option;
};

// Null if the libraries cannot be used; then library_problem() says why, and what to do.
const Library* find_library() noexcept;
std::string library_problem();
// Whether a child of fork() has copies of registered memory, and the parent keeps what the devices know.
bool fork_needs_nothing() noexcept;
// For code that holds an object of the libraries, which are open then.
inline const Library& library() noexcept { return *find_library(); }

// Owning pointers to the objects of the two libraries.
template <auto Member>
struct Destroy {
  void operator()(auto* object) const noexcept { (library().*Member)(object); }
};
using OwnPd = std::unique_ptr<ibv_pd, Destroy<&Library::dealloc_pd>>;
using OwnMr = std::unique_ptr<ibv_mr, Destroy<&Library::dereg_mr>>;
using OwnCq = std::unique_ptr<ibv_cq, Destroy<&Library::destroy_cq>>;
using OwnSrq = std::unique_ptr<ibv_srq, Destroy<&Library::destroy_srq>>;
using OwnCompletionChannel = std::unique_ptr<ibv_comp_channel, Destroy<&Library::destroy_comp_channel>>;
using OwnEventChannel = std::unique_ptr<rdma_event_channel, Destroy<&Library::destroy_event_channel>>;
// An id whose connection is not made by rdma_cm (exchange/exchange.h). The rest of the provider uses it as
// any other. It has no event channel, by which it is told from those of rdma_cm.
struct OtherId : rdma_cm_id {
  OtherId() noexcept : rdma_cm_id{} {}
  virtual ~OtherId() = default;
  OtherId(const OtherId&) = delete;
  OtherId& operator=(const OtherId&) = delete;
};
struct DestroyId {
  void operator()(rdma_cm_id* id) const noexcept {
    if (!id->channel) return delete static_cast<OtherId*>(id);
    if (id->qp) library().destroy_qp(id);
    library().destroy_id(id);
  }
};
using OwnId = std::unique_ptr<rdma_cm_id, DestroyId>;  // owns its queue pair too

}  // namespace fab::verbs
