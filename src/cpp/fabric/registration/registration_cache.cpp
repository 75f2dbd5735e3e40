#include "fabric/registration/registration_cache.h"

#include <algorithm>
#include <chrono>

#include "base/locks/mutex.h"
#include "fabric/types/error.h"

namespace fab {
namespace {

// A time to order uses by. A counter that all threads share would be a cache line that all of them write to.
std::uint64_t now() noexcept {
#ifdef __x86_64__
  return __builtin_ia32_rdtsc();
#else
  return static_cast<std::uint64_t>(std::chrono::steady_clock::now().time_since_epoch().count());
#endif
}

constexpr std::uint64_t kInTable = CacheEntry::kLive | CacheEntry::kQueued;
constexpr std::uint64_t kLongest = std::uint64_t{1} << 47;  // bytes: the address space of a program

}  // namespace

RegistrationCache::RegistrationCache(CacheLimits limits, Enroller enroller, MemoryMonitor* monitor)
    : limits_(limits),
      enroller_(std::move(enroller)),
      monitor_(limits.max_idle == 0 ? nullptr : monitor),
      log_(monitor_ ? &monitor_->log() : nullptr),
      log_position_(log_ ? log_->noted() : 0) {}

RegistrationCache::~RegistrationCache() {
  if (!inherited()) clear();
}

RegistrationCache::Lease RegistrationCache::acquire(AddressRange range, const MemoryUse& use) {
  if (inherited())
    throw Error(Errc::closed, "the registration cache belongs to the parent process, before a fork");
  if (range.length == 0 || range.length > kLongest || range.start + range.length < range.start)
    throw Error(Errc::invalid, "cannot register " + std::to_string(range.length) + " bytes at address " +
                                   std::to_string(range.start));
  Lease known = acquire_known(range, use);
  return known.held() ? std::move(known) : acquire_new(range, use);
}

RegistrationCache::Lease RegistrationCache::acquire_known(AddressRange range, const MemoryUse& use) noexcept {
  if (const auto known = uses_.find(use); known && !inherited() && !something_vanished())
    if (const auto taken = table_.take(range, *known); taken.entry) return hit(taken);
  return {};
}

RegistrationCache::Lease RegistrationCache::hit(const CacheTable::Taken& taken) noexcept {
  count(&Counts::hits, 1);
  return share(taken);
}

RegistrationCache::Lease RegistrationCache::share(const CacheTable::Taken& taken) noexcept {
  if ((taken.before & CacheEntry::kLeases) == 0) count_idle(taken.number, false);
  return {*this, taken.number};
}

RegistrationCache::Lease RegistrationCache::acquire_new(AddressRange range, const MemoryUse& use) {
  Gone gone;
  struct WithdrawLast {
    RegistrationCache& cache;
    const Gone& gone;
    ~WithdrawLast() { cache.withdraw(gone); }
  } const withdraw_last{*this, gone};

  UniqueLock lock(mutex_);
  drop_vanished(gone);
  const auto known = uses_.add(use);
  Enrolment enrolment{.range = range, .use = known.value_or(0), .may_keep = monitor_ && known};
  if (enrolment.may_keep)
    if (const auto taken = table_.take(range, enrolment.use); taken.entry) return hit(taken);
  ++misses_;
  if (enrolment.may_keep && limits_.merge) enrolment.range = with_neighbours(range, enrolment.use);
  enrolments_.push_back(&enrolment);
  lock.unlock();
  try {
    enroll_or_shrink(enrolment, range, use);
  } catch (...) {
    lock.lock();
    std::erase(enrolments_, &enrolment);
    throw;
  }
  lock.lock();
  drop_vanished(gone);
  std::erase(enrolments_, &enrolment);
  return enter(enrolment, range, gone);
}

// Watching begins before enrolment, so that pages which go away meanwhile are noticed.
void RegistrationCache::enroll(Enrolment& enrolment, const MemoryUse& use) {
  enrolment.watched = enrolment.may_keep && monitor_->watch(enrolment.range);
  try {
    enrolment.handle = enroller_.enroll(enrolment.range, use);
  } catch (...) {
    if (enrolment.watched) monitor_->unwatch(enrolment.range);
    throw;
  }
}

// A device that refuses the range together with its neighbours may still take `range` alone.
void RegistrationCache::enroll_or_shrink(Enrolment& enrolment, AddressRange range, const MemoryUse& use) {
  try {
    enroll(enrolment, use);
  } catch (const std::exception&) {
    if (enrolment.range == range) throw;
    {
      const LockGuard lock(mutex_);
      enrolment.range = range;
    }
    enroll(enrolment, use);
  }
}

// Returns a lease on what was enrolled, or on an entry that another thread has made meanwhile.
RegistrationCache::Lease RegistrationCache::enter(const Enrolment& enrolment, AddressRange range,
                                                  Gone& gone) {
  const bool keep = enrolment.watched && !enrolment.vanished;
  const auto other = keep ? table_.take(range, enrolment.use) : CacheTable::Taken();
  if (enrolment.watched && (!keep || other.entry)) monitor_->unwatch(enrolment.range);
  if (other.entry) {
    gone.alone = enrolment.handle;
    return share(other);
  }
  Number number;
  try {
    number = make_entry_of(enrolment, keep);
  } catch (...) {
    if (keep) monitor_->unwatch(enrolment.range);
    gone.alone = enrolment.handle;
    throw;
  }
  if (keep) {
    if (limits_.merge) replace_within(enrolment.range, number, gone);
    keep_limits(gone);
  }
  return {*this, number};
}

void RegistrationCache::release(Number number) noexcept {
  if (inherited()) return;
  CacheEntry& entry = table_.entry(number);
  entry.last_use.store(now(), std::memory_order_release);
  const std::uint64_t length = entry.length();
  const std::uint64_t before = entry.state.fetch_sub(1, std::memory_order_acq_rel);
  if ((before & CacheEntry::kLeases) != 1) return;
  if (before & CacheEntry::kLive) {
    // The entry may be gone from here on: it is idle, so another thread may evict it.
    count(&Counts::idle_count, 1);
    count(&Counts::idle_bytes, length);
    if (before & CacheEntry::kQueued && table_.is_newest(number) && !beyond_limits() && !something_vanished())
      return;
  }
  settle(number, before);
}

// The part of release() that needs the lock. The last lease has ended before it.
void RegistrationCache::settle(Number number, std::uint64_t before) noexcept {
  Gone gone;
  {
    const LockGuard lock(mutex_);
    if (!(before & CacheEntry::kLive)) {
      retire(number, gone);
    } else {
      CacheEntry& entry = table_.entry(number);
      const std::uint64_t state = entry.state.load(std::memory_order_acquire);
      constexpr std::uint64_t kUnchanged = CacheEntry::kLive | ~(CacheEntry::kGeneration - 1);
      const bool unchanged = ((state ^ before) & kUnchanged) == 0;
      if (unchanged && !(state & CacheEntry::kQueued)) enqueue(number);
      if (unchanged && !table_.is_newest(number)) move_to_newest(number);
    }
    drop_vanished(gone);
    keep_limits(gone);
  }
  withdraw(gone);
}

// Without memory for its place the entry stays out of the queue, until its next use ends.
void RegistrationCache::enqueue(Number number) noexcept try {
  std::uint64_t& queued_use = table_.details(number).queued_use;
  queued_use = table_.entry(number).last_use.load(std::memory_order_relaxed);
  queue_.emplace(queued_use, number);
  table_.entry(number).state.fetch_or(CacheEntry::kQueued, std::memory_order_acq_rel);
} catch (const std::bad_alloc&) {
  return;
}

void RegistrationCache::clear() noexcept {
  if (inherited()) return;
  Gone gone;
  {
    const LockGuard lock(mutex_);
    drop_vanished(gone);
    table_.visit(VanishLog::kEverything, [&](Number number) {
      mutex_.assert_held();
      if ((table_.entry(number).state.load(std::memory_order_acquire) & CacheEntry::kLeases) == 0)
        drop(number, gone);
    });
  }
  withdraw(gone);
}

CacheStats RegistrationCache::stats() {
  Gone gone;
  CacheStats stats;
  if (!inherited()) {
    const LockGuard lock(mutex_);
    drop_vanished(gone);
    stats = {.hits = sum(&Counts::hits),
             .misses = misses_,
             .evictions = evictions_,
             .notifications = notifications_,
             .cached_bytes = cached_bytes_.load(),
             .cached_count = cached_count_.load(),
             .idle_bytes = sum(&Counts::idle_bytes),
             .idle_count = sum(&Counts::idle_count)};
    stats.searches = stats.hits + stats.misses;
  }
  withdraw(gone);
  return stats;
}

void RegistrationCache::withdraw(const Gone& gone) noexcept {
  if (gone.alone) enroller_.withdraw(*gone.alone);
  if (gone.first == Gone::kNone) return;
  for (Number each = gone.first; each != Gone::kNone; each = table_.details(each).next_gone)
    enroller_.withdraw(table_.details(each).handle);
  const LockGuard lock(mutex_);
  for (Number each = gone.first; each != Gone::kNone;)
    table_.free(std::exchange(each, table_.details(each).next_gone));
}

CacheTable::Number RegistrationCache::make_entry(AddressRange range, std::uint16_t use, void* handle) {
  const unsigned newest = table_.newest();
  const Number number = table_.allocate(range, use);
  table_.details(number).handle = handle;
  if (table_.newest() != newest)
    table_.visit(VanishLog::kEverything, [&](Number each) {
      mutex_.assert_held();
      if (!table_.is_newest(each)) move_to_newest(each);
    });
  return number;
}

// Makes the entry of what was enrolled, which look-ups find if it is to be kept.
CacheTable::Number RegistrationCache::make_entry_of(const Enrolment& enrolment, bool keep) {
  const Number number = make_entry(enrolment.range, enrolment.use, enrolment.handle);
  try {
    if (keep) publish(number);
  } catch (...) {
    table_.free(number);
    throw;
  }
  return number;
}

// Does nothing while the entry is in use; the release of its last lease moves it then. Without memory the
// entry stays where it is.
void RegistrationCache::move_to_newest(Number number) noexcept try {
  CacheEntry& entry = table_.entry(number);
  std::uint64_t state = entry.state.load(std::memory_order_acquire);
  if (state & CacheEntry::kLeases) return;
  const Number moved = make_entry(entry.range(), entry.use(), table_.details(number).handle);
  // Making it may have moved this entry already, and others may use it by now.
  if (!entry.state.compare_exchange_strong(state, state & ~kInTable, std::memory_order_acq_rel,
                                           std::memory_order_acquire)) {
    table_.free(moved);
    return;
  }
  CacheEntry& there = table_.entry(moved);
  there.last_use.store(entry.last_use.load(std::memory_order_relaxed), std::memory_order_release);
  if (state & CacheEntry::kQueued) queue_.erase({table_.details(number).queued_use, number});
  table_.replace(number, moved);
  // One addition makes the entry live, and ends the lease that allocate() gave it.
  there.state.fetch_add(CacheEntry::kLive - 1, std::memory_order_acq_rel);
  enqueue(moved);
} catch (const std::exception&) {
  return;
}

void RegistrationCache::publish(Number number) {
  table_.insert(number);
  table_.entry(number).state.fetch_or(CacheEntry::kLive, std::memory_order_acq_rel);
  cached_count_.fetch_add(1, std::memory_order_relaxed);
  cached_bytes_.fetch_add(table_.entry(number).length(), std::memory_order_relaxed);
}

// Returns `range` joined with all entries of the same use that overlap or touch it, and with the entries that
// overlap or touch those. Returns `range` alone if the joined range is beyond the limit of bytes.
AddressRange RegistrationCache::with_neighbours(AddressRange range, std::uint16_t use) const {
  const AddressRange alone = range;
  for (AddressRange before; before != range;) {
    before = range;
    const std::uint64_t first = range.start == 0 ? 0 : range.start - 1;
    table_.visit({.start = first, .length = range.end() + 1 - first}, [&](Number number) {
      const CacheEntry& entry = table_.entry(number);
      if (entry.use() != use) return;
      const AddressRange other = entry.range();
      const std::uint64_t start = std::min(range.start, other.start);
      range = {.start = start, .length = std::max(range.end(), other.end()) - start};
    });
  }
  return range.length > limits_.max_bytes ? alone : range;
}

// Drops the entries that the merged entry `by` replaces.
void RegistrationCache::replace_within(AddressRange range, Number by, Gone& gone) noexcept {
  const std::uint16_t use = table_.entry(by).use();
  table_.visit(range, [&](Number number) {
    mutex_.assert_held();
    const CacheEntry& entry = table_.entry(number);
    if (number != by && entry.use() == use && range.contains(entry.range())) drop(number, gone);
  });
}

// From now on look-ups do not find the entry. Its leases stay valid, and the last one to end retires it.
void RegistrationCache::drop(Number number, Gone& gone) noexcept {
  forget(number);
  const std::uint64_t before = table_.entry(number).state.fetch_and(~kInTable, std::memory_order_acq_rel);
  if (before & CacheEntry::kQueued) queue_.erase({table_.details(number).queued_use, number});
  if ((before & CacheEntry::kLeases) == 0) {
    count_idle(number, false);
    retire(number, gone);
  }
}

void RegistrationCache::forget(Number number) noexcept {
  const AddressRange range = table_.entry(number).range();
  table_.erase(number);
  cached_count_.fetch_sub(1, std::memory_order_relaxed);
  cached_bytes_.fetch_sub(range.length, std::memory_order_relaxed);
  monitor_->unwatch(range);
}

// The entry must be neither live nor leased: then no other thread touches it.
void RegistrationCache::retire(Number number, Gone& gone) noexcept {
  table_.details(number).next_gone = Gone::kNone;
  (gone.first == Gone::kNone ? gone.first : table_.details(gone.last).next_gone) = number;
  gone.last = number;
}

void RegistrationCache::drop_vanished(Gone& gone) noexcept {
  if (!something_vanished()) return;
  const auto drop_in = [&](AddressRange vanished) {
    mutex_.assert_held();
    bool any = false;
    table_.visit(vanished, [&](Number number) {
      mutex_.assert_held();
      drop(number, gone);
      any = true;
    });
    for (Enrolment* enrolment : enrolments_)
      if (enrolment->range.overlaps(vanished)) any = enrolment->vanished = true;
    if (any) ++notifications_;
  };
  log_position_.store(log_->read(log_position_.load(std::memory_order_relaxed), drop_in),
                      std::memory_order_release);
}

void RegistrationCache::keep_limits(Gone& gone) noexcept {
  const auto too_many = [&] {
    if (cached_bytes_.load(std::memory_order_relaxed) > limits_.max_bytes) return true;
    if (cached_count_.load(std::memory_order_relaxed) <= limits_.max_idle) return false;
    // The sum may be negative: the next use of an entry may be counted before the release that came first.
    const auto idle = static_cast<std::int64_t>(sum(&Counts::idle_count));
    return std::cmp_greater(idle, limits_.max_idle);
  };
  while (too_many() && evict_one(gone)) continue;
}

// Evicts the idle entry whose last use is longest ago. Returns false if no entry is idle.
bool RegistrationCache::evict_one(Gone& gone) noexcept {
  while (!queue_.empty()) {
    auto place = queue_.extract(queue_.begin());
    const Number number = place.value().second;
    CacheEntry& entry = table_.entry(number);
    for (std::uint64_t state = entry.state.load(std::memory_order_acquire);;) {
      const bool idle = (state & CacheEntry::kLeases) == 0;
      const std::uint64_t last_use = entry.last_use.load(std::memory_order_relaxed);
      if (idle && last_use != table_.details(number).queued_use) {
        place.value().first = table_.details(number).queued_use = last_use;
        queue_.insert(std::move(place));
        break;
      }
      // An entry in use leaves the queue, and comes back when it is idle again.
      const std::uint64_t next = state & ~(CacheEntry::kQueued | (idle ? CacheEntry::kLive : 0));
      if (!entry.state.compare_exchange_weak(state, next, std::memory_order_acq_rel,
                                             std::memory_order_acquire))
        continue;
      if (!idle) break;
      forget(number);
      count_idle(number, false);
      retire(number, gone);
      ++evictions_;
      return true;
    }
  }
  return false;
}

void RegistrationCache::count(Count which, std::uint64_t difference) noexcept {
  const unsigned slot = thread_slot();
  std::atomic<std::uint64_t>& mine = counts_[slot].*which;
  if (slot < kThreadSlots)
    mine.store(mine.load(std::memory_order_relaxed) + difference, std::memory_order_relaxed);
  else
    mine.fetch_add(difference, std::memory_order_relaxed);
}

std::uint64_t RegistrationCache::sum(Count which) const noexcept {
  std::uint64_t total = 0;
  for (const Counts& counts : counts_) total += (counts.*which).load(std::memory_order_relaxed);
  return total;
}

void RegistrationCache::count_idle(Number number, bool idle) noexcept {
  const std::uint64_t length = table_.entry(number).length();
  count(&Counts::idle_count, idle ? 1 : ~std::uint64_t{0});
  count(&Counts::idle_bytes, idle ? length : std::uint64_t{0} - length);
}

}  // namespace fab
