#include "failing_calls/device_calls.h"

#if FAB_HAS_VERBS
#include <dlfcn.h>
#include <infiniband/verbs.h>
#include <rdma/rdma_cma.h>

#include <cerrno>
#include <string_view>
#include <type_traits>

#include "failing_calls/calls.h"

namespace fab::test {
namespace {

// Calls `real`, or fails as functions of this name do.
template <class Function, class... Arguments>
auto call(const char* name, Function real, Arguments... arguments) {
  using Result = decltype(real(arguments...));
  const DeviceCode device;
  if constexpr (std::is_void_v<Result>) {
    real(arguments...);
  } else {
    if (!call_fails(name)) return real(arguments...);
    if constexpr (std::is_pointer_v<Result>)
      return Result{nullptr};
    else
      return static_cast<Result>(std::string_view(name).starts_with("rdma_") ? -1 : errno);
  }
}

// Functions that are called through the context of a device.
decltype(ibv_context_ops::post_send) real_post_send;
decltype(ibv_context_ops::post_recv) real_post_recv;
decltype(ibv_context_ops::post_srq_recv) real_post_srq_recv;
decltype(ibv_context_ops::poll_cq) real_poll_cq;
decltype(ibv_context_ops::req_notify_cq) real_req_notify_cq;

template <class Function>
void replace(Function& where, Function& real, Function by) {
  if (where == by) return;
  real = where;
  where = by;
}

void replace_all(ibv_context_ops& all) {
  const auto with = [](auto& where, auto& real, auto by) {
    replace(where, real, static_cast<std::remove_reference_t<decltype(where)>>(by));
  };
  with(all.post_send, real_post_send,
       [](auto... of) { return call("ibv_post_send", real_post_send, of...); });
  with(all.post_recv, real_post_recv,
       [](auto... of) { return call("ibv_post_recv", real_post_recv, of...); });
  with(all.post_srq_recv, real_post_srq_recv,
       [](auto... of) { return call("ibv_post_srq_recv", real_post_srq_recv, of...); });
  with(all.poll_cq, real_poll_cq, [](auto... of) { return call("ibv_poll_cq", real_poll_cq, of...); });
  with(all.req_notify_cq, real_req_notify_cq,
       [](auto... of) { return call("ibv_req_notify_cq", real_req_notify_cq, of...); });
}

ibv_context** get_devices(int* count) {
  static const auto real =
      reinterpret_cast<decltype(&::rdma_get_devices)>(::dlsym(RTLD_DEFAULT, "rdma_get_devices"));
  ibv_context** const devices = call("rdma_get_devices", real, count);
  for (int i = 0; devices && i < *count; ++i) replace_all(devices[i]->ops);
  return devices;
}

}  // namespace

void* device_call(const char* name, void* real_one) noexcept {
  if (!real_one) return nullptr;
  if (std::string_view(name) == "rdma_get_devices") return reinterpret_cast<void*>(&get_devices);
#define FAB_DEVICE(function)                                                             \
  if (std::string_view(name) == #function) {                                             \
    static decltype(&::function) real;                                                   \
    real = reinterpret_cast<decltype(real)>(real_one);                                   \
    const decltype(real) ours = [](auto... of) { return call(#function, real, of...); }; \
    return reinterpret_cast<void*>(ours);                                                \
  }
  FAB_DEVICE(ibv_query_device)
  FAB_DEVICE(ibv_query_port)
  FAB_DEVICE(ibv_alloc_pd)
  FAB_DEVICE(ibv_dealloc_pd)
  FAB_DEVICE(ibv_reg_mr)
  FAB_DEVICE(ibv_reg_mr_iova2)
  FAB_DEVICE(ibv_dereg_mr)
  FAB_DEVICE(ibv_create_comp_channel)
  FAB_DEVICE(ibv_destroy_comp_channel)
  FAB_DEVICE(ibv_create_cq)
  FAB_DEVICE(ibv_resize_cq)
  FAB_DEVICE(ibv_destroy_cq)
  FAB_DEVICE(ibv_create_srq)
  FAB_DEVICE(ibv_destroy_srq)
  FAB_DEVICE(ibv_modify_qp)
  FAB_DEVICE(ibv_get_cq_event)
  FAB_DEVICE(ibv_ack_cq_events)
  FAB_DEVICE(rdma_create_event_channel)
  FAB_DEVICE(rdma_destroy_event_channel)
  FAB_DEVICE(rdma_create_id)
  FAB_DEVICE(rdma_destroy_id)
  FAB_DEVICE(rdma_bind_addr)
  FAB_DEVICE(rdma_listen)
  FAB_DEVICE(rdma_resolve_addr)
  FAB_DEVICE(rdma_resolve_route)
  FAB_DEVICE(rdma_create_qp)
  FAB_DEVICE(rdma_destroy_qp)
  FAB_DEVICE(rdma_connect)
  FAB_DEVICE(rdma_accept)
  FAB_DEVICE(rdma_reject)
  FAB_DEVICE(rdma_disconnect)
  FAB_DEVICE(rdma_get_cm_event)
  FAB_DEVICE(rdma_ack_cm_event)
  FAB_DEVICE(rdma_set_option)
#undef FAB_DEVICE
  return real_one;
}

int device_objects() noexcept {
  const auto count = reinterpret_cast<int (*)(const char*)>(::dlsym(RTLD_DEFAULT, "mock_verbs_objects"));
  int all = 0;
  if (count)
    for (const char* const kind : {"pd", "cq", "qp", "mr", "cm_id"}) all += count(kind);
  return all;
}

}  // namespace fab::test
#else
namespace fab::test {

void* device_call(const char*, void* real) noexcept { return real; }
int device_objects() noexcept { return 0; }

}  // namespace fab::test
#endif
