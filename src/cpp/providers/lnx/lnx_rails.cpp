#include "providers/lnx/lnx_rails.h"

#include <algorithm>
#include <cstdio>
#include <stdexcept>

#include "fabric/address_vector.h"
#include "fabric/check_transfer.h"
#include "fabric/completion_queue.h"
#include "fabric/local_memory.h"
#include "providers/lnx/lnx_rail.h"

namespace fab::lnx {
namespace {

using std::chrono::milliseconds;

constexpr std::uint64_t kStriped = 256 * 1024;  // bytes of a put or get from which on it is cut into stripes
constexpr std::uint64_t kMedium = 16 * 1024;    // and from which on it may leave the primary rail
constexpr std::uint64_t kLeastStripe = 64 * 1024, kFirstStripe = 256 * 1024, kMostStripe = 4 << 20;
constexpr unsigned kStripesAhead = 2;      // on one rail
constexpr std::uint16_t kMostPieces = 64;  // of a local vector that is cut
constexpr std::size_t kMostOpen = 4096;    // requests
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

bool announced_now(const auto& request) noexcept {
  return !request.sent_small && (request.announced || (request.whole && request.whole->announced));
}

}  // namespace

Rails::Rails(Parameters parameters, const std::vector<Link>& links)
    : parameters_(std::move(parameters)),
      peer_(parameters_.peer),
      generation_(parameters_.peers.generation(peer_)),
      flow_(parameters_.flow),
      lost_since_(Clock::now()) {
  for (const Link& link : links) {
    rails_.push_back(
        std::make_unique<Rail>(Rail{.link = link, .slot = static_cast<std::uint32_t>(rails_.size())}));
    connect(*rails_.back());
  }
}

Rails::~Rails() {
  ending_ = true;
  fail(Errc::canceled);
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

void Rails::notice() noexcept {
  if (std::exchange(noticed_, true)) return;
  parameters_.on_work(*this);
}

// --- what the user posts

std::uint64_t Rails::resolve(const RemoteRegion& region) {
  for (const auto& rail : rails_)
    if (rail->path) rail->path->resolve(region);
  return region.key;  // that of every link
}

std::size_t Rails::post(std::span<const Transfer> batch) noexcept {
  std::size_t taken = 0;
  for (const Transfer& transfer : batch) {
    if (live_ >= kMostOpen) break;
    ++taken;
    ++counts_.posted;
    if (const Errc wrong = state_ != Errc::ok ? state_ : check_transfer(transfer); wrong != Errc::ok) {
      ++counts_.errors;
      transfer.operation->settle(wrong, 0);
      continue;
    }
    Request& request = new_request();
    request.transfer = transfer;
    request.place = counts_.posted;
    const bool data = transfer.flags & transfer_flag::kRemoteData;
    const bool free = transfer.op == OpCode::send && (transfer.flags & transfer_flag::kUnordered);
    request.ordered = !free && (!moves_data(transfer.op) || (transfer.op == OpCode::write && data));
    request.striped = moves_data(transfer.op) && transfer.length >= kStriped &&
                      transfer.piece_count <= kMostPieces &&
                      transfer.remote + transfer.length >= transfer.remote;  // else the peer refuses it
    const bool reads = transfer.op == OpCode::read || result_cost(transfer) != 0;
    if (transfer.delivery == Delivery::inject && !reads) {
      request.context = transfer.operation->completion().context;
      request.flags = transfer.operation->late_flags();
      request.copy = std::make_unique_for_overwrite<std::byte[]>(transfer.length);
      gather(local_of(transfer), request.copy.get(), transfer.length);
      request.transfer.local = request.copy.get();
      request.transfer.piece_count = 0;
      std::exchange(request.transfer.operation, nullptr)->settle(Errc::ok, transfer.length);
    }
    waiting_.push_back(&request);
  }
  watch();
  pump();
  return taken;
}

Rails::Request& Rails::new_request() {
  std::unique_ptr<Request> owned;
  if (spare_.empty()) {
    owned = std::make_unique<Request>();
  } else {
    owned = std::move(spare_.back());
    spare_.pop_back();
    *owned = {};
  }
  ++live_;
  open_.push_back(*owned);
  return *owned.release();
}

// What was posted settles in any order; told is how far all of it has.
PathCounts Rails::counts() const noexcept {
  PathCounts counts = counts_;
  const Request* oldest = open_.front();
  counts.settled = oldest ? oldest->place - 1 : counts.posted;
  return counts;
}

void Rails::finish(Request& request) noexcept {
  std::unique_ptr<Request> owned(&request);
  request.over = true;
  open_.erase(request);
  --live_;
  if (request.striped) std::erase(striping_, &request);
  const std::uint64_t length = request.error == Errc::ok ? request.transfer.length : 0;
  if (request.error != Errc::ok)
    ++counts_.errors;
  else
    (request.transfer.op == OpCode::read ? counts_.bytes_in : counts_.bytes_out) += length;
  if (request.unordered_open) --unordered_open_;
  if (request.error != Errc::ok && request.number != 0) {
    results_ += 2 * kRecord;
    last_result_ = std::max(last_result_, request.number);
  }
  if (request.announced) known_messages_.push_back(request.number);
  if (request.number != 0) ++unsettled_;
  if (request.transfer.operation)
    request.transfer.operation->settle(request.error, length);
  else if (request.error != Errc::ok)
    parameters_.completions.push_remote(
        {.context = request.context, .error = request.error, .flags = request.flags});
  if (spare_.size() >= kMostSpare) return;
  owned->copy.reset();
  spare_.push_back(std::move(owned));
}

// --- parts

std::unique_ptr<Rails::Part> Rails::new_part(Request* request) {
  std::unique_ptr<Part> part;
  if (spare_parts_.empty()) {
    part = std::make_unique<Part>();
  } else {
    part = std::move(spare_parts_.back());
    spare_parts_.pop_back();
  }
  part->rails = this;
  part->request = request;
  part->out = part->back = 0;
  part->trial = 0;
  part->announced = request && request->announced;
  part->begin(1, 0, 0, nullptr, nullptr, &Rails::on_part);
  return part;
}

// The request as it goes over a rail, with its number.
Transfer Rails::transfer_of(Request& request, Part& part) noexcept {
  Transfer transfer = request.transfer;
  transfer.operation = &part;
  transfer.flags &= transfer_flag::kRemoteData | transfer_flag::kTagged;
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
  part.number = request.number;
  return transfer;
}

void Rails::track(Part& part) noexcept {
  Rail& rail = rail_of(part);
  ++parts_open_;
  part.posted = Clock::now();
  rail.under_way.push_back(part);
  ++rail.parts;
  rail.bytes += part.length;
  if (part.kind == PartKind::stripe) ++rail.stripes;
  if (part.kind == PartKind::whole || part.kind == PartKind::end) ++rail.wholes;
  if (part.request) ++part.request->parts;
  if (part.kind == PartKind::whole) part.request->whole = &part;
}

void Rails::untrack(Part& part) noexcept {
  Rail& rail = rail_of(part);
  --parts_open_;
  rail.under_way.erase(part);
  --rail.parts;
  rail.bytes -= part.length;
  if (part.kind == PartKind::stripe) --rail.stripes;
  if (part.kind == PartKind::whole || part.kind == PartKind::end) --rail.wholes;
  if (part.request) --part.request->parts;
  if (part.kind == PartKind::whole) part.request->whole = nullptr;
}

void Rails::on_part(Operation& operation) noexcept {
  auto& part = static_cast<Part&>(operation);
  part.rails->part_ended(part);
}

// Runs inside of a link's path, which may be at its end: only notes what is to be done.
void Rails::part_ended(Part& part) noexcept {
  std::unique_ptr<Part> owned(&part);
  Rail& rail = rail_of(part);
  const Errc error = part.completion().error;
  const auto now = Clock::now();
  untrack(part);
  tally(rail, part, now);
  rail.ended_at = now;
  if (part.kind == PartKind::join) {
    join_ended(rail, error);
  } else if (part.kind == PartKind::probe) {
    probe_ended(rail, part, error, now);
  } else if (part.kind == PartKind::note) {
    note_ended(part, error);
    if (error != Errc::ok || !waiting_.empty()) notice();
  } else if (part.kind != PartKind::fence) {
    Request& request = *part.request;
    request.announced |= part.announced;
    request.sent_small |= request.transfer.op == OpCode::send && !part.announced;
    const bool striped = request.striped;
    const bool lost = error != Errc::ok && !ending_ && (!rail.path || rail.path->state() != Errc::ok);
    if (lost) {
      ++request.parts;
      lost_.push_back(owned.release());
    } else {
      if (error == Errc::ok) answered_ = true;
      if (request.error == Errc::ok) request.error = error;
      if (error == Errc::ok && part.kind == PartKind::stripe) {
        request.stored += part.length;
        measure(rail, part, now);
      }
      finish_if_over(request);
    }
    if (lost || striped || !waiting_.empty() || !striping_.empty() || unsettled_ >= kSettledAtOnce ||
        !known_messages_.empty())
      notice();
  }
  if (owned) spare_parts_.push_back(std::move(owned));
}

void Rails::finish_if_over(Request& request) noexcept {
  if (request.over || request.parts != 0) return;
  if (request.striped && request.error == Errc::ok) {
    if (request.stored != request.transfer.length) return;
    if (request.transfer.op == OpCode::write && !request.end_sent) return;
  }
  finish(request);
}

void Rails::measure(Rail& rail, const Part& part, Clock::time_point now) noexcept {
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
  rail.fences.clear();
  try {
    rail.path = rail.link.endpoint->connect(known() ? peer_ : kNoPeer, parameters_.name, parameters_.target,
                                            parameters_.key);
  } catch (const std::exception&) {  // nothing leads there now, or no descriptor is left
    last_error_ = Errc::unreachable;
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
  if (!post_control(rail, PartKind::join, join)) lose(rail);
}

void Rails::join_ended(Rail& rail, Errc error) noexcept {
  notice();
  if (error == Errc::ok) {
    if (rail.out && up() != 0)
      rail.state = Rail::State::aside;
    else
      rise(rail);
    return;
  }
  last_error_ = error;
  if (rail.path && rail.path->state() == Errc::ok && !ending_) rail.refused = error;
}

void Rails::rise(Rail& rail) noexcept {
  rail.rose_at = Clock::now();
  if (up() == 0) up_since_ = rail.rose_at;
  rail.state = Rail::State::up;
  rail.was_up = true;
  rail.out = rail.sick = rail.asked = false;
  rail.strikes = 0;
  rail.pause = kFirstPause;
  established_ = true;
  for (const auto& other : rails_)
    if (!other->up() && other->last_dead != 0)
      rail.fences.push_back(RailNumber{other->slot, other->last_dead}.packed());
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
  known_messages_.clear();
  lose(rail);
  rail.retry_at = Clock::now();
}

void Rails::lose(Rail& rail) noexcept {
  const bool was_up = rail.state == Rail::State::up;
  rail.state = Rail::State::down;
  rail.last_dead = rail.incarnation;
  rail.refused = Errc::ok;
  rail.path.reset();
  rail.failures = was_up ? 0 : rail.failures + 1;
  rail.fences.clear();
  rail.asked = false;
  if (primary_ == &rail) primary_ = nullptr;
  if (was_up || &rail == tried_) end_trial();
  notice();
  const auto now = Clock::now();
  if (rail.out && up() != 0)
    rail.retry_at = now + rail.aside;
  else
    rail.retry_at = was_up ? now : now + rail.pause;
  rail.pause = was_up ? kFirstPause : std::min(2 * rail.pause, rail.was_up ? kLongestPause : kLongestOfNew);
  if (!was_up) return;
  bool any = false;
  for (const auto& other : rails_) {
    if (other->state != Rail::State::up) continue;
    any = true;
    other->fences.push_back(RailNumber{rail.slot, rail.incarnation}.packed());
  }
  if (any) return;
  for (const auto& other : rails_) {
    if (other->state == Rail::State::aside) {  // better than none
      rise(*other);
      any = true;
    }
    other->retry_at = std::min(other->retry_at, now);
    other->pause = kFirstPause;
  }
  if (any) return;
  // A rail that comes up and carries nothing is none.
  if (!std::exchange(answered_, false) && now - up_since_ < kGrace) return;
  lost_since_ = now;
  for (const auto& other : rails_) other->failures = 0;
}

bool Rails::look_after_rails() noexcept {
  bool moved = false;
  for (const auto& rail : rails_) {
    if (!rail->path) continue;
    if (rail->path->state() == Errc::ok) {
      if (rail->refused != Errc::ok) begin_anew(*rail);
      continue;
    }
    if (rail->state == Rail::State::up) last_error_ = rail->path->state();
    lose(*rail);
    moved = true;
  }
  return moved;
}

// What was lost with its rail waits again, in its place.
bool Rails::repeat_lost() noexcept {
  if (lost_.empty()) return false;
  for (Part* part : std::exchange(lost_, {})) {
    std::unique_ptr<Part> owned(part);
    Request& request = *part->request;
    --request.parts;
    switch (part->kind) {
      case PartKind::stripe:
        request.holes.push_back({part->offset, part->length});
        break;
      case PartKind::end:
        request.end_sent = false;
        break;
      default: {
        if (std::exchange(request.unordered_open, false)) --unordered_open_;
        const auto place = std::ranges::lower_bound(waiting_, request.place, {}, &Request::place);
        waiting_.insert(place, &request);
      }
    }
    spare_parts_.push_back(std::move(owned));
    if (request.error != Errc::ok) finish_if_over(request);  // an error of another stripe
  }
  return true;
}

Clock::time_point Rails::tick() noexcept {
  if (state_ != Errc::ok) return Clock::time_point::max();
  const auto now = Clock::now();
  look_after_rails();
  judge(now);
  auto next = Clock::time_point::max();
  bool joining = false, all_tried = true;
  const unsigned enough = established_ ? 1 : kFirstTries;
  for (const auto& rail : rails_) {
    if (rail->state == Rail::State::down && now >= rail->retry_at) connect(*rail);
    joining |= rail->state == Rail::State::joining;
    if (!established_ || rail->was_up) all_tried &= rail->failures >= enough;
    if (rail->state == Rail::State::down) next = std::min(next, rail->retry_at);
  }
  next = std::min(next, next_look(now));
  if (up() != 0) return next;
  const auto seconds = [](double span) {
    return std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(span));
  };
  const auto last = lost_since_ + seconds(parameters_.peer_deadline);
  const auto refused = established_ ? std::min(lost_since_ + kGrace, last) : lost_since_;
  if (now >= last || (all_tried && !joining && now >= refused)) {
    verdict_ = established_ ? Errc::peer_lost : last_error_;
    notice();
    return now;
  }
  return std::min({next, last, std::max(refused, now + milliseconds(5))});
}

// --- out to the links

// False: the link takes no more now, and the part is gone.
bool Rails::post_part(Rail& rail, std::unique_ptr<Part> part, const Transfer& transfer) noexcept {
  part->slot = rail.slot;
  part->length = part->kind == PartKind::stripe ? transfer.length : 0;
  track(*part);
  if (rail.path->post({&transfer, 1}) == 1) {
    [[maybe_unused]] Part* const with_the_link = part.release();  // on_part() takes it back, or did
    return true;
  }
  untrack(*part);
  spare_parts_.push_back(std::move(part));
  return false;
}

// What rails tell each other, the same way. The part keeps what a note said.
bool Rails::post_control(Rail& rail, PartKind kind, Transfer transfer) noexcept {
  std::unique_ptr<Part> part = new_part(nullptr);
  part->kind = kind;
  part->number = transfer.data;
  part->offset = transfer.remote;
  transfer.operation = part.get();
  transfer.delivery = Delivery::delivery;
  return post_part(rail, std::move(part), transfer);
}

// Whether it takes requests: nothing goes before the fences.
bool Rails::usable(Rail& rail) noexcept {
  if (rail.state != Rail::State::up || rail.path->state() != Errc::ok) return false;
  while (!rail.fences.empty()) {
    Transfer fence{};
    fence.op = OpCode::fence;
    fence.data = rail.fences.back();
    rail.fences.pop_back();
    if (!post_control(rail, PartKind::fence, fence)) {
      rail.fences.push_back(fence.data);
      return false;
    }
  }
  return true;
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
  while (!waiting_.empty()) {
    Request& first = *waiting_.front();
    if (first.striped) {
      if (first.ordered && unordered_open_ != 0) break;
      first.unordered_open = first.transfer.op == OpCode::write;
      if (first.unordered_open) ++unordered_open_;
      waiting_.pop_front();
      striping_.push_back(&first);
      moved = true;
      continue;
    }
    if (!choose_primary()) break;
    Rail* const rail = rail_for(first);
    if (!rail) break;
    Transfer batch[kBatch];
    bool raced[kBatch];
    std::size_t count = 0;
    for (; count < kBatch && count < waiting_.size(); ++count) {
      Request& request = *waiting_[count];
      if (count && (request.striped || rail_for(request) != rail)) break;
      std::unique_ptr<Part> part = new_part(&request);
      part->kind = PartKind::whole;
      part->slot = rail->slot;
      part->length = request.transfer.length;
      part->out = bytes_out(request.transfer);
      part->back = bytes_back(request.transfer);
      track(*part);
      raced[count] = enters_race(*rail, *part);
      if (rail != primary_ && request.transfer.op == OpCode::write) {
        request.unordered_open = true;
        ++unordered_open_;
      }
      batch[count] = transfer_of(request, *part.release());
    }
    waiting_.erase(waiting_.begin(), waiting_.begin() + static_cast<std::ptrdiff_t>(count));
    const std::size_t posted = rail->path->post({batch, count});
    moved |= posted != 0;
    for (std::size_t i = 0; i < posted; ++i)
      if (raced[i]) shadow(bytes_out(batch[i]), bytes_back(batch[i]));
    if (posted == count) continue;
    for (std::size_t i = count; i-- > posted;) {
      std::unique_ptr<Part> part(static_cast<Part*>(batch[i].operation));
      Request& request = *part->request;
      untrack(*part);
      if (raced[i]) scratch(*part);
      if (std::exchange(request.unordered_open, false)) --unordered_open_;
      waiting_.push_front(&request);
      spare_parts_.push_back(std::move(part));
    }
    break;
  }
  return moved;
}

bool Rails::send_stripe(Request& request, Rail& rail) noexcept {
  double all = 0;
  for (const auto& other : rails_)
    if (other->state == Rail::State::up) all += weight(*other);
  const std::uint64_t length = request.transfer.length;
  const bool hole = !request.holes.empty();
  Range range = hole ? request.holes.back() : Range{request.next, length - request.next};
  const double share = weight(rail) / all / kStripesAhead;
  const auto fair = static_cast<std::uint64_t>(static_cast<double>(length - request.next) * share);
  const auto most = rail.rate > 0
                        ? static_cast<std::uint64_t>(std::clamp(rail.rate * kLongestStripe,
                                                                double{kLeastStripe}, double{kMostStripe}))
                    : rail.link.weight > 0 ? kMostStripe
                                           : kFirstStripe;
  const std::uint64_t size = std::clamp(fair / 4096 * 4096, kLeastStripe, most);
  // What would leave a crumb takes it along.
  if (range.length > size + kLeastStripe / 2) range.length = size;

  std::unique_ptr<Part> part = new_part(&request);
  part->kind = PartKind::stripe;
  part->offset = range.offset;
  part->whole = length;
  (request.transfer.op == OpCode::read ? part->back : part->out) = range.length;
  if (rail.stripes == 0) {
    rail.busy_since = Clock::now();
    rail.busy_bytes = 0;
  }
  part->pieces.clear();
  Transfer transfer = request.transfer;
  transfer.operation = part.get();
  if (transfer.delivery != Delivery::commit) transfer.delivery = Delivery::delivery;
  transfer.flags = transfer_flag::kStripe;
  transfer.remote += range.offset;
  transfer.length = range.length;
  if (transfer.piece_count == 0) {
    transfer.local += range.offset;
  } else {
    PieceCursor at = local_of(request.transfer);
    at.skip(range.offset);
    for (std::uint64_t left = range.length; left;) {
      const iovec piece = at.here(left);
      part->pieces.push_back(piece);
      at.advance(piece.iov_len);
      left -= piece.iov_len;
    }
    transfer.local_pieces = part->pieces.data();
    transfer.piece_count = static_cast<std::uint16_t>(part->pieces.size());
  }
  // What may come back at once must find the range taken.
  if (hole) {
    Range& left = request.holes.back();
    left = {left.offset + range.length, left.length - range.length};
    if (left.length == 0) request.holes.pop_back();
  } else {
    request.next += range.length;
  }
  if (post_part(rail, std::move(part), transfer)) return true;
  request.holes.push_back(range);
  return false;
}

// All stripes are stored: what happens once.
bool Rails::send_end(Request& request) noexcept {
  if (!choose_primary()) return false;
  std::unique_ptr<Part> part = new_part(&request);
  part->kind = PartKind::end;
  Transfer transfer = transfer_of(request, *part);
  transfer.flags |= transfer_flag::kStriped;
  if (transfer.piece_count == 0) transfer.local = nullptr;
  request.end_sent = true;
  if (post_part(*primary_, std::move(part), transfer)) return true;
  request.end_sent = false;
  return false;
}

bool Rails::send_stripes() noexcept {
  bool moved = false;
  const auto has_room = [this](const auto& rail) { return rail->stripes < kStripesAhead && usable(*rail); };
  for (std::size_t i = 0; i < striping_.size();) {
    Request& request = *striping_[i];
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
        if (has_room(rail) && has_more()) any |= send_stripe(request, *rail);
      moved |= any;
    }
    --request.parts;
    finish_if_over(request);  // takes it out of the list
    if (i < striping_.size() && striping_[i] == &request) ++i;
  }
  return moved;
}

// What the peer need not remember any longer.
bool Rails::send_notes() noexcept {
  const bool full = results_ >= kMostResults && unsettled_ != 0;
  if (known_messages_.empty() && unsettled_ < kSettledAtOnce && !full) return false;
  const auto rail = std::ranges::find_if(rails_, [this](const auto& some) { return usable(*some); });
  if (rail == rails_.end()) return false;
  std::uint64_t mark = next_number_;
  for (const Request& request : open_)
    if (request.number != 0 && !announced_now(request)) mark = std::min(mark, request.number);
  do {
    Transfer note{};
    note.op = OpCode::settled;
    note.data = mark;
    if (!known_messages_.empty()) {
      note.remote = known_messages_.back();
      known_messages_.pop_back();
    }
    if (!usable(**rail) || !post_control(**rail, PartKind::note, note)) {
      if (note.remote != 0) known_messages_.push_back(note.remote);
      return true;
    }
  } while (!known_messages_.empty());
  unsettled_ = 0;
  return true;
}

// The peer knows it, or it was lost with its rail.
void Rails::note_ended(const Part& note, Errc error) noexcept {
  if (error == Errc::ok) {
    if (note.number > last_result_) results_ = 0;
    return;
  }
  if (note.offset != 0) known_messages_.push_back(note.offset);
  unsettled_ = std::max(unsettled_, kSettledAtOnce);
}

void Rails::begin_end() noexcept {
  pump();
  ending_ = true;
  for (const auto& rail : rails_) {
    if (rail->state != Rail::State::up || rail->path->state() != Errc::ok) continue;
    Transfer farewell{};
    farewell.op = OpCode::settled;
    farewell.data = Flow::kOver;
    post_control(*rail, PartKind::fence, farewell);  // whatever becomes of it
  }
}

bool Rails::pump() noexcept {
  noticed_ = false;
  bool moved = look_after_rails();
  if (verdict_ != Errc::ok || state_ != Errc::ok) {
    fail(verdict_ != Errc::ok ? verdict_ : state_);
    return moved;
  }
  moved |= repeat_lost();
  moved |= send_notes();  // may let more go
  moved |= send_whole();
  moved |= send_stripes();
  return moved;
}

void Rails::fail(Errc error) noexcept {
  if (state_ == Errc::ok) {
    state_ = error;
    if (known() && established_ && !ending_) parameters_.on_lost(peer_, error);
  }
  waiting_.clear();
  striping_.clear();
  for (Part* part : std::exchange(lost_, {})) {
    --part->request->parts;
    spare_parts_.emplace_back(part);
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
