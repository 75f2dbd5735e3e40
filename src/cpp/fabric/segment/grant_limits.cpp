#include "fabric/segment/grant_limits.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "base/locks/mutex.h"
#include "fabric/segment/region_table.h"

namespace fab {
namespace {

bool earlier(const Part& left, const Part& right) noexcept {
  return std::tie(left.link, left.context, left.bytes) < std::tie(right.link, right.context, right.bytes);
}

}  // namespace

void GrantLimitTable::add(std::uint32_t index, GrantLimits limits) {
  std::ranges::sort(limits.peers, earlier);
  auto kept = std::make_shared<const GrantLimits>(std::move(limits));
  const LockGuard lock(mutex_);
  limits_.insert_or_assign(index, std::move(kept));
}

void GrantLimitTable::remove(std::uint32_t index) noexcept {
  const LockGuard lock(mutex_);
  limits_.erase(index);
}

std::shared_ptr<const GrantLimits> GrantLimitTable::find(std::uint32_t index) const noexcept {
  const LockGuard lock(mutex_);
  const auto found = limits_.find(index);
  return found == limits_.end() ? nullptr : found->second;
}

bool GrantLimitTable::admits(std::uint32_t index, const Requester& requester) const noexcept {
  const auto limits = find(index);
  if (!limits || !fab::admits(limits->auth, requester.auth) || limits->until.passed()) return false;
  if (limits->peers.empty()) return true;
  return requester.names && std::ranges::any_of(*requester.names, [&](const Part& name) {
           return std::ranges::binary_search(limits->peers, name, earlier);
         });
}

}  // namespace fab
