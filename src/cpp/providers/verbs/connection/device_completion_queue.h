#pragma once

#include <algorithm>
#include <cstdint>

#include "providers/verbs/connection/owner.h"
#include "providers/verbs/connection/work_owners.h"
#include "providers/verbs/device/device.h"

namespace fab::verbs {

// Where a device puts the completions of all work requests of an endpoint, and from where their owners are
// told. It grows with the work requests that may be under way. Used under the context's lock.
class DeviceCompletionQueue {
 public:
  explicit DeviceCompletionQueue(const Device& device);  // throws Error
  ~DeviceCompletionQueue();
  DeviceCompletionQueue(const DeviceCompletionQueue&) = delete;
  DeviceCompletionQueue& operator=(const DeviceCompletionQueue&) = delete;

  ibv_cq& queue() const noexcept { return *queue_; }
  WorkOwners& owners() noexcept { return owners_; }

  // Room for completions. False: the device has no more.
  bool take_room(std::uint32_t entries) noexcept;
  void give_room(std::uint32_t entries) noexcept { room_taken_ -= entries; }

  static constexpr int kPollAtOnce = 32;
  // Tells the owners; returns of how many completions, at most kPollAtOnce.
  int poll() noexcept {
    ibv_wc completions[kPollAtOnce];
    const int count = ibv_poll_cq(queue_.get(), kPollAtOnce, completions);
    for (int i = 0; i < count; ++i)
      if (ConnectionOwner* const to = owners_.find(static_cast<std::uint32_t>(completions[i].wr_id >> 32)))
        to->on_completion(completions[i]);
    return std::max(count, 0);
  }

  // Makes the next completion readable at notices(). False: it is not armed, or something was there already,
  // and the owners were told.
  bool arm() noexcept;
  int notices() const noexcept { return notices_->fd; }
  void take_notices() noexcept;  // and is armed no more

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
