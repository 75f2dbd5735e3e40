#include "providers/lnx/rails.h"

#include <algorithm>
#include <bit>
#include <cstdio>
#include <new>
#include <stdexcept>

#include "fabric/address_vector/address_vector.h"
#include "fabric/completion/completion_queue.h"
#include "fabric/memory/check_transfer.h"
#include "fabric/memory/local_memory.h"
#include "fabric/types/error.h"
#include "providers/lnx/rail.h"

namespace fab::lnx {
namespace {

using std::chrono::milliseconds;

constexpr std::uint64_t kStriped = 256 * 1024;  // bytes of a put or get from which on it is cut into stripes
constexpr std::uint64_t kMedium = 16 * 1024;    // and from which on it may leave the primary rail
constexpr std::uint64_t kLeastStripe = 64 * 1024, kFirstStripe = 256 * 1024, kMostStripe = 4 << 20;
constexpr std::size_t kMostOpen = 4096;  // requests
constexpr std::size_t kMostHoles = 64;   // of a striped one
static_assert(kMostHoles >= std::size_t{kStripesAhead} * kMaxRails);
constexpr std::size_t kMostSpare = 256;
constexpr std::size_t kBatch = 32;
constexpr std::uint64_t kSettledAtOnce = 64;
constexpr double kMeasured = 0.3;       // weight of the newest measurement
constexpr double kMeasuredFor = 0.004;  // seconds at least: acknowledgements come in bunches
constexpr Clock::duration kLongestPause = milliseconds(1000),
                          kLongestOfNew = milliseconds(30'000);  // a link that never led anywhere
constexpr double kLongestStripe = 0.05;                          // seconds
constexpr unsigned kFirstTries = 3;                              // to reach a peer that was never reached
constexpr Clock::duration kGrace = milliseconds(1000);  // for rails that were refused, when none is left
constexpr Clock::duration kLate = milliseconds(500);    // that a rail may rise after another one
constexpr unsigned kLossesForgiven = 2;  // of a rail that carried, in a row, each soon after it rose
constexpr Clock::duration kSoon = milliseconds(10'000);

constexpr std::uint64_t kMostResults = Flow::kMostResults / 2;  // result_cost() of all that is not settled

bool moves_data(OpCode op) noexcept { return op == OpCode::write || op == OpCode::read; }

constexpr double kLeastShare = 0.1;  // of the best rail's bandwidth: less is not worth its last stripe
constexpr unsigned kStrikes = 3;     // such measurements in a row

std::uint64_t bytes_out(const Transfer& transfer) noexcept {
  return transfer.op == OpCode::read ? 0 : transfer.length;
}
std::uint64_t bytes_back(const Transfer& transfer) noexcept {
  const bool fetches = transfer.op == OpCode::fetch_atomic || transfer.op == OpCode::compare_atomic;
  return transfer.op == OpCode::read || fetches ? transfer.length : 0;
}

// What the peer has to keep of an outcome, beside runs of plain successes; bytes.
constexpr std::uint64_t kRecord = kMostResults / Flow::kMostUnsettled;
std::uint64_t result_cost(const Transfer& transfer) noexcept {
  const bool fetches = transfer.op == OpCode::fetch_atomic || transfer.op == OpCode::compare_atomic;
  return fetches ? 2 * kRecord + transfer.length : 0;
}

}  // namespace

Rails::Rails(Parameters parameters, const std::vector<Link>& links)
    : parameters_(std::move(parameters)),
      peer_(parameters_.peer),
      generation_(parameters_.peers.generation(peer_)),
      flow_(parameters_.flow),
      lost_since_(parameters_.attended()) {
  rails_.reserve(links.size());
  for (const Link& link : links)
    rails_.push_back(std::make_unique<Rail>(link, static_cast<std::uint32_t>(rails_.size()), links.size()));
  // From here on parts are under way, which name this object.
  for (const auto& rail : rails_) {
    rail->missed_since = parameters_.clock();
    connect(*rail);
  }
}

Rails::~Rails() {
  ending_ = true;
  fail(Errc::canceled);
  for (const auto& rail : rails_) rail->path.reset();
  while (Request* request = notes_.front()) {
    leave_queue(*request);
    delete request;
  }
  while (Request* request = spare_.front()) {
    spare_.erase(*request);
    delete request;
  }
  while (Part* part = spare_probes_.front()) {
    spare_probes_.erase(*part);
    delete part;
  }
}

bool Rails::known() const noexcept { return parameters_.peers.generation(peer_) == generation_; }

void Rails::known_as(PeerId peer) noexcept {
  peer_ = peer;
  generation_ = parameters_.peers.generation(peer);
}

Rails::Rail& Rails::rail_of(const Part& part) noexcept { return *rails_[part.slot]; }

unsigned Rails::up() const noexcept {
  return static_cast<unsigned>(
      std::ranges::count_if(rails_, [](const auto& rail) { return rail->state == Rail::State::up; }));
}

bool Rails::at_rest() const noexcept {
  return !watched_ && parts_open_ == 0 && std::ranges::all_of(rails_, [](const auto& rail) {
    return rail->up() && rail->aside == Clock::duration::zero();
  });
}

void Rails::notice() noexcept { parameters_.on_work(*this); }

// --- what the user posts

void Rails::hint(const RemoteRegion& region) {
  for (const auto& rail : rails_)
    if (rail->path) rail->path->hint(region);
}

std::size_t Rails::post(std::span<const Transfer> batch) noexcept {
  std::size_t taken = 0;
  for (const Transfer& transfer : batch) {
    if (live_ >= kMostOpen) break;
    ++taken;
    ++counts_.posted;
    Errc wrong = state_ != Errc::ok ? state_ : check_transfer(transfer);
    Request* const request = wrong == Errc::ok ? new_request(transfer) : nullptr;
    if (wrong == Errc::ok && !request) wrong = Errc::no_memory;
    if (wrong != Errc::ok) {
      ++counts_.errors;
      transfer.operation->settle(wrong, 0);
      continue;
    }
    request->place = counts_.posted;
    ++live_;
    open_.push_back(*request);
    enqueue(*request, Queue::waiting);
    if (request->copy) std::exchange(request->transfer.operation, nullptr)->settle(Errc::ok, transfer.length);
  }
  if (rails_.size() > 1) watch();
  pump();
  return taken;
}

// With all the memory that it will need. Null: there is none.
Rails::Request* Rails::new_request(const Transfer& transfer) noexcept try {
  std::unique_ptr<Request> request(spare_.front());
  if (request) {
    spare_.erase(*request);
    --spares_;
    std::destroy_at(request.get());
    std::construct_at(request.get());
  } else {
    request = std::make_unique<Request>();
  }
  request->transfer = transfer;
  request->part.belongs_to(transfer.operation->array());
  const bool data = transfer.flags & transfer_flag::kRemoteData;
  const bool free = transfer.op == OpCode::send && (transfer.flags & transfer_flag::kUnordered);
  request->ordered = !free && (!moves_data(transfer.op) || (transfer.op == OpCode::write && data));
  request->striped = moves_data(transfer.op) && transfer.length >= kStriped &&
                     transfer.piece_count <= kMostPieces &&
                     transfer.remote + transfer.length >= transfer.remote;  // else the peer refuses it
  if (request->striped) request->holes.reserve(kMostHoles);
  const bool reads = transfer.op == OpCode::read || result_cost(transfer) != 0;
  if (transfer.delivery == Delivery::inject && !reads) {
    request->copy = std::make_unique_for_overwrite<std::byte[]>(transfer.length);
    request->context = transfer.operation->completion().context;
    request->flags = transfer.operation->late_flags();
    gather(local_of(transfer), request->copy.get(), transfer.length);
    request->transfer.local = request->copy.get();
    request->transfer.piece_count = 0;
  }
  return request.release();
} catch (const std::bad_alloc&) {
  return nullptr;
}

void Rails::recycle(Request& request) noexcept {
  std::unique_ptr<Request> owned(&request);
  if (spares_ >= kMostSpare) return;
  request.copy.reset();
  request.holes = {};
  spare_.push_back(*owned.release());
  ++spares_;
}

// --- where requests wait

Rails::Requests& Rails::list(Queue queue) noexcept {
  return queue == Queue::waiting ? waiting_ : queue == Queue::striping ? striping_ : notes_;
}

void Rails::leave_queue(Request& request) noexcept {
  if (requeued_ == &request) requeued_ = nullptr;
  if (request.in != Queue::none) list(request.in).erase(request);
  request.in = Queue::none;
}

void Rails::enqueue(Request& request, Queue queue) noexcept {
  leave_queue(request);
  request.in = queue;
  list(queue).push_back(request);
}

// In its place among those that wait. They mostly come back in order.
void Rails::requeue(Request& request) noexcept {
  leave_queue(request);
  Request* before = requeued_ && requeued_->place < request.place ? requeued_ : nullptr;
  for (Request* next = before ? before->queue.next : waiting_.front(); next && next->place < request.place;
       next = next->queue.next)
    before = next;
  request.in = Queue::waiting;
  waiting_.insert_after(before, request);
  requeued_ = &request;
}

PathCounts Rails::counts() const noexcept {
  PathCounts counts = counts_;
  counts.settled = counts.posted - live_;
  return counts;
}

std::uint64_t Rails::oldest() const noexcept {
  const Request* const oldest = open_.front();
  return oldest ? oldest->place : counts_.posted + 1;
}

void Rails::finish(Request& request) noexcept {
  request.over = true;
  leave_queue(request);
  open_.erase(request);
  --live_;
  const std::uint64_t length = request.error == Errc::ok ? request.transfer.length : 0;
  if (request.error != Errc::ok) {
    ++counts_.errors;
  } else {
    counts_.bytes_out += bytes_out(request.transfer);
    counts_.bytes_in += bytes_back(request.transfer);
  }
  if (request.unordered_open) --unordered_open_;
  if (request.error != Errc::ok && request.number != 0) {
    results_ += 2 * kRecord;
    last_result_ = std::max(last_result_, request.number);
  }
  if (request.number != 0) ++unsettled_;
  if (request.transfer.operation)
    request.transfer.operation->settle(request.error, length);
  else if (request.error != Errc::ok)
    parameters_.completions.push_remote(
        {.context = request.context, .error = request.error, .flags = request.flags});
  if (request.announced)
    enqueue(request, Queue::notes);
  else
    recycle(request);
}

// --- parts

void Rails::begin(Part& part, PartKind kind, const Rail& rail, Request* request) noexcept {
  part.rails = this;
  part.request = request;
  part.slot = rail.slot;
  part.kind = kind;
  part.length = part.out = part.back = 0;
  part.trial = 0;
  part.announced = kind == PartKind::whole && request->announced;
  part.begin(1, 0, 0, nullptr, nullptr, &Rails::on_part);
}

// The request as it goes over a rail, with its number.
Transfer Rails::transfer_of(Request& request) noexcept {
  Transfer transfer = request.transfer;
  transfer.operation = &request.part;
  transfer.flags &=
      transfer_flag::kRemoteData | transfer_flag::kTagged | transfer_flag::kPiece | transfer_flag::kLastPiece;
  if (transfer.delivery != Delivery::commit) transfer.delivery = Delivery::delivery;
  if (transfer.op == OpCode::read) return transfer;
  transfer.flags |= transfer_flag::kNumbered;
  if (request.number == 0) {
    request.number = next_number_++;
    if (const std::uint64_t cost = result_cost(request.transfer)) {
      results_ += cost;
      last_result_ = request.number;
    }
  }
  request.part.number = request.number;
  return transfer;
}

void Rails::track(Part& part) noexcept {
  Rail& rail = rail_of(part);
  ++parts_open_;
  part.under_way = true;
  part.posted = parameters_.attended();
  rail.under_way.push_back(part);
  ++rail.parts;
  rail.bytes += part.length;
  if (part.kind == PartKind::stripe) ++rail.stripes;
  if (part.kind == PartKind::whole || part.kind == PartKind::end) ++rail.wholes;
  if (part.request) ++part.request->parts;
}

void Rails::untrack(Part& part) noexcept {
  Rail& rail = rail_of(part);
  --parts_open_;
  part.under_way = false;
  rail.under_way.erase(part);
  --rail.parts;
  rail.bytes -= part.length;
  if (part.kind == PartKind::stripe) --rail.stripes;
  if (part.kind == PartKind::whole || part.kind == PartKind::end) --rail.wholes;
  if (part.request) --part.request->parts;
}

void Rails::on_part(Operation& operation) noexcept {
  auto& part = static_cast<Part&>(operation);
  part.rails->part_ended(part);
}

// Runs inside of a link's path, which may be at its end: only notes what is to be done.
void Rails::part_ended(Part& part) noexcept {
  Rail& rail = rail_of(part);
  const Errc error = part.completion().error;
  const auto now = parameters_.attended();
  untrack(part);
  tally(rail, part, now);
  rail.ended_at = now;
  switch (part.kind) {
    case PartKind::join:
      join_ended(rail, error);
      break;
    case PartKind::probe:
      probe_ended(rail, part, error, now);
      break;
    case PartKind::note:
      note_ended(part, error);
      break;
    case PartKind::fence:
      if (error != Errc::ok && !ending_) rail.broken = true;  // what goes on would not be fenced off
      if (rail.broken || rail.unfenced != 0) notice();
      break;
    case PartKind::whole:
    case PartKind::end:
    case PartKind::stripe:
      request_part_ended(rail, part, error);
  }
}

void Rails::request_part_ended(Rail& rail, Part& part, Errc error) noexcept {
  Request& request = *part.request;
  request.announced |= part.announced;
  request.sent_small |= request.transfer.op == OpCode::send && !part.announced;
  const bool striped = request.striped;
  const bool lost = error != Errc::ok && !ending_ && !rail.stands();
  if (lost) {
    lose(part);
  } else {
    if (error == Errc::ok) answered_ = true;
    if (request.error == Errc::ok) request.error = error;
    if (error == Errc::ok && part.kind == PartKind::stripe) {
      request.stored += part.length;
      measure(rail, part);
    }
    finish_if_over(request);
  }
  if (lost || striped || !waiting_.empty() || !striping_.empty() || unsettled_ >= kSettledAtOnce ||
      !notes_.empty())
    notice();
}

// With its rail. It waits again, in its place.
void Rails::lose(Part& part) noexcept {
  Request& request = *part.request;
  lost_some_ = true;
  if (part.kind == PartKind::stripe) {
    request.holes.push_back({part.offset, part.length});
  } else if (part.kind == PartKind::end) {
    request.end_sent = false;
  } else {
    if (std::exchange(request.unordered_open, false)) --unordered_open_;
    requeue(request);
  }
  if (request.error != Errc::ok) finish_if_over(request);  // an error of another stripe, or of all
}

void Rails::finish_if_over(Request& request) noexcept {
  if (request.over || request.parts != 0) return;
  if (request.striped && request.error == Errc::ok) {
    if (request.stored != request.transfer.length) return;
    if (request.transfer.op == OpCode::write && !request.end_sent) return;
  }
  finish(request);
}

void Rails::measure(Rail& rail, const Part& part) noexcept {
  const auto now = parameters_.clock();
  rail.busy_bytes += part.length;
  const double span = std::chrono::duration<double>(now - rail.busy_since).count();
  if (span < kMeasuredFor) return;
  const double rate = static_cast<double>(rail.busy_bytes) / span;
  rail.rate = rail.rate == 0 ? rate : rail.rate + kMeasured * (rate - rail.rate);
  rail.busy_since = now;
  rail.busy_bytes = 0;
  double best = 0;
  for (const auto& other : rails_)
    if (other->up()) best = std::max(best, other->rate);
  rail.strikes = rail.rate < kLeastShare * best ? rail.strikes + 1 : 0;
  if (rail.strikes < kStrikes) return;
  rail.sick = true;
  notice();
}

double Rails::weight(const Rail& rail) const noexcept {
  if (rail.link.weight > 0) return rail.link.weight;
  if (rail.rate > 0) return rail.rate;
  double most = 0;  // of those that are known
  for (const auto& other : rails_) most = std::max(most, other->rate);
  return most > 0 ? most : 1;
}

// --- rails come and go

void Rails::connect(Rail& rail) noexcept {
  rail.state = Rail::State::joining;
  ++rail.incarnation;
  rail.unfenced = 0;
  rail.broken = false;
  try {
    rail.path = rail.link.endpoint->connect(known() ? peer_ : kNoPeer, parameters_.name, parameters_.target,
                                            parameters_.key);
  } catch (const std::exception& error) {  // nothing leads there now, or no descriptor or memory is left
    last_error_ = shortage_or(error, Errc::unreachable);
    lose(rail);
    if (established_) --rail.failures;  // the peer may well be there
    return;
  }
  Transfer join{};
  join.op = OpCode::join;
  join.key = flow_.peer;
  join.remote = flow_.epoch;
  join.data = RailNumber{rail.slot, rail.incarnation}.packed();
  join.flags = established_ ? transfer_flag::kRejoin : std::uint16_t{0};
  if (!post_control(rail, rail.join, PartKind::join, join)) lose(rail);
}

void Rails::join_ended(Rail& rail, Errc error) noexcept {
  notice();
  if (error == Errc::ok) {
    const auto others = earliest_up();
    // It may flap: what it needed all that time for, it may need again.
    if (others && !rail.out && parameters_.clock() - std::max(rail.missed_since, *others) > kLate)
      doubt(rail);
    if (rail.out && others)
      rail.state = Rail::State::aside;
    else
      rise(rail);
    return;
  }
  last_error_ = error;
  if (!rail.path || rail.path->state() != Errc::ok || ending_) return;
  if (error == Errc::no_memory)
    rail.broken = true;
  else
    rail.refused = error;
}

// Since when a rail is up, if one is.
std::optional<Clock::time_point> Rails::earliest_up() const noexcept {
  std::optional<Clock::time_point> earliest;
  for (const auto& rail : rails_)
    if (rail->up()) earliest = std::min(rail->rose_at, earliest.value_or(Clock::time_point::max()));
  return earliest;
}

void Rails::rise(Rail& rail) noexcept {
  rail.rose_at = parameters_.clock();
  if (up() == 0) up_since_ = parameters_.attended();
  rail.state = Rail::State::up;
  rail.was_up = true;
  rail.out = rail.sick = rail.asked = false;
  rail.strikes = 0;
  rail.pause = kFirstPause;
  established_ = true;
  for (const auto& other : rails_)
    if (!other->up() && other->last_dead != 0) rail.unfenced |= 1u << other->slot;
}

// The rail stands, but the peer knows nothing of what went before: it forgot a flow that had no rails for
// long, or it is not who it was.
void Rails::begin_anew(Rail& rail) noexcept {
  const Errc refused = std::exchange(rail.refused, Errc::ok);
  for (const Request& request : open_)
    if (request.number != 0) verdict_ = refused;
  if (refused != Errc::peer_lost) verdict_ = refused;
  if (verdict_ != Errc::ok) return;
  ++flow_.epoch;
  established_ = false;
  while (Request* note = notes_.front()) {
    leave_queue(*note);
    recycle(*note);
  }
  lose(rail);
  rail.retry_at = parameters_.clock();
}

void Rails::lose(Rail& rail) noexcept {
  const bool was_up = rail.state == Rail::State::up;
  const auto now = parameters_.clock();
  rail.state = Rail::State::down;
  rail.last_dead = rail.incarnation;
  rail.refused = Errc::ok;
  rail.path.reset();
  rail.failures = was_up ? 0 : rail.failures + 1;
  rail.unfenced = 0;
  rail.asked = rail.broken = false;
  if (primary_ == &rail) primary_ = nullptr;
  if (was_up || &rail == tried_) end_trial();
  notice();
  if (was_up) {
    rail.missed_since = now;
    rail.losses = now - rail.rose_at < kSoon ? rail.losses + 1 : 1;
    if (!rail.out && rail.losses > kLossesForgiven && up() != 0) doubt(rail);
  }
  if (rail.out && up() != 0)
    rail.retry_at = now + rail.aside;
  else
    rail.retry_at = was_up ? now : now + rail.pause;
  rail.pause = was_up ? kFirstPause : std::min(2 * rail.pause, rail.was_up ? kLongestPause : kLongestOfNew);
  if (!was_up) return;
  for (const auto& other : rails_)
    if (other->up()) other->unfenced |= 1u << rail.slot;
  if (up() == 0) lost_last(now);
}

// No rail is up any more.
void Rails::lost_last(Clock::time_point now) noexcept {
  for (const auto& rail : rails_) {
    if (rail->state == Rail::State::aside) rise(*rail);  // better than none
    rail->retry_at = std::min(rail->retry_at, now);
    rail->pause = kFirstPause;
  }
  if (up() != 0) return;
  watch();
  // A rail that comes up and carries nothing is none.
  const auto attended = parameters_.attended();
  if (!std::exchange(answered_, false) && attended - up_since_ < kGrace) return;
  lost_since_ = attended;
  for (const auto& rail : rails_) rail->failures = 0;
}

bool Rails::look_after_rails() noexcept {
  bool moved = false;
  for (const auto& rail : rails_) {
    if (!rail->path) continue;
    if (rail->stands()) {
      if (rail->refused != Errc::ok) begin_anew(*rail);
      continue;
    }
    if (rail->state == Rail::State::up) last_error_ = rail->broken ? Errc::no_memory : rail->path->state();
    if (rail->broken) rail->path->cut();
    lose(*rail);
    moved = true;
  }
  lost_some_ = false;  // fences stand before what goes out now
  return moved;
}

Clock::time_point Rails::tick() noexcept {
  if (state_ != Errc::ok) {
    watched_ = false;
    return Clock::time_point::max();
  }
  const auto now = parameters_.clock(), attended = parameters_.attended();
  look_after_rails();
  judge(attended);
  auto next = Clock::time_point::max();
  bool joining = false, all_tried = true;
  const unsigned enough = established_ ? 1 : kFirstTries;
  for (const auto& rail : rails_) {
    if (rail->state == Rail::State::down && now >= rail->retry_at) connect(*rail);
    joining |= rail->state == Rail::State::joining;
    if (!established_ || rail->was_up) all_tried &= rail->failures >= enough;
    if (rail->state == Rail::State::down) next = std::min(next, rail->retry_at);
  }
  next = std::min(next, next_look());
  if (up() != 0) return next;
  const auto last = lost_since_ + in_nanoseconds(parameters_.peer_deadline);
  const auto refused = established_ ? std::min(lost_since_ + kGrace, last) : lost_since_;
  if (attended >= last || (all_tried && !joining && attended >= refused)) {
    verdict_ = established_ ? Errc::peer_lost : last_error_;
    notice();
    return now;
  }
  return std::min(next,
                  now + std::clamp<Clock::duration>(refused - attended, milliseconds(5), milliseconds(20)));
}

// --- out to the links

// False: the link takes no more now.
bool Rails::post_part(Rail& rail, Part& part, const Transfer& transfer) noexcept {
  part.length = part.kind == PartKind::stripe ? transfer.length : 0;
  track(part);
  parameters_.slice.spend(0);
  if (rail.path->post({&transfer, 1}) == 1) return true;  // on_part() tells its end, or did
  untrack(part);
  return false;
}

// What rails tell each other, the same way. The part keeps what a note said.
bool Rails::post_control(Rail& rail, Part& part, PartKind kind, Transfer transfer,
                         Request* request) noexcept {
  begin(part, kind, rail, request);
  part.number = transfer.data;
  part.offset = transfer.remote;
  transfer.operation = &part;
  transfer.delivery = Delivery::delivery;
  return post_part(rail, part, transfer);
}

// Whether it takes requests: nothing goes before the fences.
bool Rails::usable(Rail& rail) noexcept {
  while (!lost_some_ && rail.up() && rail.stands()) {
    if (rail.unfenced == 0) return true;
    const auto slot = static_cast<std::uint32_t>(std::countr_zero(rail.unfenced));
    Part& part = rail.fences[slot];
    if (part.under_way) return false;  // for an earlier stream
    Transfer fence{};
    fence.op = OpCode::fence;
    fence.data = RailNumber{slot, rails_[slot]->last_dead}.packed();
    rail.unfenced &= ~(1u << slot);
    if (post_control(rail, part, PartKind::fence, fence)) continue;
    rail.unfenced |= 1u << slot;
    return false;
  }
  return false;
}

// The first rail that is up and trusted, or else up, as soon as nothing is under way on the one before.
// False: none can be had now.
bool Rails::choose_primary() noexcept {
  Rail* best = nullptr;
  const auto consider = [&](Rail& rail) {
    if ((!best || (rail.trusted && !best->trusted)) && usable(rail)) best = &rail;
  };
  for (const auto& rail : rails_)
    if (rail->link.tag == parameters_.preferred) consider(*rail);
  for (const auto& rail : rails_) {
    if (best && best->trusted) break;
    consider(*rail);
  }
  if (primary_ && primary_ != best && primary_->wholes != 0) return usable(*primary_);
  if (best) primary_ = best;
  return best != nullptr;
}

// The one that will be done first with so much more.
Rails::Rail* Rails::best_rail(std::uint64_t bytes) noexcept {
  Rail* best = nullptr;
  double least = 0;
  for (const auto& rail : rails_) {
    if (!usable(*rail)) continue;
    const double span = static_cast<double>(rail->bytes + bytes) / weight(*rail);
    if (best && span >= least) continue;
    best = rail.get();
    least = span;
  }
  return best;
}

// Null: it has to wait.
Rails::Rail* Rails::rail_for(const Request& request) noexcept {
  if (request.number == 0 && results_ >= kMostResults && result_cost(request.transfer) != 0) return nullptr;
  if (request.ordered) return unordered_open_ == 0 ? primary_ : nullptr;
  const bool free = request.transfer.op == OpCode::send ||
                    (moves_data(request.transfer.op) && request.transfer.length >= kMedium);
  return free ? best_rail(request.transfer.length) : primary_;
}

bool Rails::send_whole() noexcept {
  bool moved = false;
  while (Request* const first = waiting_.front()) {
    if (parameters_.slice.spent()) break;
    if (first->striped) {
      if (first->ordered && unordered_open_ != 0) break;
      first->unordered_open = first->transfer.op == OpCode::write;
      if (first->unordered_open) ++unordered_open_;
      enqueue(*first, Queue::striping);
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

// As many of the first requests as take this rail. True if any went.
bool Rails::send_batch(Rail& rail, bool& full) noexcept {
  Transfer batch[kBatch];
  bool raced[kBatch];
  std::size_t count = 0;
  for (Request* next = waiting_.front(); count < kBatch && next; ++count) {
    Request& request = *next;
    if (count && (request.striped || parameters_.slice.spent() || rail_for(request) != &rail)) break;
    next = request.queue.next;
    leave_queue(request);
    Part& part = request.part;
    begin(part, PartKind::whole, rail, &request);
    part.length = request.transfer.length;
    part.out = bytes_out(request.transfer);
    part.back = bytes_back(request.transfer);
    track(part);
    parameters_.slice.spend(0);
    raced[count] = enters_race(rail, part);
    if (&rail != primary_ && request.transfer.op == OpCode::write) {
      request.unordered_open = true;
      ++unordered_open_;
    }
    batch[count] = transfer_of(request);
  }
  const std::size_t posted = rail.path->post({batch, count});
  for (std::size_t i = 0; i < posted; ++i)
    if (raced[i]) shadow(bytes_out(batch[i]), bytes_back(batch[i]));
  for (std::size_t i = posted; i < count; ++i) {
    auto& part = static_cast<Part&>(*batch[i].operation);
    Request& request = *part.request;
    untrack(part);
    if (raced[i]) scratch(part);
    if (std::exchange(request.unordered_open, false)) --unordered_open_;
    requeue(request);
  }
  full = posted < count;
  return posted != 0;
}

// The next one to go over this rail, which is then given away.
Rails::Range Rails::next_range(Request& request, const Rail& rail) noexcept {
  double all = 0;
  for (const auto& other : rails_)
    if (other->up()) all += weight(*other);
  const std::uint64_t length = request.transfer.length;
  Range rest{request.next, length - request.next};
  const double share = weight(rail) / all / kStripesAhead;
  const auto fair = static_cast<std::uint64_t>(static_cast<double>(length - request.next) * share);
  const auto most = rail.rate > 0
                        ? static_cast<std::uint64_t>(std::clamp(rail.rate * kLongestStripe,
                                                                double{kLeastStripe}, double{kMostStripe}))
                    : rail.link.weight > 0 ? kMostStripe
                                           : kFirstStripe;
  const std::uint64_t size = std::clamp(fair / 4096 * 4096, kLeastStripe, most);
  const bool hole = !request.holes.empty();
  Range& there = hole ? request.holes.back() : rest;
  Range range = there;
  // What would leave a crumb takes it along, and so does what would leave a hole that has no place.
  const bool place = !hole || request.holes.size() + request.parts < kMostHoles;
  if (place && range.length > size + kLeastStripe / 2) range.length = size;
  there = {range.offset + range.length, there.length - range.length};
  if (!hole)
    request.next += range.length;
  else if (there.length == 0)
    request.holes.pop_back();
  return range;
}

bool Rails::send_stripe(Request& request, Rail& rail) noexcept {
  auto* const part = std::ranges::find(rail.stripe_parts, false, &Part::under_way);
  begin(*part, PartKind::stripe, rail, &request);
  const Range range = next_range(request, rail);  // what may come back at once must find it taken
  part->offset = range.offset;
  part->whole = request.transfer.length;
  (request.transfer.op == OpCode::read ? part->back : part->out) = range.length;
  if (rail.stripes == 0) {
    rail.busy_since = parameters_.clock();
    rail.busy_bytes = 0;
  }
  Transfer transfer = request.transfer;
  transfer.operation = &*part;
  if (transfer.delivery != Delivery::commit) transfer.delivery = Delivery::delivery;
  transfer.flags = transfer_flag::kStripe;
  transfer.remote += range.offset;
  transfer.length = range.length;
  if (transfer.piece_count == 0) {
    transfer.local += range.offset;
  } else {
    PieceCursor at = local_of(request.transfer);
    at.skip(range.offset);
    std::uint16_t count = 0;
    for (std::uint64_t left = range.length; left; ++count) {
      part->pieces[count] = at.here(left);
      at.advance(part->pieces[count].iov_len);
      left -= part->pieces[count].iov_len;
    }
    transfer.local_pieces = part->pieces.data();
    transfer.piece_count = count;
  }
  if (post_part(rail, *part, transfer)) return true;
  request.holes.push_back(range);
  return false;
}

// All stripes are stored: what happens once.
bool Rails::send_end(Request& request) noexcept {
  if (!choose_primary()) return false;
  begin(request.part, PartKind::end, *primary_, &request);
  Transfer transfer = transfer_of(request);
  transfer.flags |= transfer_flag::kStriped;
  if (transfer.piece_count == 0) transfer.local = nullptr;
  request.end_sent = true;
  if (post_part(*primary_, request.part, transfer)) return true;
  request.end_sent = false;
  return false;
}

bool Rails::send_stripes() noexcept {
  bool moved = false;
  const auto has_room = [this](const auto& rail) {
    return rail->stripes < kStripesAhead && !parameters_.slice.spent() && usable(*rail);
  };
  for (Request* at = striping_.front(); at && !parameters_.slice.spent();) {
    Request& request = *at;
    ++request.parts;  // what is posted may end at once, and the request with it
    const bool failed = request.error != Errc::ok;
    if (!failed && request.stored == request.transfer.length && !request.end_sent) moved |= send_end(request);
    const auto has_more = [&request] {
      return request.error == Errc::ok && (!request.holes.empty() || request.next != request.transfer.length);
    };
    bool any = std::ranges::any_of(rails_, has_room);
    while (any && has_more()) {
      any = false;
      for (const auto& rail : rails_)
        if (has_more() && has_room(rail)) any |= send_stripe(request, *rail);
      moved |= any;
    }
    --request.parts;
    at = request.queue.next;
    finish_if_over(request);  // takes it out of the list
  }
  return moved;
}

// What the peer need not remember any longer.
bool Rails::send_notes() noexcept {
  const bool full = results_ >= kMostResults && unsettled_ != 0;
  const bool marks = (unsettled_ >= kSettledAtOnce || full) && !mark_part_.under_way;
  if (notes_.empty() && !marks) return false;
  std::uint64_t mark = next_number_;
  for (const Request& request : open_)
    if (request.number != 0 && !request.announced_now()) mark = std::min(mark, request.number);
  const bool of_message = !notes_.empty();
  bool sent = false;
  // A rail that takes nothing more keeps no note from the others, or they would gather as long as messages
  // go.
  for (const auto& rail : rails_) {
    if (of_message ? notes_.empty() : sent) break;
    if (!usable(*rail)) continue;
    sent |= of_message ? send_notes_on(*rail, mark) : send_note(*rail, mark_part_, mark, nullptr);
  }
  if (sent) unsettled_ = 0;
  return sent;
}

// Those of messages, as many as the rail takes; true if any went.
bool Rails::send_notes_on(Rail& rail, std::uint64_t mark) noexcept {
  bool sent = false;
  while (Request* const message = notes_.front()) {
    if (parameters_.slice.spent() || !usable(rail)) break;
    leave_queue(*message);
    if (!send_note(rail, message->part, mark, message)) {
      enqueue(*message, Queue::notes);
      break;
    }
    sent = true;
  }
  return sent;
}

bool Rails::send_note(Rail& rail, Part& part, std::uint64_t mark, Request* message) noexcept {
  Transfer note{};
  note.op = OpCode::settled;
  note.data = mark;
  note.remote = message ? message->number : 0;
  return post_control(rail, part, PartKind::note, note, message);
}

// The peer knows it, or it was lost with its rail.
void Rails::note_ended(Part& note, Errc error) noexcept {
  Request* const message = note.request;
  if (error == Errc::ok) {
    if (note.number > last_result_) results_ = 0;
    if (message) recycle(*message);
  } else {
    unsettled_ = std::max(unsettled_, kSettledAtOnce);
    if (message) enqueue(*message, Queue::notes);
  }
  if (error == Errc::peer_lost || !waiting_.empty()) notice();
}

void Rails::begin_end() noexcept {
  pump();
  ending_ = true;
  for (const auto& rail : rails_) {
    if (!rail->up() || !rail->stands()) continue;
    Transfer farewell{};
    farewell.op = OpCode::settled;
    farewell.data = Flow::kOver;
    post_control(*rail, rail->join, PartKind::fence, farewell);  // whatever becomes of it
  }
}

bool Rails::pump() noexcept {
  bool moved = look_after_rails();
  if (verdict_ != Errc::ok || state_ != Errc::ok) {
    fail(verdict_ != Errc::ok ? verdict_ : state_);
    return moved;
  }
  moved |= send_notes();  // may let more go
  moved |= send_whole();
  moved |= send_stripes();
  if (parameters_.slice.spent() && (!waiting_.empty() || !striping_.empty() || !notes_.empty())) notice();
  return moved;
}

void Rails::fail(Errc error) noexcept {
  if (state_ == Errc::ok) {
    state_ = error;
    if (known() && established_ && !ending_) parameters_.on_lost(peer_, error);
  }
  for (auto at = open_.begin(); at != open_.end();) {
    Request& request = *at;
    ++at;
    if (request.error == Errc::ok) request.error = error;
    if (request.parts == 0) finish(request);
  }
}

PathReport Rails::report() const {
  PathReport report{.link = {}, .how = {}};
  for (const auto& rail : rails_) {
    report.link.append(report.link.empty() ? "" : "+").append(rail->link.tag);
    if (!report.how.empty()) report.how += "; ";
    report.how += rail->link.tag + " ";
    if (rail->state != Rail::State::up) {
      report.how += rail->out ? "set aside" : rail->state == Rail::State::joining ? "joining" : "down";
      continue;
    }
    char rate[48] = "";
    if (rail->rate > 0) std::snprintf(rate, sizeof rate, ", %.2f Gbit/s", rail->rate * 8 / 1e9);
    report.how += rail->path->report().how + rate;
  }
  return report;
}

}  // namespace fab::lnx
