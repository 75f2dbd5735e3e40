#include "providers/verbs/device/library.h"

#include <dlfcn.h>

#include <atomic>

#include "base/locks/fork_gate.h"
#include "base/locks/mutex.h"

namespace fab::verbs {
namespace {

struct Opened {
  Library library{};
  std::string problem;
  bool usable = false;
};

// The libraries stay open until the process ends.
Opened open_libraries() {
  Opened opened;
  const auto open = [&](const char* name, const char* package) -> void* {
    void* handle = ::dlopen(name, RTLD_NOW | RTLD_LOCAL);
    if (handle) return handle;
    const char* const why = ::dlerror();  // null where something stands in for dlopen()
    opened.problem = std::string(name) + " cannot be opened (" + (why ? why : "no reason given") +
                     "); install it (Debian: " + package + ")";
    return nullptr;
  };
  void* const verbs = open("libibverbs.so.1", "libibverbs1 ibverbs-providers");
  void* const cm = verbs ? open("librdmacm.so.1", "librdmacm1") : nullptr;
  if (!cm) return opened;
  const auto load = [&](void* handle, const char* name, auto& function) {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(::dlsym(handle, name));
    if (!function)
      opened.problem = std::string("the rdma-core libraries have no ") + name + "; they are too old";
  };
  Library& all = opened.library;
  load(verbs, "ibv_fork_init", all.fork_init);
  all.is_fork_initialized =
      reinterpret_cast<decltype(all.is_fork_initialized)>(::dlsym(verbs, "ibv_is_fork_initialized"));
  load(verbs, "ibv_get_device_name", all.get_device_name);
  load(verbs, "ibv_query_device", all.query_device);
  load(verbs, "ibv_query_port", all.query_port);
  load(verbs, "ibv_alloc_pd", all.alloc_pd);
  load(verbs, "ibv_dealloc_pd", all.dealloc_pd);
  load(verbs, "ibv_reg_mr", all.reg_mr);
  all.reg_mr_iova2 = reinterpret_cast<decltype(all.reg_mr_iova2)>(::dlsym(verbs, "ibv_reg_mr_iova2"));
  all.reg_dmabuf_mr = reinterpret_cast<decltype(all.reg_dmabuf_mr)>(::dlsym(verbs, "ibv_reg_dmabuf_mr"));
  load(verbs, "ibv_dereg_mr", all.dereg_mr);
  load(verbs, "ibv_create_comp_channel", all.create_comp_channel);
  load(verbs, "ibv_destroy_comp_channel", all.destroy_comp_channel);
  load(verbs, "ibv_create_cq", all.create_cq);
  load(verbs, "ibv_resize_cq", all.resize_cq);
  load(verbs, "ibv_destroy_cq", all.destroy_cq);
  load(verbs, "ibv_create_srq", all.create_srq);
  load(verbs, "ibv_destroy_srq", all.destroy_srq);
  load(verbs, "ibv_create_qp", all.create_raw_qp);
  load(verbs, "ibv_destroy_qp", all.destroy_raw_qp);
  load(verbs, "ibv_modify_qp", all.modify_qp);
  load(verbs, "ibv_get_cq_event", all.get_cq_event);
  load(verbs, "ibv_ack_cq_events", all.ack_cq_events);
  load(verbs, "ibv_get_async_event", all.get_async_event);
  load(verbs, "ibv_ack_async_event", all.ack_async_event);
  load(cm, "rdma_get_devices", all.get_devices);
  load(cm, "rdma_free_devices", all.free_devices);
  load(cm, "rdma_create_event_channel", all.create_event_channel);
  load(cm, "rdma_destroy_event_channel", all.destroy_event_channel);
  load(cm, "rdma_create_id", all.create_id);
  load(cm, "rdma_destroy_id", all.destroy_id);
  load(cm, "rdma_bind_addr", all.bind_addr);
  load(cm, "rdma_listen", all.listen);
  load(cm, "rdma_get_src_port", all.get_src_port);
  load(cm, "rdma_resolve_addr", all.resolve_addr);
  load(cm, "rdma_resolve_route", all.resolve_route);
  load(cm, "rdma_create_qp", all.create_qp);
  load(cm, "rdma_destroy_qp", all.destroy_qp);
  load(cm, "rdma_connect", all.connect);
  load(cm, "rdma_accept", all.accept);
  load(cm, "rdma_reject", all.reject);
  load(cm, "rdma_disconnect", all.disconnect);
  load(cm, "rdma_get_cm_event", all.get_cm_event);
  load(cm, "rdma_ack_cm_event", all.ack_cm_event);
  load(cm, "rdma_set_option", all.set_option);
  opened.usable = opened.problem.empty();
  // On kernels that do not handle fork() by themselves, a fork would otherwise move memory away from the
  // devices. A process that has registered memory already cannot be protected; `pyfab doctor` tells of that.
  if (opened.usable) all.fork_init();
  return opened;
}

// Tries again after a failure, because opening may work later: when a descriptor is free again, for instance.
class Libraries {
 public:
  const Library* find() noexcept {
    if (const Library* library = usable_.load(std::memory_order_acquire)) return library;
    const ForkGate gate;
    const LockGuard lock(mutex_);
    if (opened_.usable) return &opened_.library;
    opened_ = open_libraries();
    if (!opened_.usable) return nullptr;
    usable_.store(&opened_.library, std::memory_order_release);
    return &opened_.library;
  }
  std::string problem() {
    const ForkGate gate;
    const LockGuard lock(mutex_);
    return opened_.problem;
  }

 private:
  Mutex mutex_ FAB_ACQUIRED_AFTER(fork_gate);
  Opened opened_ FAB_GUARDED_BY(mutex_);
  std::atomic<const Library*> usable_{nullptr};
};

Libraries& libraries() noexcept {
  static constinit MadeOnce<Libraries> all;
  return all.get([] { return Libraries(); });
}

}  // namespace

const Library* find_library() noexcept { return libraries().find(); }
bool fork_needs_nothing() noexcept {
  constexpr int kUnneeded = 2;  // IBV_FORK_UNNEEDED
  const Library* const library = find_library();
  return library && library->is_fork_initialized && library->is_fork_initialized() == kUnneeded;
}
std::string library_problem() { return libraries().problem(); }

}  // namespace fab::verbs
