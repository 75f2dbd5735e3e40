#include "providers/verbs/connection/device_completion_queue.h"

#include <utility>

namespace fab::verbs {
namespace {

constexpr std::uint32_t kFirstRoom = 16384;  // completions
// Notices that are acknowledged together, because each acknowledgement takes a lock.
constexpr unsigned kAcknowledgeAt = 64;

}  // namespace

DeviceCompletionQueue::DeviceCompletionQueue(const Device& device)
    : device_(device), notices_(open_completion_channel(device)) {
  room_ = std::min<std::uint32_t>(kFirstRoom, static_cast<std::uint32_t>(device.limits.max_cqe));
  queue_.reset(library().create_cq(device.context, static_cast<int>(room_), nullptr, notices_.get(), 0));
  if (!queue_) refuse(device, "completion queue");
  room_ = static_cast<std::uint32_t>(queue_->cqe);
}

DeviceCompletionQueue::~DeviceCompletionQueue() {
  if (unacknowledged_) library().ack_cq_events(queue_.get(), unacknowledged_);
}

bool DeviceCompletionQueue::take_room(std::uint32_t entries) noexcept {
  if (room_taken_ + entries > room_) {
    const auto most = static_cast<std::uint32_t>(device_.limits.max_cqe);
    const std::uint32_t wanted = std::max(std::min(2 * room_, most), room_taken_ + entries);
    if (library().resize_cq(queue_.get(), static_cast<int>(wanted)) != 0) return false;
    room_ = static_cast<std::uint32_t>(queue_->cqe);
    if (room_taken_ + entries > room_) return false;
  }
  room_taken_ += entries;
  return true;
}

bool DeviceCompletionQueue::arm() noexcept {
  if (armed_) return true;
  if (ibv_req_notify_cq(queue_.get(), 0) != 0) return false;
  armed_ = true;
  // Completions that came before ibv_req_notify_cq() give no notice, so they are told now.
  return poll() == 0;
}

void DeviceCompletionQueue::take_notices() noexcept {
  ibv_cq* queue = nullptr;
  void* context = nullptr;
  while (library().get_cq_event(notices_.get(), &queue, &context) == 0)
    if (++unacknowledged_ >= kAcknowledgeAt)
      library().ack_cq_events(queue_.get(), std::exchange(unacknowledged_, 0));
  armed_ = false;
}

}  // namespace fab::verbs
