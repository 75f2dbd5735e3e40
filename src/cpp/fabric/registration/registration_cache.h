#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/locks/mutex.h"
#include "base/memory/address_range.h"
#include "base/process/process.h"
#include "base/process/thread_slot.h"
#include "fabric/registration/cache_entry.h"
#include "fabric/registration/cache_table.h"
#include "fabric/registration/memory_monitor.h"

namespace fab {

// How a device gets access to memory, and loses it. Several threads may call these at once, and the cache is
// not locked meanwhile. `enroll` may throw.
struct Enroller {
  std::function<void*(AddressRange range, const MemoryUse& use)> enroll;
  std::function<void(void* handle)> withdraw;
};

struct CacheLimits {
  std::uint64_t max_bytes = ~std::uint64_t{0};  // of all entries; those in use stay even beyond it
  std::uint64_t max_idle = 1024;                // idle entries that are kept; 0: nothing is cached
  bool merge = false;                           // neighbours of equal use become one entry
};

// An entry that was merged into a larger one, or whose memory went away, is not counted any more, even while
// it is leased.
struct CacheStats {
  std::uint64_t searches = 0, hits = 0, misses = 0;  // each search is a hit or a miss
  std::uint64_t evictions = 0;                       // idle entries that were dropped to keep the limits
  std::uint64_t notifications = 0;                   // times that memory went away under at least one entry
  std::uint64_t cached_bytes = 0, cached_count = 0;  // entries in use and idle entries
  std::uint64_t idle_bytes = 0, idle_count = 0;
};

// Keeps memory enrolled after its last user has gone, so that the next user need not enroll it again. An
// entry serves requests for a range inside it, with equal rights, interface and auth key.
//
// Thread-safe. A hit takes no lock. It writes to nothing that other threads write to, except the entry. The
// monitor notices memory that goes away, and the next call drops the entries of that memory; leases on them
// stay valid until they end. In a child of fork() leases end without effect, and acquire() throws
// Error(closed).
class RegistrationCache final {
 public:
  // One use of an entry. It ends with the object, and the cache must outlive it.
  class Lease {
   public:
    Lease() = default;
    Lease(Lease&& other) noexcept : cache_(std::exchange(other.cache_, nullptr)), number_(other.number_) {}
    Lease& operator=(Lease&& other) noexcept {
      if (this != &other) {
        reset();
        cache_ = std::exchange(other.cache_, nullptr);
        number_ = other.number_;
      }
      return *this;
    }
    ~Lease() { reset(); }
    bool held() const noexcept { return cache_ != nullptr; }
    // What the enroller returned.
    void* handle() const noexcept { return cache_->table_.details(number_).handle; }
    // The whole range of the entry, which may be more than was asked for.
    AddressRange range() const noexcept { return cache_->table_.entry(number_).range(); }
    void reset() noexcept {
      if (cache_) std::exchange(cache_, nullptr)->release(number_);
    }

   private:
    friend class RegistrationCache;
    Lease(RegistrationCache& cache, CacheTable::Number number) noexcept : cache_(&cache), number_(number) {}
    RegistrationCache* cache_ = nullptr;
    CacheTable::Number number_ = 0;
  };

  // `monitor` must outlive the cache. If it is null, nothing is kept, because entries could go stale.
  RegistrationCache(CacheLimits limits, Enroller enroller, MemoryMonitor* monitor);
  ~RegistrationCache();
  RegistrationCache(const RegistrationCache&) = delete;
  RegistrationCache& operator=(const RegistrationCache&) = delete;

  // Throws what the enroller throws; nothing is kept then.
  Lease acquire(AddressRange range, const MemoryUse& use);
  // Enrolls nothing, and takes no lock. A lease that holds nothing: no entry serves the request.
  Lease acquire_known(AddressRange range, const MemoryUse& use) noexcept;
  // Whether entries outlive their last lease.
  bool keeps() const noexcept { return monitor_ && limits_.max_idle != 0; }
  // Withdraws all idle entries.
  void clear() noexcept;
  // Exact while no other thread is in the cache.
  CacheStats stats();

 private:
  // Each element of counts_ is written by one thread, except the last: all threads without a slot share it.
  struct alignas(64) Counts {
    std::atomic<std::uint64_t> hits{0}, idle_count{0}, idle_bytes{0};
  };
  using Count = std::atomic<std::uint64_t> Counts::*;
  using Number = CacheTable::Number;
  // What is to be withdrawn after the lock has been released: entries that nobody finds or leases any more,
  // in a list for which no memory is needed, and a handle that has no entry.
  struct Gone {
    static constexpr Number kNone = ~Number{0};
    Number first = kNone, last = kNone;
    std::optional<void*> alone;
  };
  // An enrolment that is being made.
  struct Enrolment {
    AddressRange range;
    std::uint16_t use;      // its number in uses_
    bool may_keep;          // the entry may stay after its last lease
    bool watched = false;   // the monitor watches the range
    bool vanished = false;  // some of the memory went away meanwhile
    void* handle = nullptr;
  };

  bool inherited() const noexcept { return fork_generation_ != fork_generation(); }
  bool something_vanished() const noexcept {
    return log_ && log_->noted() != log_position_.load(std::memory_order_acquire);
  }
  bool beyond_limits() const noexcept {
    return cached_count_.load(std::memory_order_relaxed) > limits_.max_idle ||
           cached_bytes_.load(std::memory_order_relaxed) > limits_.max_bytes;
  }
  void count(Count which, std::uint64_t difference) noexcept;
  std::uint64_t sum(Count which) const noexcept;
  void count_idle(Number number, bool idle) noexcept;

  Lease hit(const CacheTable::Taken& taken) noexcept;
  Lease share(const CacheTable::Taken& taken) noexcept;
  Lease acquire_new(AddressRange range, const MemoryUse& use);
  void enroll(Enrolment& enrolment, const MemoryUse& use);
  void enroll_or_shrink(Enrolment& enrolment, AddressRange range, const MemoryUse& use);
  void release(Number number) noexcept;
  void settle(Number number, std::uint64_t before) noexcept;
  void withdraw(const Gone& gone) noexcept;

  Lease enter(const Enrolment& enrolment, AddressRange range, Gone& gone) FAB_REQUIRES(mutex_);
  Number make_entry_of(const Enrolment& enrolment, bool keep) FAB_REQUIRES(mutex_);
  Number make_entry(AddressRange range, std::uint16_t use, void* handle) FAB_REQUIRES(mutex_);
  void move_to_newest(Number number) noexcept FAB_REQUIRES(mutex_);
  void publish(Number number) FAB_REQUIRES(mutex_);
  AddressRange with_neighbours(AddressRange range, std::uint16_t use) const FAB_REQUIRES(mutex_);
  void enqueue(Number number) noexcept FAB_REQUIRES(mutex_);
  void replace_within(AddressRange range, Number by, Gone& gone) noexcept FAB_REQUIRES(mutex_);
  void drop(Number number, Gone& gone) noexcept FAB_REQUIRES(mutex_);
  void forget(Number number) noexcept FAB_REQUIRES(mutex_);
  void retire(Number number, Gone& gone) noexcept FAB_REQUIRES(mutex_);
  void drop_vanished(Gone& gone) noexcept FAB_REQUIRES(mutex_);
  void keep_limits(Gone& gone) noexcept FAB_REQUIRES(mutex_);
  bool evict_one(Gone& gone) noexcept FAB_REQUIRES(mutex_);

  const CacheLimits limits_;
  const Enroller enroller_;
  MemoryMonitor* const monitor_;
  const VanishLog* const log_;
  const std::uint32_t fork_generation_ = fork_generation();

  MemoryUses uses_;
  CacheTable table_;
  std::atomic<std::uint64_t> log_position_{0};                    // of the next event to be read in log_
  std::atomic<std::uint64_t> cached_count_{0}, cached_bytes_{0};  // written under mutex_
  std::array<Counts, kThreadSlots + 1> counts_;

  Mutex mutex_;  // guards changes of table_ as well, which is read without it
  // Idle entries by their last use. Some may be in use again: an entry is moved or removed only when it comes
  // to the front.
  std::set<std::pair<std::uint64_t, Number>> queue_ FAB_GUARDED_BY(mutex_);
  std::vector<Enrolment*> enrolments_ FAB_GUARDED_BY(mutex_);
  std::uint64_t misses_ FAB_GUARDED_BY(mutex_) = 0;
  std::uint64_t evictions_ FAB_GUARDED_BY(mutex_) = 0;
  std::uint64_t notifications_ FAB_GUARDED_BY(mutex_) = 0;
};

}  // namespace fab
