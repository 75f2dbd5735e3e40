#pragma once

#include <memory>

#include "base/locks/mutex.h"
#include "base/process/worker.h"
#include "fabric/completion/event_queue.h"

namespace fab {

class MemoryRegion;

// Completes asynchronous registrations, and tells of each with one event (FI_MR_COMPLETE, fi_mr(3)). It has a
// thread of its own, which starts when it is first needed, or is driven by work() (manual progress). Safe
// from any thread.
class RegistrationQueue final {
 public:
  explicit RegistrationQueue(bool threaded) : threaded_(threaded) {}

  // From now on registrations are asynchronous and tell `events` of their end; null: they are synchronous
  // again.
  void bind(std::shared_ptr<EventQueue> events);
  std::shared_ptr<EventQueue> bound() const;
  // The caller holds a reference of its own until the event was told. Has no effect if it throws.
  void push(std::shared_ptr<MemoryRegion> region, std::shared_ptr<EventQueue> events);
  void work();  // manual progress: completes what waits
  // Completes what waits. From now on push() completes at once.
  void stop() noexcept { worker_.stop(); }

 private:
  struct Waiting {
    std::shared_ptr<MemoryRegion> region;
    std::shared_ptr<EventQueue> events;
    EventQueue::Place place;  // in `events`
  };
  static void complete(Waiting& waiting) noexcept;

  const bool threaded_;
  mutable Mutex mutex_;
  std::shared_ptr<EventQueue> bound_ FAB_GUARDED_BY(mutex_);
  Worker<Waiting> worker_{"pyfab-register", &complete};
};

}  // namespace fab
