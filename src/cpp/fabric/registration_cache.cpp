#include "fabric/registration_cache.h"

#include <algorithm>
#include <chrono>

#include "fabric/error.h"

namespace fab {
namespace {

// Ticks to order uses by: one counter for all threads would be the one line that all of them write to.
std::uint64_t now() noexcept {
#ifdef __x86_64__
  return __builtin_ia32_rdtsc();
#else
  return static_cast<std::uint64_t>(std::chrono::steady_clock::now().time_since_epoch().count());
#endif
}

constexpr std::uint64_t kLongest = std::uint64_t{1} << 56;  // more than any address space has

}  // namespace

RegistrationCache::RegistrationCache(CacheLimits limits, Enroller enroller, MemoryMonitor* monitor)
    : limits_(limits),
      enroller_(std::move(enroller)),
      monitor_(limits.max_idle == 0 ? nullptr : monitor),
      log_(monitor_ ? &monitor_->log() : nullptr),
      log_position_(log_ ? log_->announced() : 0) {}

RegistrationCache::~RegistrationCache() {
  if (!inherited()) clear();
}

RegistrationCache::Lease RegistrationCache::acquire(AddressRange range, const MemoryUse& use) {
  if (inherited())
    throw Error(Errc::closed, "the registration cache belongs to the parent process, before a fork");
  if (range.length == 0 || range.length > kLongest || range.start + range.length < range.start)
    throw Error(Errc::invalid, "cannot register " + std::to_string(range.length) + " bytes at address " +
                                   std::to_string(range.start));
  if (!something_vanished())
    if (const auto taken = table_.take(range, use); taken.entry) return hit(taken);
  return acquire_new(range, use);
}

RegistrationCache::Lease RegistrationCache::hit(const CacheTable::Taken& taken) noexcept {
  count(&Counts::hits, 1);
  if ((taken.before & CacheEntry::kLeases) == 0) count_idle(*taken.entry, false);
  return {*this, *taken.entry};
}

RegistrationCache::Lease RegistrationCache::acquire_new(AddressRange range, const MemoryUse& use) {
  Handles gone;
  struct WithdrawLast {
    RegistrationCache& cache;
    Handles& gone;
    ~WithdrawLast() { cache.withdraw(gone); }
  } const withdraw_last{*this, gone};

  std::unique_lock lock(mutex_);
  drop_vanished(gone);
  if (const auto taken = table_.take(range, use); taken.entry) return hit(taken);
  ++misses_;
  Enrolment enrolment{.range = limits_.merge && monitor_ ? with_neighbours(range, use) : range};
  enrolments_.push_back(&enrolment);
  lock.unlock();

  // Watched before it is enrolled, so that pages that go meanwhile are noticed.
  bool watched = false;
  void* handle = nullptr;
  const auto enroll = [&] {
    watched = monitor_ && monitor_->watch(enrolment.range);
    try {
      handle = enroller_.enroll(enrolment.range, use);
    } catch (...) {
      if (watched) monitor_->unwatch(enrolment.range);
      throw;
    }
  };
  try {
    try {
      enroll();
    } catch (const std::exception&) {
      if (enrolment.range == range) throw;
      lock.lock();
      enrolment.range = range;  // alone it may do
      lock.unlock();
      enroll();
    }
  } catch (...) {
    lock.lock();
    std::erase(enrolments_, &enrolment);
    throw;
  }

  lock.lock();
  drop_vanished(gone);
  std::erase(enrolments_, &enrolment);
  const bool keep = watched && !enrolment.vanished;
  const auto other = keep ? table_.take(range, use) : CacheTable::Taken();
  if (watched && (!keep || other.entry)) monitor_->unwatch(enrolment.range);
  if (other.entry) {  // another thread was faster
    gone.push_back(handle);
    if ((other.before & CacheEntry::kLeases) == 0) count_idle(*other.entry, false);
    return {*this, *other.entry};
  }
  CacheEntry& entry = make_entry(enrolment.range, use, handle);
  if (keep) {
    publish(entry);
    if (limits_.merge) replace_within(enrolment.range, entry, use, gone);
    keep_limits(gone);
  }
  return {*this, entry};
}

void RegistrationCache::release(CacheEntry& entry) noexcept {
  if (inherited()) return;
  entry.last_use.store(now(), std::memory_order_relaxed);
  const std::uint64_t length = entry.length.load(std::memory_order_relaxed);
  const std::uint64_t before = entry.state.fetch_sub(1, std::memory_order_acq_rel);
  if ((before & CacheEntry::kLeases) != 1) return;
  if (before & CacheEntry::kLive) {  // from here on the entry may be gone
    count(&Counts::idle_count, 1);
    count(&Counts::idle_bytes, length);
    if (before & CacheEntry::kQueued && !beyond_limits() && !something_vanished()) return;
  }
  settle(entry, before);
}

// After the last lease of `entry` ended: what needs the lock.
void RegistrationCache::settle(CacheEntry& entry, std::uint64_t before) noexcept {
  Handles gone;
  {
    const std::lock_guard lock(mutex_);
    if (!(before & CacheEntry::kLive)) {
      retire(entry, gone);
    } else {
      const std::uint64_t state = entry.state.load(std::memory_order_acquire);
      constexpr std::uint64_t kUnchanged = CacheEntry::kLive | ~(CacheEntry::kGeneration - 1);
      if (((state ^ before) & kUnchanged) == 0 && !(state & CacheEntry::kQueued)) {
        entry.queued_use = entry.last_use.load(std::memory_order_relaxed);
        queue_.emplace(entry.queued_use, &entry);
        entry.state.fetch_or(CacheEntry::kQueued, std::memory_order_acq_rel);
      }
    }
    drop_vanished(gone);
    keep_limits(gone);
  }
  withdraw(gone);
}

void RegistrationCache::clear() noexcept {
  if (inherited()) return;
  Handles gone;
  {
    const std::lock_guard lock(mutex_);
    drop_vanished(gone);
    const std::uint64_t evictions = evictions_;
    while (evict_one(gone)) continue;
    evictions_ = evictions;
  }
  withdraw(gone);
}

CacheStats RegistrationCache::stats() {
  Handles gone;
  CacheStats stats;
  if (!inherited()) {
    const std::lock_guard lock(mutex_);
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

void RegistrationCache::withdraw(const Handles& handles) noexcept {
  for (void* handle : handles) enroller_.withdraw(handle);
}

CacheEntry& RegistrationCache::make_entry(AddressRange range, const MemoryUse& use, void* handle) {
  CacheEntry& entry = table_.allocate();
  entry.start.store(range.start, std::memory_order_release);
  entry.length.store(range.length, std::memory_order_release);
  const std::string* auth_key = nullptr;
  if (!use.auth_key.empty()) {
    const auto known = auth_keys_.find(use.auth_key);
    auth_key = known == auth_keys_.end() ? &*auth_keys_.emplace(use.auth_key).first : &*known;
  }
  entry.auth_key.store(auth_key, std::memory_order_release);
  entry.use.store(CacheEntry::packed(use), std::memory_order_release);
  entry.handle = handle;
  entry.state.fetch_add(1, std::memory_order_acq_rel);
  return entry;
}

void RegistrationCache::publish(CacheEntry& entry) {
  entry.state.fetch_or(CacheEntry::kLive, std::memory_order_acq_rel);
  table_.insert(entry);
  cached_count_.fetch_add(1, std::memory_order_relaxed);
  cached_bytes_.fetch_add(entry.range().length, std::memory_order_relaxed);
}

// `range` and all entries for the same use that overlap or touch it, and so on.
AddressRange RegistrationCache::with_neighbours(AddressRange range, const MemoryUse& use) const {
  const AddressRange alone = range;
  for (AddressRange before; before != range;) {
    before = range;
    const std::uint64_t first = range.start == 0 ? 0 : range.start - 1;
    for (const CacheEntry* entry : table_.overlapping({first, range.end() + 1 - first})) {
      if (!entry->is_for(use)) continue;
      const AddressRange other = entry->range();
      const std::uint64_t start = std::min(range.start, other.start);
      range = {.start = start, .length = std::max(range.end(), other.end()) - start};
    }
  }
  return range.length > limits_.max_bytes ? alone : range;
}

// Drops what the merged entry `by` stands for from now on.
void RegistrationCache::replace_within(AddressRange range, const CacheEntry& by, const MemoryUse& use,
                                       Handles& gone) {
  for (CacheEntry* entry : table_.overlapping(range))
    if (entry != &by && entry->is_for(use) && range.contains(entry->range())) drop(*entry, gone);
}

// Look-ups do not find it any more. Leases hold; the last one to end retires it.
void RegistrationCache::drop(CacheEntry& entry, Handles& gone) {
  forget(entry);
  constexpr std::uint64_t kInTable = CacheEntry::kLive | CacheEntry::kQueued;
  const std::uint64_t before = entry.state.fetch_and(~kInTable, std::memory_order_acq_rel);
  if (before & CacheEntry::kQueued) queue_.erase({entry.queued_use, &entry});
  if ((before & CacheEntry::kLeases) == 0) {
    count_idle(entry, false);
    retire(entry, gone);
  }
}

void RegistrationCache::forget(CacheEntry& entry) {
  table_.erase(entry);
  cached_count_.fetch_sub(1, std::memory_order_relaxed);
  cached_bytes_.fetch_sub(entry.range().length, std::memory_order_relaxed);
  monitor_->unwatch(entry.range());
}

// For an entry that is not live and has no leases: nobody else touches it.
void RegistrationCache::retire(CacheEntry& entry, Handles& gone) {
  gone.push_back(entry.handle);
  entry.state.fetch_add(CacheEntry::kGeneration, std::memory_order_acq_rel);
  table_.free(entry);
}

void RegistrationCache::drop_vanished(Handles& gone) {
  if (!something_vanished()) return;
  const auto drop_in = [&](AddressRange vanished) {
    const auto entries = table_.overlapping(vanished);
    for (CacheEntry* entry : entries) drop(*entry, gone);
    bool any = !entries.empty();
    for (Enrolment* enrolment : enrolments_)
      if (enrolment->range.overlaps(vanished)) any = enrolment->vanished = true;
    if (any) ++notifications_;
  };
  log_position_.store(log_->read(log_position_.load(std::memory_order_relaxed), drop_in),
                      std::memory_order_release);
}

void RegistrationCache::keep_limits(Handles& gone) {
  const auto too_many = [&] {
    if (cached_bytes_.load(std::memory_order_relaxed) > limits_.max_bytes) return true;
    if (cached_count_.load(std::memory_order_relaxed) <= limits_.max_idle) return false;
    // Between a release and its being counted another thread may have counted the next use: below 0.
    const auto idle = static_cast<std::int64_t>(sum(&Counts::idle_count));
    return idle > 0 && static_cast<std::uint64_t>(idle) > limits_.max_idle;
  };
  while (too_many() && evict_one(gone)) continue;
}

// The idle entry whose last use is longest ago, if there is one.
bool RegistrationCache::evict_one(Handles& gone) {
  while (!queue_.empty()) {
    CacheEntry& entry = *queue_.begin()->second;
    queue_.erase(queue_.begin());
    for (std::uint64_t state = entry.state.load(std::memory_order_acquire);;) {
      const bool idle = (state & CacheEntry::kLeases) == 0;
      const std::uint64_t last_use = entry.last_use.load(std::memory_order_relaxed);
      if (idle && last_use != entry.queued_use) {
        entry.queued_use = last_use;
        queue_.emplace(last_use, &entry);
        break;
      }
      // In use, it comes back into the queue when it is idle again.
      const std::uint64_t next = state & ~(CacheEntry::kQueued | (idle ? CacheEntry::kLive : 0));
      if (!entry.state.compare_exchange_weak(state, next, std::memory_order_acq_rel, std::memory_order_acquire))
        continue;
      if (!idle) break;
      forget(entry);
      count_idle(entry, false);
      retire(entry, gone);
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

void RegistrationCache::count_idle(const CacheEntry& entry, bool idle) noexcept {
  const std::uint64_t length = entry.range().length;
  count(&Counts::idle_count, idle ? 1 : ~std::uint64_t{0});
  count(&Counts::idle_bytes, idle ? length : std::uint64_t{0} - length);
}

}  // namespace fab
