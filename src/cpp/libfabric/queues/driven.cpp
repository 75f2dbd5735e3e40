#include "libfabric/queues/driven.h"

#include <algorithm>
#include <utility>

namespace fab::fi {

void Driven::add(std::shared_ptr<Context> context, std::shared_ptr<OpPool> pool) {
  const LockGuard lock(mutex_);
  if (std::ranges::find(contexts_, context) == contexts_.end()) contexts_.push_back(std::move(context));
  if (std::ranges::find(pools_, pool) == pools_.end()) pools_.push_back(std::move(pool));
}

void Driven::remove(const Context& context) noexcept {
  const LockGuard lock(mutex_);
  std::erase_if(contexts_, [&](const auto& known) { return known.get() == &context; });
}

// A program that reads in a loop need not look at the poller in each turn, which is a system call.
bool Driven::progress() {
  constexpr unsigned kTurnsOfLook = 16;
  const LockGuard lock(mutex_);
  const bool looks = ++idle_turns_ % kTurnsOfLook == 0;
  for (const auto& context : contexts_)
    if (context->progress(looks)) idle_turns_ = 0;
  return !contexts_.empty();
}

}  // namespace fab::fi
