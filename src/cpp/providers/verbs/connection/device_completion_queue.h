#pragma once

#include <cstdint>
#include <vector>

#include "base/lifetime.h"
#include "providers/verbs/connection/owner.h"
#include "providers/verbs/connection/work_owners.h"
#include "providers/verbs/device/device.h"

namespace fab::verbs {

// Where a device puts the completions of all work requests of an endpoint. Its poll() tells the owners of the
// requests. It grows with the number of requests that may be under way: where the device's queue cannot grow,
// or has its greatest size, by another one. The queues stay until the end. Used under the context's lock.
class DeviceCompletionQueue {
 public:
  // Throws Error.
  explicit DeviceCompletionQueue(const Device& device);
  ~DeviceCompletionQueue();
  DeviceCompletionQueue(const DeviceCompletionQueue&) = delete;
  DeviceCompletionQueue& operator=(const DeviceCompletionQueue&) = delete;

  WorkOwners& owners() noexcept FAB_LIFETIME_BOUND { return owners_; }

  // Reserves room for completions in one of the device's queues, and returns that one. Returns null if the
  // device has no more.
  ibv_cq* take_room(std::uint32_t entries) noexcept;
  void give_room(const ibv_cq& queue, std::uint32_t entries) noexcept;
  // Reserves room in each queue, also in those to come: completions of shared receives may come in any.
  // Returns false if the device has no more.
  bool take_room_in_all(std::uint32_t entries) noexcept;

  static constexpr int kPollAtOnce = 32;
  // Tells the owners of at most kPollAtOnce completions of each queue. Returns how many there were; all have
  // been told of if these are fewer than kPollAtOnce.
  int poll() noexcept {
    int count = 0;
    // NOLINTNEXTLINE(modernize-loop-convert): an owner may add a queue.
    for (std::size_t i = 0; i < queues_.size(); ++i) count += poll(*queues_[i].queue);
    return count;
  }

  // Lets the next completion make notices() readable. Returns false if arming failed, or if there were
  // completions already; their owners have been told of those.
  bool arm() noexcept;
  int notices() const noexcept { return notices_->fd; }
  // Reads all notices. The queues that gave them are not armed afterwards.
  void take_notices() noexcept;

 private:
  struct Queue {
    OwnCq queue;
    std::uint32_t room, taken;
    bool armed = false;
    unsigned unacknowledged = 0;  // notices
  };

  int poll(ibv_cq& queue) noexcept {
    ibv_wc completions[kPollAtOnce];
    const int count = ibv_poll_cq(&queue, kPollAtOnce, completions);
    for (int i = 0; i < count; ++i)
      if (ConnectionOwner* const to = owners_.find(static_cast<std::uint32_t>(completions[i].wr_id >> 32)))
        to->on_completion(completions[i]);
    return count > 0 ? count : 0;
  }
  Queue& of(const ibv_cq& queue) noexcept;
  bool open(std::uint32_t room);
  bool grow(Queue& queue, std::uint32_t entries) noexcept;
  std::uint32_t most() const noexcept { return static_cast<std::uint32_t>(device_.limits.max_cqe); }

  const Device& device_;
  OwnCompletionChannel notices_;
  std::vector<Queue> queues_;
  std::uint32_t taken_in_all_ = 0;
  WorkOwners owners_;
};

}  // namespace fab::verbs
