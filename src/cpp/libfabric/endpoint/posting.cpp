#include <rdma/fi_errno.h>
#include <rdma/fi_trigger.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "libfabric/endpoint/endpoint.h"
#include "libfabric/plugin/boundary.h"
#include "libfabric/plugin/object.h"

namespace fab::fi {

Counter* Endpoint::counter_of(OpCode op) const noexcept {
  const auto of = [](const Cntr* counter) { return counter ? counter->counter().get() : nullptr; };
  switch (op) {
    case OpCode::send:
      return of(counters_.send);
    case OpCode::receive:
      return of(counters_.receive);
    case OpCode::read:
    case OpCode::fetch_atomic:
    case OpCode::compare_atomic:
      return of(counters_.read);
    default:
      return of(counters_.write);
  }
}

bool Endpoint::told(const Start& start, bool selective) noexcept {
  return !start.silent && (!selective || (start.flags & FI_COMPLETION));
}

ssize_t Endpoint::post(Op& op, const Start& start, fi_addr_t to, std::span<Transfer> transfers) {
  if (!begins()) {
    pool_->give(op);
    return -FI_EOPBADSTATE;
  }
  const bool begun =
      op.start(static_cast<std::uint32_t>(transfers.size()), {.context = start.context,
                                                              .flags = start.kind,
                                                              .queue = transmits_.queue(),
                                                              .counter = counter_of(transfers.front().op),
                                                              .told = told(start, transmits_.selective)});
  if (!begun) {
    pool_->give(op);
    return -FI_EAGAIN;
  }
  for (Transfer& transfer : transfers) transfer.operation = &op;
  return start.flags & FI_TRIGGER ? defer(op, to, transfers) : drive(op, to, transfers, false);
}

ssize_t Endpoint::drive(Op& op, fi_addr_t to, std::span<const Transfer> transfers, bool patient) {
  std::span<const Transfer> rest = transfers;
  Context::FullPath full;
  for (unsigned fruitless = 0; !rest.empty();) {
    const bool first = rest.size() == transfers.size() && !patient;  // nothing happened, so all is taken back
    std::size_t taken = 0;
    try {
      taken = context_->post(to, rest, full);
    } catch (...) {
      if (first) {
        op.take_back();
        throw;
      }
      const auto why = static_cast<Errc>(-caught(FI_LOG_EP_DATA, "an operation that has begun"));
      context_->abandon(op, static_cast<std::uint32_t>(rest.size()), why);
      return 0;
    }
    if (taken == 0 && first) {
      op.take_back();
      return -FI_EAGAIN;
    }
    rest = rest.subspan(taken);
    if (rest.empty()) break;
    if (full.ended) {
      context_->abandon(op, static_cast<std::uint32_t>(rest.size()), Errc::peer_lost);
      break;
    }
    fruitless = taken ? 0 : fruitless + 1;
    if (!taken) context_->make_room(fruitless);
  }
  return 0;
}

// Begins when the counter that the program's context names has come so far.
ssize_t Endpoint::defer(Op& op, fi_addr_t to, std::span<const Transfer> transfers) {
  try {
    const auto* const wish = static_cast<const fi_triggered_context*>(op.context);
    if (!wish || wish->event_type != FI_TRIGGER_THRESHOLD || !wish->trigger.threshold.cntr)
      throw Error(Errc::invalid,
                  "with FI_TRIGGER the context of a call is an fi_triggered_context of FI_TRIGGER_THRESHOLD");
    Cntr& counter = object_of<Cntr>(wish->trigger.threshold.cntr);
    const auto use = std::make_shared<Use>(counter.users());  // until it begins
    domain_.triggers().add(this, counter.counter(), wish->trigger.threshold.threshold,
                           [this, &op, to, all = std::vector(transfers.begin(), transfers.end()),
                            use](bool begin) { begin ? void(drive(op, to, all, true)) : op.take_back(); });
  } catch (...) {
    op.take_back();
    throw;
  }
  return 0;
}

ssize_t Endpoint::receive(Op& op, const Start& start, Receive receive, bool many, std::uint64_t claim) {
  if (!enabled()) {
    pool_->give(op);
    return -FI_EOPBADSTATE;
  }
  void* const buffer = receive.piece_count ? receive.pieces[0].iov_base : static_cast<void*>(receive.local);
  if (many) receive.least_room = std::max<std::size_t>(least_room_, 1);
  const bool begun = op.start(1, {.context = start.context,
                                  .flags = start.kind,
                                  .buffer = buffer,
                                  .queue = receives_.queue(),
                                  .counter = counter_of(OpCode::receive),
                                  .told = told(start, receives_.selective),
                                  .many = many});
  if (!begun) {
    pool_->give(op);
    return -FI_EAGAIN;
  }
  receive.operation = &op;
  bool posted = true;
  try {
    if (claim)
      posted = context_->inbox().receive_claimed(claim, receive);
    else
      context_->inbox().receive(receive);
  } catch (...) {
    op.take_back();
    throw;
  }
  if (posted) return 0;
  op.take_back();
  return -FI_ENOMSG;  // the message is gone with its sender
}

// Tells by an entry what `work` returns, which is done only if there is room for the entry.
template <class Work>
ssize_t Endpoint::tell_at_once(const Start& start, const Work& work) {
  CompletionQueue* const queue = receives_.queue();
  if (!queue) return -FI_ENOCQ;
  if (!queue->reserve()) return -FI_EAGAIN;
  Op* op = nullptr;
  Completion entry;
  try {
    op = &pool_->take();
    entry = work();
  } catch (...) {
    queue->unreserve();
    if (op) pool_->give(*op);
    throw;
  }
  op->context = start.context;
  op->flags = start.kind;
  op->buffer = nullptr;
  entry.context = reinterpret_cast<std::uint64_t>(op);
  entry.flags |= kOwnEntry;
  queue->push(entry);
  return 0;
}

ssize_t Endpoint::peek(const Start& start, const MatchRule& rule) {
  if (!enabled()) return -FI_EOPBADSTATE;
  const auto look = start.flags & FI_CLAIM     ? Inbox::Look::claim
                    : start.flags & FI_DISCARD ? Inbox::Look::discard
                                               : Inbox::Look::only;
  return tell_at_once(start, [&] {
    Completion entry;
    entry.tag = rule.tag;
    const auto found = context_->inbox().look(rule, look);
    if (!found) {
      entry.error = Errc::no_message;
      return entry;
    }
    entry.length = found->head.length;
    entry.data = found->head.data;
    entry.tag = found->head.tag;
    entry.source = found->source.id;
    if (found->head.has_data) entry.flags |= completion_flag::kRemoteData;
    if (found->claim) {
      const LockGuard lock(claims_mutex_);
      claims_[start.context] = {found->claim, entry};
    }
    return entry;
  });
}

std::optional<Endpoint::Claim> Endpoint::find_claim(void* user_context) {
  const LockGuard lock(claims_mutex_);
  const auto found = claims_.find(user_context);
  return found == claims_.end() ? std::nullopt : std::optional(found->second);
}

void Endpoint::forget_claim(void* user_context, std::uint64_t number) {
  const LockGuard lock(claims_mutex_);
  const auto found = claims_.find(user_context);
  if (found != claims_.end() && found->second.number == number) claims_.erase(found);
}

ssize_t Endpoint::discard_claimed(const Start& start) {
  if (!enabled()) return -FI_EOPBADSTATE;
  const auto claim = find_claim(start.context);
  if (!claim) return -FI_EINVAL;
  return tell_at_once(start, [&] {
    context_->inbox().discard_claimed(claim->number);
    forget_claim(start.context, claim->number);
    return claim->entry;
  });
}

ssize_t Endpoint::cancel(void* user_context) {
  if (!enabled()) return -FI_EOPBADSTATE;
  const auto wanted = [user_context](const Operation& operation) {
    return static_cast<const Op&>(operation).context == user_context;
  };
  return context_->inbox().cancel_oldest(wanted) ? 0 : -FI_ENOENT;
}

}  // namespace fab::fi
