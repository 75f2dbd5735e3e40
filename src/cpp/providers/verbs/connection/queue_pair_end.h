#pragma once

#include <chrono>
#include <functional>
#include <memory>

#include "base/queues/linked_list.h"
#include "providers/verbs/connection/device_completion_queue.h"
#include "providers/verbs/connection/owner.h"
#include "providers/verbs/device/device_events.h"
#include "providers/verbs/device/library.h"

namespace fab::verbs {

// What a connection leaves behind: its queue pair, which its device may still tell something of. It is made
// with the connection, so that ending needs no memory.
class QueuePairEnd final : public WatchedQueuePair {
 public:
  QueuePairEnd(EndpointEvents& events, DeviceCompletionQueue& completions, ConnectionOwner& owner) noexcept
      : events_(events), completions_(completions), owner_(&owner) {}
  ~QueuePairEnd() override;

  bool watch(const ibv_qp& queue_pair) noexcept;  // returns false if there is no memory
  // Returns the completion queue that the queue pair has room in, or null if there is none.
  ibv_cq* take_room(std::uint32_t completions) noexcept;
  // The connection ends: its owner is told of nothing any more, and the queue pair goes with this object.
  void take(OwnId id) noexcept;

  void on_last_receive() noexcept override { told_ = true; }
  void on_broken() noexcept override {
    if (owner_) owner_->on_closed(Errc::peer_lost);
  }

 private:
  friend class QueuePairEnds;

  EndpointEvents& events_;
  DeviceCompletionQueue& completions_;
  ConnectionOwner* owner_;
  OwnId id_;
  const ibv_qp* watched_ = nullptr;
  ibv_cq* queue_ = nullptr;
  std::uint32_t room_ = 0;  // entries of that queue that the queue pair has taken
  bool told_ = false;       // that it takes no shared receive any more
  std::chrono::nanoseconds until_{};
  std::unique_ptr<QueuePairEnd> next_;
};

// The queue pairs of ended connections that have taken receives of a shared queue. Each is destroyed when its
// device has told that it takes no more (IBV_EVENT_QP_LAST_WQE_REACHED) and all completions were polled
// after that: a driver drops those that are left, and the receives would be lost to the other peers. A device
// that does not tell is waited for kWait. Used under the context's lock.
class QueuePairEnds final {
 public:
  static constexpr std::chrono::seconds kWait{2};

  // `watch` starts to call tick() from time to time, and returns the time there.
  explicit QueuePairEnds(std::function<std::chrono::nanoseconds()> watch) : watch_(std::move(watch)) {}
  ~QueuePairEnds();
  QueuePairEnds(const QueuePairEnds&) = delete;
  QueuePairEnds& operator=(const QueuePairEnds&) = delete;

  bool empty() const noexcept { return !first_; }
  void add(std::unique_ptr<QueuePairEnd> end) noexcept;
  // A poll has left no completion behind. What was told of came before it.
  void drained() noexcept;
  // Gives up waiting for those whose time is over. Returns whether some are left.
  bool tick(std::chrono::nanoseconds now) noexcept;
  void give_up() noexcept;  // waiting for any

 private:
  template <class Which>
  void destroy(Which which) noexcept;

  const std::function<std::chrono::nanoseconds()> watch_;
  std::unique_ptr<QueuePairEnd> first_;
};

}  // namespace fab::verbs
