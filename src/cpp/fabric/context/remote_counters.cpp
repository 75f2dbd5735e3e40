#include "fabric/context/remote_counters.h"

#include <algorithm>
#include <utility>

namespace fab {

std::uint64_t RemoteCounters::note(std::uint16_t slot, std::shared_ptr<Counter> writes,
                                   std::shared_ptr<Counter> reads) {
  if (!writes && !reads) return 0;
  const auto number = [](const auto& counter) { return counter ? std::uint64_t{counter->index()} + 1 : 0; };
  const std::uint64_t both = number(writes) | number(reads) << ContextRights::kReadCounter;
  const LockGuard lock(mutex_);
  noted_.push_back({slot, std::move(writes), std::move(reads)});
  return both;
}

std::vector<RemoteCounters::Noted> RemoteCounters::take(std::uint16_t slot) {
  std::vector<Noted> taken;  // what ends here ends without the lock
  const LockGuard lock(mutex_);
  const auto found = std::ranges::find(noted_, slot, &Noted::slot);
  if (found == noted_.end()) return taken;
  taken.push_back(std::move(*found));
  noted_.erase(found);
  return taken;
}

void RemoteCounters::keep(const std::vector<Noted>& ended) {
  const LockGuard lock(mutex_);
  kept_.insert(kept_.end(), ended.begin(), ended.end());
}

void RemoteCounters::clear() noexcept {
  std::vector<Noted> noted, kept;
  const LockGuard lock(mutex_);
  noted.swap(noted_);
  kept.swap(kept_);
}

}  // namespace fab
