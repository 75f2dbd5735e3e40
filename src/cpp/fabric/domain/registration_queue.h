#pragma once

#include <memory>
#include <mutex>

#include "base/process/worker.h"
#include "fabric/completion/event_queue.h"

namespace fab {

class MemoryRegion;

// Completes registrations behind their callers' back and tells of each with one event (MR-44 … MR-48). With a
// thread of its own, started on first need, or driven by work() (manual progress). Safe from any thread.
class RegistrationQueue final {
 public:
  explicit RegistrationQueue(bool threaded) : threaded_(threaded) {}

  // From now on registrations are asynchronous and tell `events`; null: synchronous again.
  void bind(std::shared_ptr<EventQueue> events);
  std::shared_ptr<EventQueue> bound() const;
  // The caller has a reference of its own and holds it until the event was told. Has no effect if it throws.
  void push(std::shared_ptr<MemoryRegion> region, std::shared_ptr<EventQueue> events);
  void work();  // manual progress: completes what is waiting
  // Completes what is waiting. From now on push() completes at once.
  void stop() noexcept { worker_.stop(); }

 private:
  struct Waiting {
    std::shared_ptr<MemoryRegion> region;
    std::shared_ptr<EventQueue> events;
    EventQueue::Place place;  // in it
  };
  static void complete(Waiting& waiting) noexcept;

  const bool threaded_;
  mutable std::mutex mutex_;  // guards bound_
  std::shared_ptr<EventQueue> bound_;
  Worker<Waiting> worker_{"pyfab-register", &complete};
};

}  // namespace fab
