#include "fabric/completion/operation.h"

#include "fabric/completion/completion_queue.h"
#include "fabric/completion/counter.h"

namespace fab {

void Operation::withdraw() noexcept {
  if (queue_) queue_->unreserve();
  queue_ = nullptr;
}

void Operation::begin_array() noexcept {
  static std::atomic<std::uint32_t> latest{0};
  do array_ = ++latest;
  while (array_ == 0);
}

void Operation::abandon(std::uint32_t transfers, Errc error) noexcept {
  if (transfers == 0) return;
  open_transfers_ -= transfers - 1;
  settle(error, 0);
}

void Operation::end_receive(const Completion& what) noexcept {
  completion_.length += what.length;
  completion_.data = what.data;
  completion_.tag = what.tag;
  completion_.source = what.source;
  completion_.offset = what.offset;
  completion_.overflow = what.overflow;
  completion_.flags |= what.flags;
  if (completion_.error == Errc::ok) completion_.error = what.error;
  if (--open_transfers_ == 0) finish();
}

void Operation::tell(const Completion& what) noexcept {
  if (!queue_) return;
  Completion entry = what;
  entry.context = completion_.context;
  entry.flags |= completion_.flags | completion_flag::kMore;
  queue_->push_remote(entry);
}

[[gnu::hot]] void Operation::finish() noexcept {
  // A thread that waits for done() may free an operation without a hook at once, so what is still needed is
  // read first.
  Counter* const counter = counter_;
  const Hook hook = hook_;
  const Errc error = completion_.error;
  if (queue_) queue_->push(completion_);
  done_.store(true, std::memory_order_release);
  if (hook) hook(*this);
  if (counter) error == Errc::ok ? counter->add(1) : counter->fail();
}

}  // namespace fab
