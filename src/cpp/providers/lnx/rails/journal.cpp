#include "providers/lnx/rails/journal.h"

#include <algorithm>
#include <memory>
#include <new>

#include "fabric/memory/check_transfer.h"
#include "fabric/memory/local_memory.h"
#include "providers/lnx/rails/stripes.h"

namespace fab::lnx {

std::uint64_t result_cost(const Transfer& transfer) noexcept {
  return fetches(transfer.op) ? 2 * Journal::kRecord + transfer.length : 0;
}

Journal::~Journal() {
  forget_notes();
  while (Request* request = spare_.front()) {
    spare_.erase(*request);
    delete request;
  }
}

// --- requests

Request* Journal::accept(const Transfer& transfer, Errc state) noexcept {
  ++counts_.posted;
  Errc wrong = state != Errc::ok ? state : check_transfer(transfer);
  std::unique_ptr<Request> request;
  if (wrong == Errc::ok) try {
      request = make();
      request->transfer = transfer;
      request->posting.belongs_to(transfer.operation->array());
      const bool data = transfer.flags & transfer_flag::kRemoteData;
      const bool free = transfer.op == OpCode::send && (transfer.flags & transfer_flag::kUnordered);
      request->ordered = !free && (!moves_data(transfer.op) || (transfer.op == OpCode::write && data));
      request->striped = may_be_striped(transfer);
      if (request->striped) request->holes.reserve(kMostHoles);
      if (transfer.delivery == Delivery::inject && transfer.op != OpCode::read && !fetches(transfer.op)) {
        request->copy = std::make_unique_for_overwrite<std::byte[]>(transfer.length);
        request->context = transfer.operation->completion().context;
        request->flags = transfer.operation->late_flags();
        if (!gather(transfer, request->copy.get())) wrong = Errc::bounds;
        request->transfer.local = request->copy.get();
        request->transfer.piece_count = 0;
      }
    } catch (const std::bad_alloc&) {
      wrong = Errc::no_memory;
    }
  if (wrong != Errc::ok) {
    counts_.settle(transfer.op, 0, wrong);
    transfer.operation->settle(wrong, 0);
    return nullptr;
  }
  request->place = counts_.posted;
  ++live_;
  open_.push_back(*request);
  if (request->copy) std::exchange(request->transfer.operation, nullptr)->settle(Errc::ok, transfer.length);
  return request.release();
}

std::unique_ptr<Request> Journal::make() {
  std::unique_ptr<Request> request(spare_.front());
  if (!request) return std::make_unique<Request>();
  spare_.erase(*request);
  --spares_;
  std::destroy_at(request.get());
  std::construct_at(request.get());
  return request;
}

void Journal::recycle(Request& request) noexcept {
  std::unique_ptr<Request> owned(&request);
  if (spares_ >= kMostSpare) return;
  request.copy.reset();
  request.holes = {};
  spare_.push_back(*owned.release());
  ++spares_;
}

void Journal::finish(Request& request) noexcept {
  request.over = true;
  RequestQueue::leave(request);
  open_.erase(request);
  --live_;
  const bool failed = request.error != Errc::ok;
  counts_.settle(request.transfer.op, request.transfer.length, request.error);
  if (request.number != 0) {
    ++settled_untold_;
    if (failed) keep_result(2 * kRecord, request.number);
  }
  if (request.transfer.operation)
    request.transfer.operation->settle(request.error, request.transfer.length);
  else if (failed)
    completions_.push_remote({.context = request.context, .error = request.error, .flags = request.flags});
  if (request.announced)
    notes_.push_back(request);
  else
    recycle(request);
}

std::uint64_t Journal::oldest() const noexcept {
  const Request* const oldest = open_.front();
  return oldest ? oldest->place : counts_.posted + 1;
}

// --- numbers

void Journal::number(Request& request) noexcept {
  if (request.number != 0) return;
  request.number = next_number_++;
  if (const std::uint64_t cost = result_cost(request.transfer)) keep_result(cost, request.number);
}

void Journal::keep_result(std::uint64_t cost, std::uint64_t number) noexcept {
  results_ += cost;
  last_result_ = std::max(last_result_, number);
}

bool Journal::waits_for_number(const Request& request) const noexcept {
  return request.number == 0 && results_ >= kMostResults && fetches(request.transfer.op);
}

// --- what the peer need not remember any longer

std::uint64_t Journal::mark() const noexcept {
  std::uint64_t mark = next_number_;
  for (const Request& request : open_)
    if (request.number != 0 && !request.announced_now()) mark = std::min(mark, request.number);
  return mark;
}

bool Journal::mark_is_due() const noexcept {
  return much_settled() || (results_ >= kMostResults && settled_untold_ != 0);
}

void Journal::mark_is_known(std::uint64_t mark) noexcept {
  if (mark > last_result_) results_ = 0;
}

void Journal::mark_was_lost() noexcept { settled_untold_ = std::max(settled_untold_, kSettledAtOnce); }

void Journal::forget_notes() noexcept {
  while (Request* note = notes_.front()) {
    RequestQueue::leave(*note);
    recycle(*note);
  }
}

}  // namespace fab::lnx
