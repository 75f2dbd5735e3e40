#include "fabric/context/context_set.h"

#include <algorithm>
#include <chrono>
#include <new>
#include <string>
#include <utility>

#include "base/locks/mutex.h"
#include "base/process/at_once.h"
#include "base/queues/room.h"

namespace fab {

std::shared_ptr<Context> ContextSet::open(const Make& make) {
  const LockGuard lock(mutex_);
  std::uint16_t slot = 0;
  const auto has_slot = [&](const auto& context) { return context->slot() == slot; };
  while (std::ranges::any_of(contexts_, has_slot) || std::ranges::any_of(closing_, has_slot)) ++slot;
  if (slot >= kMaxContexts)
    throw Error(Errc::no_memory,
                "all " + std::to_string(kMaxContexts) + " contexts of the domain are in use");
  auto context = make(slot);
  make_room(contexts_);
  closing_.reserve(closing_.size() + contexts_.size() + 1);
  if (thread_) thread_->add(context);
  contexts_.push_back(context);
  choose_lead();
  return context;
}

void ContextSet::close(Context& context) {
  if (inherited()) return;
  std::shared_ptr<Context> closing;
  std::shared_ptr<ProgressThread> thread;
  {
    const LockGuard lock(mutex_);
    const auto found =
        std::ranges::find_if(contexts_, [&](const auto& open) { return open.get() == &context; });
    if (found == contexts_.end()) return;
    closing = *found;
    contexts_.erase(found);
    closing_.push_back(closing);
    thread = thread_;
    choose_lead();
  }
  if (thread) thread->remove(context);
  counters_.end(closing->slot(), [&] { closing->close(); });
  const LockGuard lock(mutex_);
  std::erase(closing_, closing);
}

void ContextSet::close(std::span<const std::shared_ptr<Context>> contexts, bool apart) {
  if (inherited()) return;  // before the lock, which may have been held at the fork
  const auto end = [this](const std::shared_ptr<Context>& context) { close(*context); };
  if (apart || is_thread())
    std::ranges::for_each(contexts, end);
  else
    at_once(contexts, end);
}

void ContextSet::close_all(bool apart) {
  close(all(), apart);
  while (const auto context = first()) close(*context);  // contexts that were opened meanwhile
  counters_.clear();
}

bool ContextSet::is_thread() const noexcept {
  const LockGuard lock(mutex_);
  return thread_ && thread_->is_this_thread();
}

void ContextSet::end_thread(std::shared_ptr<void> owner) noexcept {
  std::shared_ptr<ProgressThread> thread;
  {
    const LockGuard lock(mutex_);
    thread = std::move(thread_);
  }
  if (thread) thread->end(std::move(owner));
  idle_wake_.notify_all();
}

void ContextSet::wait(const std::function<bool()>& done, Deadline deadline, bool others) {
  constexpr auto kSlice = std::chrono::milliseconds(1);
  const auto context = first();
  if (!context) {
    // Without a context nothing arrives, so only this process itself can do what is waited for.
    UniqueLock lock(idle_mutex_);
    idle_wake_.wait_until(lock.native(), deadline.sooner(std::chrono::milliseconds(50)).at());
  } else if (others) {
    progress();
    context->wait(done, deadline.sooner(kSlice));
  } else {
    context->wait(done, deadline);
  }
}

void ContextSet::progress() {
  visit([](Context& context) { context.progress(); });
}

void ContextSet::choose_lead() {
  const LockGuard lock(lead_mutex_);
  lead_ = contexts_.empty() ? nullptr : contexts_.front().get();
  segment_.header().waiter_slot.store(lead_ ? lead_->slot() : 0);
}

void ContextSet::wake() noexcept {
  const LockGuard lock(lead_mutex_);
  if (lead_) lead_->driver().wake();
  idle_wake_.notify_all();
}

std::shared_ptr<Context> ContextSet::first() const {
  const LockGuard lock(mutex_);
  return contexts_.empty() ? nullptr : contexts_.front();
}

// The context with the smallest slot from `slot` on. By this a visit needs no memory for a list of contexts.
std::shared_ptr<Context> ContextSet::from(std::size_t slot, bool closing) const {
  const LockGuard lock(mutex_);
  std::shared_ptr<Context> next;
  const auto look_at = [&](const auto& contexts) {
    for (const auto& context : contexts)
      if (context->slot() >= slot && (!next || context->slot() < next->slot())) next = context;
  };
  look_at(contexts_);
  if (closing) look_at(closing_);
  return next;
}

// All open contexts, or none if there is no memory for the list.
std::vector<std::shared_ptr<Context>> ContextSet::all() const noexcept try {
  const LockGuard lock(mutex_);
  return contexts_;
} catch (const std::bad_alloc&) {
  return {};
}

}  // namespace fab
