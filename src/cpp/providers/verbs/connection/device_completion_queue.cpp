#include "providers/verbs/connection/device_completion_queue.h"

#include <algorithm>
#include <exception>
#include <iterator>
#include <utility>

#include "base/queues/room.h"

namespace fab::verbs {
namespace {

constexpr std::uint32_t kFirstRoom = 16384;  // completions, of each queue
// Notices that are acknowledged together, because each acknowledgement takes a lock.
constexpr unsigned kAcknowledgeAt = 64;

}  // namespace

DeviceCompletionQueue::DeviceCompletionQueue(const Device& device)
    : device_(device), notices_(open_completion_channel(device)) {
  if (!open(std::min(kFirstRoom, most()))) refuse(device, "completion queue");
}

DeviceCompletionQueue::~DeviceCompletionQueue() {
  for (const Queue& each : queues_)
    if (each.unacknowledged) library().ack_cq_events(each.queue.get(), each.unacknowledged);
}

// The queues have this object as their context, by which events of the device find the endpoint.
bool DeviceCompletionQueue::open(std::uint32_t room) {
  make_room(queues_);
  OwnCq made(library().create_cq(device_.context, static_cast<int>(room), this, notices_.get(), 0));
  if (!made) return false;
  const auto given = static_cast<std::uint32_t>(made->cqe);
  queues_.push_back({.queue = std::move(made), .room = given, .taken = taken_in_all_});
  return true;
}

DeviceCompletionQueue::Queue& DeviceCompletionQueue::of(const ibv_cq& queue) noexcept {
  return *std::ranges::find_if(queues_, [&](const Queue& each) { return each.queue.get() == &queue; });
}

// Returns whether there is room for so many entries more. Not every device can resize its queues.
bool DeviceCompletionQueue::grow(Queue& queue, std::uint32_t entries) noexcept {
  const std::uint32_t needed = queue.taken + entries;
  if (needed <= queue.room) return true;
  if (needed > most()) return false;
  const std::uint32_t wanted = std::max(std::min(2 * queue.room, most()), needed);
  if (library().resize_cq(queue.queue.get(), static_cast<int>(wanted)) != 0) return false;
  queue.room = static_cast<std::uint32_t>(queue.queue->cqe);
  return needed <= queue.room;
}

ibv_cq* DeviceCompletionQueue::take_room(std::uint32_t entries) noexcept try {
  const auto has_room = [&](const Queue& each) { return entries <= each.room - each.taken; };
  auto found = std::ranges::find_if(queues_, has_room);
  if (found == queues_.end()) {
    if (!grow(queues_.back(), entries)) {
      const std::uint32_t needed = taken_in_all_ + entries;
      if (needed > most() || !open(std::max(std::min(kFirstRoom, most()), needed))) return nullptr;
    }
    found = std::prev(queues_.end());
  }
  found->taken += entries;
  return found->queue.get();
} catch (const std::exception&) {
  return nullptr;
}

void DeviceCompletionQueue::give_room(const ibv_cq& queue, std::uint32_t entries) noexcept {
  of(queue).taken -= entries;
}

bool DeviceCompletionQueue::take_room_in_all(std::uint32_t entries) noexcept {
  if (!std::ranges::all_of(queues_, [&](Queue& each) { return grow(each, entries); })) return false;
  for (Queue& each : queues_) each.taken += entries;
  taken_in_all_ += entries;
  return true;
}

bool DeviceCompletionQueue::arm() noexcept {
  bool armed_now = false;
  for (Queue& each : queues_) {
    if (each.armed) continue;
    if (ibv_req_notify_cq(each.queue.get(), 0) != 0) return false;
    each.armed = armed_now = true;
  }
  // Completions that came before ibv_req_notify_cq() give no notice, so they are told now.
  return !armed_now || poll() == 0;
}

void DeviceCompletionQueue::take_notices() noexcept {
  ibv_cq* from = nullptr;
  void* context = nullptr;
  while (library().get_cq_event(notices_.get(), &from, &context) == 0) {
    Queue& queue = of(*from);
    queue.armed = false;
    if (++queue.unacknowledged >= kAcknowledgeAt)
      library().ack_cq_events(from, std::exchange(queue.unacknowledged, 0));
  }
}

}  // namespace fab::verbs
