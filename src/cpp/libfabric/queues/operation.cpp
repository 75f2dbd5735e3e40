#include "libfabric/queues/operation.h"

namespace fab::fi {

bool Op::start(std::uint32_t transfers, const Call& call) {
  context = call.context;
  flags = call.flags;
  buffer = static_cast<std::byte*>(call.buffer);
  queue_ = call.queue;
  told_ = (call.told || call.many) && call.queue;  // the last entry of a receive for many is always told
  many_ = call.many;
  ends_.store(2, std::memory_order_relaxed);
  if (told_ && !queue_->reserve()) return false;
  // Receives for several messages leave their entries to the core, which knows each message. Otherwise the
  // entry is made in settled(): then nothing uses the operation any more when the program can read it.
  const auto own = reinterpret_cast<std::uint64_t>(many_ ? static_cast<void*>(this) : call.context);
  begin({.transfers = transfers,
         .context = own,
         .flags = many_ ? kOwnEntry : 0,
         .queue = many_ ? queue_ : nullptr,
         .counter = call.counter,
         .hook = &Op::settled});
  return true;
}

void Op::take_back() noexcept {
  if (told_) queue_->unreserve();
  pool.give(*this);
}

Op::Room& Op::room() {
  if (!room_) room_ = std::make_unique_for_overwrite<Room>();
  return *room_;
}

void Op::end_many() noexcept {
  if (ends_.fetch_sub(1, std::memory_order_acq_rel) == 1) pool.give(*this);
}

void Op::entry_read(bool last) noexcept {
  if (!last) return;
  many_ ? end_many() : pool.give(*this);
}

// Under the lock of the context that moves the operation.
void Op::settled(Operation& operation) noexcept {
  Op& op = static_cast<Op&>(operation);
  if (op.many_) {
    // Without a queue, and at the end of the endpoint, which takes the place back, there is no last entry.
    if (!op.queue_ || op.pool.closing()) op.ends_.store(1, std::memory_order_relaxed);
    return op.end_many();
  }
  if (op.pool.closing()) return op.take_back();
  Completion entry = op.completion();
  if (!op.queue_ || (entry.error == Errc::ok && !op.told_)) return op.pool.give(op);
  entry.context = reinterpret_cast<std::uint64_t>(&op);
  entry.flags |= kOwnEntry;
  op.told_ ? op.queue_->push(entry) : op.queue_->push_remote(entry);
}

Op& OpPool::take() {
  const LockGuard lock(mutex_);
  if (Op* const op = free_) {
    free_ = op->next;
    return *op;
  }
  return all_.emplace_back(*this);
}

void OpPool::give(Op& op) noexcept {
  const LockGuard lock(mutex_);
  op.next = free_;
  free_ = &op;
}

}  // namespace fab::fi
