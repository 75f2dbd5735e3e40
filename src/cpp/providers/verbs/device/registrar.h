#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>

#include "base/process/worker.h"
#include "fabric/registration/registration_cache.h"

namespace fab::verbs {

// Memory that is being registered for a transfer. A thread of the registrar makes it, and whoever has asked
// for it looks whether it is over().
class Loan final {
 public:
  using Lend = std::function<RegistrationCache::Lease()>;

  explicit Loan(Lend lend) : lend_(std::move(lend)) {}
  bool over() const noexcept { return over_.load(std::memory_order_acquire); }
  // To be called once, after over(). A lease that holds nothing: the device does not take the memory.
  RegistrationCache::Lease take() noexcept { return std::move(lease_); }

 private:
  friend class Registrar;
  void make() noexcept;

  const Lend lend_;  // keeps alive what the lease is of
  RegistrationCache::Lease lease_;
  std::atomic<bool> over_{false};
};

// Registering memory with a device pins its pages, tens of GiB for seconds. So memory of more than kAtOnce is
// registered on threads of the domain's, which start with the first such memory, and no context waits for it.
// Regions have one thread, and transfers another one. Safe from any thread.
class Registrar final {
 public:
  // It takes a few milliseconds to register so many bytes.
  static constexpr std::uint64_t kAtOnce = 16u << 20;
  // A region of more bytes is registered in several slices, as far as its description has room. Other regions
  // come between two slices, and the end of the domain. Some drivers take no more at once.
  static constexpr std::uint64_t kSlice = 3584u << 20;

  // Throws std::system_error and std::bad_alloc; nothing happens then. The thread of the regions calls `step`
  // until it returns false, and no more once stop() was called. It must not throw.
  void push(std::function<bool()> step) { push(regions_, std::move(step)); }
  // Calls `lend`, which may throw, unless nobody has the loan any more, and then `over`, which does not
  // throw. Throws as push() does.
  std::shared_ptr<Loan> lend(Loan::Lend lend, std::function<void()> over);
  // Ends a large lease on the thread of the transfers.
  void give_back(RegistrationCache::Lease lease) noexcept;
  // Waits for what is being registered. The rest is dropped.
  void stop() noexcept;

 private:
  struct Work {
    Registrar* registrar;
    Worker<Work>* worker;
    std::function<bool()> step;
  };
  void push(Worker<Work>& worker, std::function<bool()> step);
  static void handle(Work& work) noexcept;

  std::atomic<bool> stopped_{false};
  Worker<Work> regions_{"pyfab-enroll", &handle}, transfers_{"pyfab-lend", &handle};
};

}  // namespace fab::verbs
