#include "fabric/completion/completion_queue.h"

#include <sys/eventfd.h>

#include <new>
#include <string>

#include "base/locks/mutex.h"
#include "fabric/types/error.h"

namespace fab {

CompletionQueue::CompletionQueue(std::size_t size, WhenFull when_full)
    : size_(size),
      ring_(static_cast<Completion*>(std::calloc(size, sizeof(Completion)))),
      when_full_(when_full) {
  if (size == 0) throw Error(Errc::invalid, "a completion queue needs room for at least one entry");
  if (!ring_) throw std::bad_alloc();
}

bool CompletionQueue::reserve() noexcept {
  if (when_full_ == WhenFull::forget_oldest) return true;
  const LockGuard lock(mutex_);
  if (count_ + reserved_ >= size_) return false;
  ++reserved_;
  return true;
}

void CompletionQueue::unreserve() noexcept {
  if (when_full_ == WhenFull::forget_oldest) return;
  const LockGuard lock(mutex_);
  --reserved_;
}

void CompletionQueue::append(const Completion& completion) noexcept {
  ring_[place_of(count_)] = completion;
  if (++count_ == 1 && event_.valid()) {
    const std::uint64_t one = 1;
    [[maybe_unused]] const auto written = ::write(event_.get(), &one, sizeof one);
  }
}

// Forgets the oldest entry of an own operation, whose outcome is also in the operation. Entries for what
// peers did stay: nothing else tells of that.
bool CompletionQueue::forget_own() noexcept {
  constexpr std::uint32_t kOfPeers = completion_flag::kRemoteWrite | completion_flag::kMore;
  std::size_t oldest = 0;
  while (oldest < count_ && (ring_[place_of(oldest)].flags & kOfPeers)) ++oldest;
  if (oldest == count_) return false;
  for (; oldest; --oldest) ring_[place_of(oldest)] = ring_[place_of(oldest - 1)];
  head_ = place_of(1);
  --count_;
  return true;
}

[[gnu::hot]] void CompletionQueue::push(const Completion& completion) noexcept {
  {
    const LockGuard lock(mutex_);
    if (when_full_ == WhenFull::refuse)
      --reserved_;
    else if (count_ == size_ && !forget_own())
      return;
    append(completion);
  }
  wakeup_.notify();
}

void CompletionQueue::push_remote(const Completion& completion) noexcept {
  {
    const LockGuard lock(mutex_);
    const bool full = count_ + reserved_ >= size_;
    if (full && (when_full_ == WhenFull::refuse || !forget_own()))
      ++lost_;
    else
      append(completion);
  }
  wakeup_.notify();
}

std::size_t CompletionQueue::read(std::span<Completion> out) {
  const LockGuard lock(mutex_);
  if (lost_) {
    const auto lost = std::exchange(lost_, 0);
    throw Error(Errc::overrun, "the completion queue of " + std::to_string(size_) +
                                   " entries was full: " + std::to_string(lost) +
                                   " entries from peers were lost; read it more often or make it larger");
  }
  std::size_t taken = 0;
  for (; taken < out.size() && count_; ++taken, --count_) {
    out[taken] = ring_[head_];
    head_ = place_of(1);
  }
  if (count_ == 0 && event_.valid()) {
    std::uint64_t value;
    [[maybe_unused]] const auto got = ::read(event_.get(), &value, sizeof value);
  }
  return taken;
}

bool CompletionQueue::empty() const noexcept {
  const LockGuard lock(mutex_);
  return count_ == 0 && lost_ == 0;
}

int CompletionQueue::event_fd() {
  const LockGuard lock(mutex_);
  if (!event_.valid())
    event_.reset(check_call(::eventfd(count_ ? 1 : 0, EFD_CLOEXEC | EFD_NONBLOCK), "eventfd"));
  return event_.get();
}

}  // namespace fab
