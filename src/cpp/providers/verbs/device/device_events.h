#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <unordered_map>
#include <vector>

#include "base/fd.h"
#include "base/locks/mutex.h"
#include "base/network/ready_call.h"
#include "base/queues/linked_list.h"
#include "providers/verbs/device/device.h"

namespace fab::verbs {

class EndpointEvents;

struct ToldOf;  // names the list of queue pairs that something was told of

// A queue pair of which its device may tell something. EndpointEvents calls it under the context's lock; it
// may destroy itself there. It is not watched any more before the queue pair is destroyed.
class WatchedQueuePair : public Linked<ToldOf> {
 public:
  WatchedQueuePair() noexcept = default;
  virtual ~WatchedQueuePair() = default;
  WatchedQueuePair(const WatchedQueuePair&) = delete;
  WatchedQueuePair& operator=(const WatchedQueuePair&) = delete;
  virtual void on_last_receive() noexcept = 0;  // it takes no shared receive any more
  virtual void on_broken() noexcept = 0;        // it has failed, and does nothing any more

 private:
  friend class DeviceEvents;
  friend class EndpointEvents;
  EndpointEvents* endpoint_ = nullptr;  // while it is watched
  bool last_receive_ = false, broken_ = false;
};

// What a device tells by itself (ibv_get_async_event(3)). rdma_cm opens a device once for a process, so all
// endpoints there share the descriptor from which it is read. The context that is driven first reads an
// event, notes it for the endpoint that it is about, and acknowledges it at once: a queue pair is not
// destroyed before that. The mutex is the innermost lock, and nothing is called with it. Thread-safe.
class DeviceEvents final {
 public:
  // The one of the device. Throws std::system_error.
  static std::shared_ptr<DeviceEvents> of(const Device& device);
  explicit DeviceEvents(ibv_context& context);

  int descriptor() const noexcept { return context_.async_fd; }
  // Reads all there is. Returns false if nothing will come any more, because the device was removed; its
  // descriptor stays ready then.
  bool read() noexcept;

 private:
  friend class EndpointEvents;
  void note(const ibv_async_event& event) noexcept FAB_REQUIRES(mutex_);

  ibv_context& context_;
  Mutex mutex_;
  std::unordered_map<const ibv_qp*, WatchedQueuePair*> queue_pairs_ FAB_GUARDED_BY(mutex_);
  std::vector<EndpointEvents*> endpoints_ FAB_GUARDED_BY(mutex_);
};

// What was told to one endpoint. All but the notes is used under its context's lock.
class EndpointEvents final {
 public:
  enum News : std::uint32_t {
    device_failed = 1,
    queue_failed = 2,  // a completion queue, or the shared receive queue
    port_down = 4,
    port_up = 8,
    address_changed = 16,
  };
  // Calls `told` when something was noted; take() and visit() tell what. The endpoint's completion queues
  // have `of_queues` as their context. `shared` may be null. Throws std::system_error.
  EndpointEvents(const Device& device, Poller& poller, const void* of_queues, const ibv_srq* shared,
                 std::function<void()> told);
  ~EndpointEvents();
  EndpointEvents(const EndpointEvents&) = delete;
  EndpointEvents& operator=(const EndpointEvents&) = delete;

  // Throws std::bad_alloc.
  void watch(const ibv_qp& queue_pair, WatchedQueuePair& watched);
  void ignore(const ibv_qp& queue_pair, WatchedQueuePair& watched) noexcept;

  std::uint32_t take() noexcept;  // bits of News
  void visit() noexcept;          // calls the queue pairs that something was told of

 private:
  friend class DeviceEvents;
  bool inherited() const noexcept;
  void note(std::uint32_t news) noexcept;

  const std::shared_ptr<DeviceEvents> device_;
  const std::uint8_t port_;
  const void* const of_queues_;
  const ibv_srq* const shared_;
  const std::uint32_t fork_generation_;
  // Under the mutex of the device's:
  std::uint32_t news_ = 0;
  LinkedList<WatchedQueuePair, ToldOf> told_;
  const OwnFd wake_;
  ReadyCall on_event_, on_wake_;
};

}  // namespace fab::verbs
