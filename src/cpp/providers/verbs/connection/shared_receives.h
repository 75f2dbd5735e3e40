#pragma once

#include <cstddef>
#include <cstdint>
#include <unordered_map>

#include "base/memory/mapping.h"
#include "providers/verbs/connection/device_completion_queue.h"
#include "providers/verbs/connection/owner.h"
#include "providers/verbs/device/device.h"

namespace fab::verbs {

// A shared receive queue: slots for the messages of all streams of an endpoint, so that the memory for
// receiving does not grow with the number of peers. While no slot is free, the devices of the senders try
// again. Used under the context's lock. It must outlive the queue pairs.
class SharedReceives final : public ConnectionOwner {
 public:
  static constexpr std::size_t kSlotBytes = 16 * 1024;

  // Throws Error.
  SharedReceives(DeviceCompletionQueue& completions, const Device& device, ibv_pd& protection_domain,
                 std::uint32_t slots);

  ibv_srq& queue() const noexcept { return *queue_; }
  // Tells `owner` of the queue pair's messages by on_completion(), with the number of the slot. The slot is
  // free again when on_completion() returns. Returns false if there is no memory.
  bool join(std::uint32_t queue_pair, ConnectionOwner& owner) noexcept;
  void leave(std::uint32_t queue_pair) noexcept { owners_.erase(queue_pair); }
  const std::byte* slot(std::uint32_t number) const noexcept;

 private:
  void on_connected() noexcept override {}
  void on_closed(Errc) noexcept override {}
  void on_completion(const ibv_wc& completion) noexcept override;
  bool post(std::uint32_t number) noexcept;

  const std::uint32_t slots_;
  std::uint32_t work_number_ = 0;
  Mapping memory_;
  OwnMr mr_;
  OwnSrq queue_;
  std::unordered_map<std::uint32_t, ConnectionOwner*> owners_;  // by number of the queue pair
};

}  // namespace fab::verbs
