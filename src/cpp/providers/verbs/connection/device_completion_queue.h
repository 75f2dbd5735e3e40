#pragma once

#include <algorithm>
#include <cstdint>

#include "providers/verbs/connection/owner.h"
#include "providers/verbs/connection/work_owners.h"
#include "providers/verbs/device/device.h"

namespace fab::verbs {

// The queue in which a device puts the completions of all work requests of an endpoint. Its poll() tells the
// owners of the requests. It grows with the number of requests that may be under way. Used under the
// context's lock.
class DeviceCompletionQueue {
 public:
  // Throws Error.
  explicit DeviceCompletionQueue(const Device& device);
  ~DeviceCompletionQueue();
  DeviceCompletionQueue(const DeviceCompletionQueue&) = delete;
  DeviceCompletionQueue& operator=(const DeviceCompletionQueue&) = delete;

  ibv_cq& queue() const noexcept { return *queue_; }
  WorkOwners& owners() noexcept { return owners_; }

  // Reserves room for completions. Returns false if the device has no more.
  bool take_room(std::uint32_t entries) noexcept;
  void give_room(std::uint32_t entries) noexcept { room_taken_ -= entries; }

  static constexpr int kPollAtOnce = 32;
  // Tells the owners of at most kPollAtOnce completions. Returns how many there were.
  int poll() noexcept {
    ibv_wc completions[kPollAtOnce];
    const int count = ibv_poll_cq(queue_.get(), kPollAtOnce, completions);
    for (int i = 0; i < count; ++i)
      if (ConnectionOwner* const to = owners_.find(static_cast<std::uint32_t>(completions[i].wr_id >> 32)))
        to->on_completion(completions[i]);
    return std::max(count, 0);
  }

  // Lets the next completion make notices() readable. Returns false if arming failed, or if there were
  // completions already; their owners have been told of those.
  bool arm() noexcept;
  int notices() const noexcept { return notices_->fd; }
  // Reads all notices. The queue is not armed afterwards.
  void take_notices() noexcept;

 private:
  const Device& device_;
  OwnCompletionChannel notices_;
  OwnCq queue_;
  std::uint32_t room_ = 0, room_taken_ = 0;
  bool armed_ = false;
  unsigned unacknowledged_ = 0;  // notices
  WorkOwners owners_;
};

}  // namespace fab::verbs
