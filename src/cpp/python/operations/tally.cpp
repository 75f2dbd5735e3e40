#include "python/operations/tally.h"

#include <algorithm>

#include "base/locks/mutex.h"

namespace fab::python {

void Tally::enter(Entry& entry) {
  const LockGuard lock(mutex_);
  number(entry);
  entry.before = last_;
  entry.after = nullptr;
  (last_ ? last_->after : first_) = &entry;
  last_ = &entry;
  ++open_;
}

void Tally::leave(Entry& entry) noexcept {
  const LockGuard lock(mutex_);
  (entry.before ? entry.before->after : first_) = entry.after;
  (entry.after ? entry.after->before : last_) = entry.before;
  --open_;
}

void Tally::fail(Entry& entry, const Failure& failure) noexcept {
  const LockGuard lock(mutex_);
  number(entry);
  try {
    if (failures_.size() < kKept) failures_.push_back({entry.number, failure});
  } catch (const std::bad_alloc&) {
    return;  // the operation itself still has its failure
  }
}

void Tally::seen(std::uint64_t number) noexcept {
  const LockGuard lock(mutex_);
  for (Unseen& each : failures_)
    if (each.number == number) each.seen = true;
  if (flushes_ == 0) std::erase_if(failures_, [](const Unseen& each) { return each.seen; });
}

void Tally::expect_call(Entry& entry) {
  const LockGuard lock(mutex_);
  number(entry);
  uncalled_.insert(entry.number);
}

void Tally::called(std::uint64_t number) noexcept {
  const LockGuard lock(mutex_);
  if (const auto found = uncalled_.find(number); found != uncalled_.end()) uncalled_.erase(found);
  call_ended_.notify_all();
}

std::uint64_t Tally::begin_flush() noexcept {
  const LockGuard lock(mutex_);
  ++flushes_;
  return latest_;
}

void Tally::end_flush() noexcept {
  const LockGuard lock(mutex_);
  if (--flushes_ == 0) std::erase_if(failures_, [](const Unseen& each) { return each.seen; });
}

std::size_t Tally::open() const noexcept {
  const LockGuard lock(mutex_);
  return open_;
}

bool Tally::ended(std::uint64_t up_to) const noexcept {
  const LockGuard lock(mutex_);
  return !first_ || first_->number > up_to;
}

bool Tally::called_all(std::uint64_t up_to) const noexcept {
  const LockGuard lock(mutex_);
  return uncalled_.empty() || *uncalled_.begin() > up_to;
}

bool Tally::wait_called(std::uint64_t up_to, Deadline deadline) const {
  UniqueLock lock(mutex_);
  return call_ended_.wait_until(lock.native(), deadline.at(), [&]() FAB_REQUIRES(mutex_) {
    return uncalled_.empty() || *uncalled_.begin() > up_to;
  });
}

std::optional<Failure> Tally::take_failure(std::uint64_t up_to) {
  const LockGuard lock(mutex_);
  const auto covered =
      std::ranges::find_if(failures_, [&](const Unseen& each) { return each.number <= up_to; });
  if (covered == failures_.end()) return std::nullopt;
  const Failure first = covered->failure;
  std::erase_if(failures_, [&](const Unseen& each) { return each.number <= up_to; });
  return first;
}

}  // namespace fab::python
