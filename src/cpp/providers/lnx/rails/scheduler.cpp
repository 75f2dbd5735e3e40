#include "providers/lnx/rails/scheduler.h"

#include <algorithm>
#include <utility>

namespace fab::lnx {
namespace {

constexpr std::uint64_t kMedium =
    16 * 1024;  // bytes of a put or get from which on it may leave the primary rail

}  // namespace

bool Scheduler::send() noexcept {
  const bool moved = send_whole();
  return send_stripes() || moved;
}

// --- which rail

// Chooses the first rail that is up and trusted, or else the first that is up, as soon as nothing is under
// way on the primary rail before. False: there is no primary rail now.
bool Scheduler::choose_primary() noexcept {
  Rail* best = nullptr;
  const auto consider = [&](Rail& rail) {
    if ((!best || (rail.trusted && !best->trusted)) && rails_.usable(rail)) best = &rail;
  };
  for (const auto& rail : rails_)
    if (rail->link.tag == parameters_.preferred) consider(*rail);
  for (const auto& rail : rails_) {
    if (best && best->trusted) break;
    consider(*rail);
  }
  Rail*& primary = rails_.primary;
  if (primary && primary != best && primary->wholes != 0) return rails_.usable(*primary);
  if (best) primary = best;
  return best != nullptr;
}

// The rail for a whole request; null: it has to wait.
Rail* Scheduler::rail_for(const Request& request) noexcept {
  if (journal_.waits_for_number(request)) return nullptr;
  if (request.ordered) return unordered_open_ == 0 ? rails_.primary : nullptr;
  const bool free = request.transfer.op == OpCode::send ||
                    (moves_data(request.transfer.op) && request.transfer.length >= kMedium);
  return free ? rails_.best_for(request.transfer.length) : rails_.primary;
}

// --- as a whole

bool Scheduler::send_whole() noexcept {
  bool moved = false;
  while (Request* const first = waiting_.front()) {
    if (parameters_.slice.spent()) break;
    if (first->striped) {
      if (first->ordered && unordered_open_ != 0) break;
      if (first->transfer.op == OpCode::write) open_unordered(*first);
      striping_.push_back(*first);
      moved = true;
      continue;
    }
    if (!choose_primary()) break;
    Rail* const rail = rail_for(*first);
    if (!rail) break;
    bool full = false;
    moved |= send_batch(*rail, full);
    if (full) break;
  }
  return moved;
}

// Sends the first requests that take this rail, as many as it takes. True if any was sent.
bool Scheduler::send_batch(Rail& rail, bool& full) noexcept {
  Transfer batch[kBatch];
  bool raced[kBatch];
  std::size_t count = 0;
  for (; count < kBatch; ++count) {
    Request* const next = waiting_.front();
    if (!next || (count && (next->striped || parameters_.slice.spent() || rail_for(*next) != &rail))) break;
    RequestQueue::leave(*next);
    Posting& posting = next->posting;
    rail.begin(posting, Posting::Kind::whole, next);
    posting.length = next->transfer.length;
    posting.out = bytes_out(next->transfer);
    posting.back = bytes_back(next->transfer);
    rail.track(posting);
    parameters_.slice.spend(0);
    raced[count] = health_.enters_race(rail, posting);
    if (&rail != rails_.primary && next->transfer.op == OpCode::write) open_unordered(*next);
    batch[count] = transfer_of(*next);
  }
  const std::size_t posted = rail.path->post({batch, count});
  for (std::size_t i = 0; i < posted; ++i)
    if (raced[i]) health_.shadow(bytes_out(batch[i]), bytes_back(batch[i]));
  for (std::size_t i = posted; i < count; ++i) {
    auto& posting = static_cast<Posting&>(*batch[i].operation);
    rail.untrack(posting);
    if (raced[i]) health_.scratch(posting);
    close_unordered(*posting.request);
    waiting_.put_back(*posting.request);
  }
  full = posted < count;
  return posted != 0;
}

// The request as it goes over a rail, with its number.
Transfer Scheduler::transfer_of(Request& request) noexcept {
  Transfer transfer = request.transfer;
  transfer.operation = &request.posting;
  transfer.flags &=
      transfer_flag::kRemoteData | transfer_flag::kTagged | transfer_flag::kPiece | transfer_flag::kLastPiece;
  if (transfer.delivery != Delivery::commit) transfer.delivery = Delivery::delivery;
  if (transfer.op == OpCode::read) return transfer;
  transfer.flags |= transfer_flag::kMarked;
  journal_.number(request);
  request.posting.frame = {.id = request.number};
  return transfer;
}

// --- in stripes

bool Scheduler::send_stripes() noexcept {
  bool moved = false;
  for (Request* at = striping_.front(); at && !parameters_.slice.spent();) {
    Request& request = *at;
    ++request.postings;  // keeps the request, because what is posted may end at once
    if (request.error == Errc::ok && all_stored(request) && !request.end_sent) moved |= send_end(request);
    moved |= send_stripes_of(request);
    --request.postings;
    at = request.queue.next;
    finish_if_over(request);  // takes it out of the queue
  }
  return moved;
}

// Sends stripes over all rails that have room, in turn.
bool Scheduler::send_stripes_of(Request& request) noexcept {
  const auto has_room = [this](const auto& rail) {
    return rail->stripes < kStripesAhead && !parameters_.slice.spent() && rails_.usable(*rail);
  };
  bool moved = false;
  bool any = std::ranges::any_of(rails_, has_room);
  while (any && has_more(request)) {
    any = false;
    for (const auto& rail : rails_)
      if (has_more(request) && has_room(rail)) any |= send_stripe(request, *rail);
    moved |= any;
  }
  return moved;
}

bool Scheduler::send_stripe(Request& request, Rail& rail) noexcept {
  Stripe& stripe = *rail.free_stripe();
  rail.begin(stripe, Posting::Kind::stripe, &request);
  // The range is taken before the post, because the stripe may come back at once.
  const Range range = next_range(request, rails_.share(rail) / kStripesAhead,
                                 longest_stripe(rail.rate, rail.link.weight > 0));
  (request.transfer.op == OpCode::read ? stripe.back : stripe.out) = range.length;
  rail.begin_stripes();
  if (rail.post(stripe, stripe_of(request, stripe, range))) return true;
  request.holes.push_back(range);
  return false;
}

// All stripes are stored: sends the end, with what happens once.
bool Scheduler::send_end(Request& request) noexcept {
  if (!choose_primary()) return false;
  Rail& rail = *rails_.primary;
  rail.begin(request.posting, Posting::Kind::end, &request);
  Transfer transfer = transfer_of(request);
  transfer.flags |= transfer_flag::kStored;
  if (transfer.piece_count == 0) transfer.local = nullptr;
  request.end_sent = true;
  if (rail.post(request.posting, transfer)) return true;
  request.end_sent = false;
  return false;
}

// --- outcomes

void Scheduler::ended(Rail& rail, Posting& posting, Errc error) noexcept {
  Request& request = *posting.request;
  if (request.error == Errc::ok) request.error = error;
  if (error == Errc::ok && posting.kind == Posting::Kind::stripe) {
    request.stored += posting.length;
    health_.arrived(rail, posting.length);
  }
  finish_if_over(request);
}

void Scheduler::lost(Posting& posting) noexcept {
  Request& request = *posting.request;
  rails_.lost_some = true;
  if (posting.kind == Posting::Kind::stripe) {
    request.holes.push_back({posting.frame.data, posting.length});
  } else if (posting.kind == Posting::Kind::end) {
    request.end_sent = false;
  } else {
    close_unordered(request);
    waiting_.put_back(request);
  }
  if (request.error != Errc::ok) finish_if_over(request);  // another stripe failed, or all of the rails
}

void Scheduler::fail(Request& request, Errc error) noexcept {
  if (request.error == Errc::ok) request.error = error;
  if (request.postings == 0) finish(request);
}

void Scheduler::finish_if_over(Request& request) noexcept {
  if (request.over || request.postings != 0) return;
  if (request.striped && request.error == Errc::ok) {
    if (!all_stored(request)) return;
    if (request.transfer.op == OpCode::write && !request.end_sent) return;
  }
  finish(request);
}

void Scheduler::finish(Request& request) noexcept {
  close_unordered(request);
  journal_.finish(request);
}

void Scheduler::open_unordered(Request& request) noexcept {
  if (!std::exchange(request.unordered_open, true)) ++unordered_open_;
}

void Scheduler::close_unordered(Request& request) noexcept {
  if (std::exchange(request.unordered_open, false)) --unordered_open_;
}

}  // namespace fab::lnx
