#include "providers/verbs/device/device_events.h"

#include <sys/eventfd.h>

#include <algorithm>
#include <cerrno>
#include <map>
#include <utility>

#include "base/process/process.h"

namespace fab::verbs {

// A child of fork() has no devices of its parent, so it never finds the lock held.
std::shared_ptr<DeviceEvents> DeviceEvents::of(const Device& device) {
  static constinit Mutex mutex;
  static std::map<const ibv_context*, std::weak_ptr<DeviceEvents>> all;
  const LockGuard lock(mutex);
  std::weak_ptr<DeviceEvents>& known = all[device.context];
  std::shared_ptr<DeviceEvents> events = known.lock();
  if (!events) known = events = std::make_shared<DeviceEvents>(*device.context);
  return events;
}

DeviceEvents::DeviceEvents(ibv_context& context) : context_(context) { make_nonblocking(context.async_fd); }

bool DeviceEvents::read() noexcept {
  const LockGuard lock(mutex_);
  ibv_async_event event{};
  while (library().get_async_event(&context_, &event) == 0) {
    note(event);
    library().ack_async_event(&event);
  }
  if (errno == EAGAIN || errno == EINTR) return true;
  for (EndpointEvents* const endpoint : endpoints_) endpoint->note(EndpointEvents::device_failed);
  return false;
}

void DeviceEvents::note(const ibv_async_event& event) noexcept {
  const auto tell_port = [&](std::uint32_t news) FAB_REQUIRES(mutex_) {
    for (EndpointEvents* const endpoint : endpoints_)
      if (std::cmp_equal(endpoint->port_, event.element.port_num)) endpoint->note(news);
  };
  switch (event.event_type) {
    case IBV_EVENT_QP_LAST_WQE_REACHED:
    case IBV_EVENT_QP_FATAL:
    case IBV_EVENT_QP_REQ_ERR:
    case IBV_EVENT_QP_ACCESS_ERR: {
      const auto found = queue_pairs_.find(event.element.qp);
      if (found == queue_pairs_.end()) return;  // of others in this process
      WatchedQueuePair& watched = *found->second;
      (event.event_type == IBV_EVENT_QP_LAST_WQE_REACHED ? watched.last_receive_ : watched.broken_) = true;
      watched.endpoint_->told_.push_back(watched);
      return watched.endpoint_->note(0);
    }
    case IBV_EVENT_CQ_ERR:
      for (EndpointEvents* const endpoint : endpoints_)
        if (endpoint->of_queues_ == event.element.cq->cq_context)
          endpoint->note(EndpointEvents::queue_failed);
      return;
    case IBV_EVENT_SRQ_ERR:
      for (EndpointEvents* const endpoint : endpoints_)
        if (endpoint->shared_ == event.element.srq) endpoint->note(EndpointEvents::queue_failed);
      return;
    case IBV_EVENT_DEVICE_FATAL:
      for (EndpointEvents* const endpoint : endpoints_) endpoint->note(EndpointEvents::device_failed);
      return;
    case IBV_EVENT_PORT_ERR:
      return tell_port(EndpointEvents::port_down);
    case IBV_EVENT_PORT_ACTIVE:
      return tell_port(EndpointEvents::port_up);
    case IBV_EVENT_GID_CHANGE:
      return tell_port(EndpointEvents::address_changed);
    default:
      return;  // what subnet managers do, and how full queues are
  }
}

EndpointEvents::EndpointEvents(const Device& device, Poller& poller, const void* of_queues,
                               const ibv_srq* shared, std::function<void()> told)
    : device_(DeviceEvents::of(device)),
      port_(device.port),
      of_queues_(of_queues),
      shared_(shared),
      fork_generation_(fork_generation()),
      wake_(check_call(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC), "eventfd")),
      on_event_(poller, device_->descriptor(),
                [this] {
                  if (!device_->read()) on_event_.end();
                }),
      on_wake_(poller, wake_.get(), [this, told = std::move(told)] {
        eventfd_t ignored;
        ::eventfd_read(wake_.get(), &ignored);
        told();
      }) {
  device_->read();  // what happened before is not about this endpoint
  const LockGuard lock(device_->mutex_);
  device_->endpoints_.push_back(this);
}

EndpointEvents::~EndpointEvents() {
  if (inherited()) return;
  const LockGuard lock(device_->mutex_);
  std::erase(device_->endpoints_, this);
}

// In a child of fork() a thread of the parent may have held the mutex, and no event is about the child.
bool EndpointEvents::inherited() const noexcept { return fork_generation_ != fork_generation(); }

void EndpointEvents::watch(const ibv_qp& queue_pair, WatchedQueuePair& watched) {
  const LockGuard lock(device_->mutex_);
  device_->queue_pairs_.insert_or_assign(&queue_pair, &watched);
  watched.endpoint_ = this;
}

void EndpointEvents::ignore(const ibv_qp& queue_pair, WatchedQueuePair& watched) noexcept {
  if (inherited()) return;
  const LockGuard lock(device_->mutex_);
  if (!std::exchange(watched.endpoint_, nullptr)) return;
  device_->queue_pairs_.erase(&queue_pair);
  decltype(told_)::erase(watched);
}

void EndpointEvents::note(std::uint32_t news) noexcept {
  news_ |= news;
  ::eventfd_write(wake_.get(), 1);
}

std::uint32_t EndpointEvents::take() noexcept {
  const LockGuard lock(device_->mutex_);
  return std::exchange(news_, 0);
}

void EndpointEvents::visit() noexcept {
  for (;;) {
    UniqueLock lock(device_->mutex_);
    if (told_.empty()) return;
    WatchedQueuePair& watched = told_.pop_front();
    const bool broken = std::exchange(watched.broken_, false);
    const bool last = std::exchange(watched.last_receive_, false);
    lock.unlock();
    if (last) watched.on_last_receive();
    if (broken) watched.on_broken();
  }
}

}  // namespace fab::verbs
