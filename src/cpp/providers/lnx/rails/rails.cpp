#include "providers/lnx/rails/rails.h"

#include <algorithm>
#include <cstdio>
#include <stdexcept>

#include "fabric/address_vector/address_vector.h"
#include "fabric/types/error.h"

namespace fab::lnx {
namespace {

using std::chrono::milliseconds;

constexpr unsigned kFirstTries = 3;  // attempts for each rail to a peer that was never reached
constexpr Clock::duration kGrace = milliseconds(1000);  // in which refused rails are tried when none is left

}  // namespace

Rails::Rails(RailsParameters parameters, const std::vector<RailLink>& links)
    : parameters_(std::move(parameters)),
      peer_(parameters_.to.peer),
      generation_(parameters_.peers.generation(peer_)),
      flow_(parameters_.flow),
      journal_(parameters_.completions),
      health_(parameters_, rails_, *this),
      scheduler_(parameters_, rails_, journal_, health_),
      notes_(parameters_, rails_, journal_),
      lost_since_(parameters_.attended()) {
  for (const RailLink& link : links) rails_.add(link, links.size(), parameters_, *this);
  // From here on postings are under way that refer to this object.
  for (const auto& rail : rails_) connect(*rail);
}

Rails::~Rails() {
  ending_ = true;
  fail(Errc::canceled);
  for (const auto& rail : rails_) rail->path.reset();
}

bool Rails::known() const noexcept { return parameters_.peers.generation(peer_) == generation_; }

void Rails::known_as(PeerId peer) noexcept {
  peer_ = peer;
  generation_ = parameters_.peers.generation(peer);
}

bool Rails::at_rest() const noexcept {
  return !watched_ && idle() && std::ranges::all_of(rails_, [](const auto& rail) {
    return rail->up() && rail->stands() && rail->forgiven_at() == Clock::time_point::max();
  });
}

// tick() is called every kLook as long as there is something to look at.
void Rails::watch() noexcept {
  if (std::exchange(watched_, true)) return;
  parameters_.on_watch();
}

// --- requests

void Rails::hint(const RemoteRegion& region) {
  for (const auto& rail : rails_)
    if (rail->path) rail->path->hint(region);
}

std::size_t Rails::post(std::span<const Transfer> batch) noexcept {
  std::size_t taken = 0;
  for (const Transfer& transfer : batch) {
    if (journal_.full()) break;
    ++taken;
    if (Request* const request = journal_.accept(transfer, state_)) scheduler_.enqueue(*request);
  }
  if (rails_.size() > 1 || rails_.up() == 0) watch();
  pump();
  return taken;
}

bool Rails::pump() noexcept {
  bool moved = look_after_rails();
  if (verdict_ != Errc::ok || state_ != Errc::ok) {
    fail(verdict_ != Errc::ok ? verdict_ : state_);
    return look_after_rails() || moved;
  }
  moved |= notes_.send();  // comes first, because requests may wait until the peer has forgotten results
  moved |= scheduler_.send();
  if (parameters_.slice.spent() && !(scheduler_.empty() && journal_.notes().empty())) notice();
  return moved;
}

void Rails::ended(Rail& rail, Posting& posting) noexcept {
  const Errc error = posting.completion().error;
  rail.untrack(posting);
  health_.tally(rail, posting);
  rail.ended_at = parameters_.attended();
  switch (posting.kind) {
    case Posting::Kind::join:
      return join_ended(rail, error);
    case Posting::Kind::probe:
      return health_.probe_ended(rail, posting);
    case Posting::Kind::note:
      notes_.ended(posting);
      if (error == Errc::peer_lost || scheduler_.any_whole()) notice();
      return;
    case Posting::Kind::fence:
      if (error != Errc::ok && !ending_) rail.broken = true;  // the lost stream would not be fenced off
      if (rail.broken || rail.unfenced != 0) notice();
      return;
    case Posting::Kind::whole:
    case Posting::Kind::end:
    case Posting::Kind::stripe:
      return request_ended(rail, posting);
  }
}

void Rails::request_ended(Rail& rail, Posting& posting) noexcept {
  Request& request = *posting.request;
  request.announced |= posting.announced;
  request.sent_small |= request.transfer.op == OpCode::send && !posting.announced;
  const Errc error = posting.completion().error;
  const bool striped = request.striped;
  const bool lost = error != Errc::ok && !ending_ && !rail.stands();
  if (lost) {
    scheduler_.lost(posting);
  } else {
    answered_ |= error == Errc::ok;
    scheduler_.ended(rail, posting, error);
  }
  if (lost || striped || !scheduler_.empty() || journal_.much_settled() || !journal_.notes().empty())
    notice();
}

void Rails::fail(Errc error) noexcept {
  if (state_ == Errc::ok) {
    if (established_) tell_lost({.error = error, .peer = peer_});
    state_ = error;
  }
  journal_.visit_open([&](Request& request) { scheduler_.fail(request, error); });
}

// --- rails come and go

void Rails::connect(Rail& rail) noexcept {
  rail.state = Rail::State::joining;
  rail.rejoins = established_;
  ++rail.incarnation;
  const RailsParameters::Destination& to = parameters_.to;
  try {
    rail.path = rail.link.endpoint->connect(known() ? peer_ : kNoPeer, to.name, to.target, to.auth_index);
  } catch (const std::exception&
               error) {  // the link does not reach the peer now, or descriptors or memory ran out
    last_error_ = shortage_or(error, Errc::unreachable);
    lose(rail);
    if (established_) --rail.failures;  // the peer may well be there
    return;
  }
  const FrameHeader join{.type = FrameType::join,
                         .flags = rail.rejoins ? frame_flag::kRejoin : std::uint8_t{0},
                         .key = flow_.peer,
                         .remote = flow_.epoch,
                         .data = RailNumber{rail.slot, rail.incarnation}.packed()};
  if (!rail.post_control(rail.join, Posting::Kind::join, join)) lose(rail);
}

void Rails::join_ended(Rail& rail, Errc error) noexcept {
  notice();
  if (error == Errc::ok) {
    const auto others = rails_.earliest_up();
    // The link may flap: what kept it from joining all that time may come again.
    if (others && !rail.out && rail.late_after(*others)) rail.doubt();
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

void Rails::rise(Rail& rail) noexcept {
  if (rails_.up() == 0) up_since_ = parameters_.clock();
  rail.rose();
  established_ = true;
  for (const auto& other : rails_)
    if (!other->up() && other->last_dead != 0) rail.unfenced |= 1u << other->slot;
}

// Runs before anything is posted.
bool Rails::look_after_rails() noexcept {
  bool moved = false;
  for (const auto& rail : rails_) {
    if (!rail->path) continue;
    // The peer was given up, or this rail joined only after that. The peer forgets the flow, and ends the
    // receives that were waiting for it, when no rail of it is left.
    if (state_ != Errc::ok && (rail->up() || rail->state == Rail::State::aside)) rail->broken = true;
    if (rail->stands()) {
      if (rail->refused != Errc::ok) refused(*rail);
      continue;
    }
    if (rail->broken) rail->path->cut();
    lose(*rail);
    moved = true;
  }
  rails_.lost_some = false;  // from now on fences go before all else
  return moved;
}

void Rails::give_up(Rail& rail) noexcept {
  rail.path->cut();
  look_after_rails();
}

// The rail stands, but may not join. Where the peer has to know the flow it has forgotten it, because the
// flow had no rails for long, or another process has its address now: none of what was done before is known
// there, so nothing that is open may go there. Otherwise the peer may have no room now.
void Rails::refused(Rail& rail) noexcept {
  const Errc why = std::exchange(rail.refused, Errc::ok);
  if (why != Errc::peer_lost || rail.rejoins)
    verdict_ = why;
  else
    lose(rail);
}

// Nothing is told of a peer that was given up before: its links end one after the other.
void Rails::tell_lost(const Loss& loss) noexcept {
  if (known() && state_ == Errc::ok && !ending_) parameters_.on_lost(loss);
}

void Rails::lose(Rail& rail) noexcept {
  const bool carried = rail.up();
  if (carried || rail.state == Rail::State::aside)
    tell_lost({.type = EventType::link_lost, .peer = peer_, .link = rail.link.tag});
  health_.lost(rail, carried);
  notice();
  rail.lost(rails_.up() > (carried ? 1u : 0u));
  if (!carried) return;
  for (const auto& other : rails_)
    if (other->up()) other->unfenced |= 1u << rail.slot;
  if (rails_.up() == 0) lost_last();
}

// No rail is up any more.
void Rails::lost_last() noexcept {
  for (const auto& rail : rails_) {
    if (rail->state == Rail::State::aside && rail->stands()) rise(*rail);  // a sick rail is better than none
    rail->try_soon();
  }
  if (rails_.up() != 0) return;
  if (journal_.empty()) return fail(Errc::peer_lost);  // as a single link: the next request begins anew
  watch();
  // A rail that came up and carried nothing does not count as a sign of life.
  if (!std::exchange(answered_, false) && parameters_.clock() - up_since_ < kGrace) return;
  lost_since_ = parameters_.attended();
  for (const auto& rail : rails_) rail->failures = 0;
}

Clock::time_point Rails::tick() noexcept {
  watched_ = false;
  if (state_ != Errc::ok) return Clock::time_point::max();
  const auto now = parameters_.clock();
  look_after_rails();
  if (state_ != Errc::ok || (journal_.empty() && !known()))
    return Clock::time_point::max();  // nobody wants the peer any more
  if (!ending_) health_.judge();
  auto next = Clock::time_point::max();
  for (const auto& rail : rails_) {
    if (rail->state == Rail::State::down && now >= rail->retry_at) connect(*rail);
    if (rail->state == Rail::State::down) next = std::min(next, rail->retry_at);
  }
  next = std::min(next, health_.next_look());
  if (rails_.up() != 0) return next;
  const auto attended = parameters_.attended();
  if (gives_up_peer(attended)) {
    verdict_ = established_ ? Errc::peer_lost : last_error_;
    notice();
    return now;
  }
  return std::min(
      next, now + std::clamp<Clock::duration>(refused_until() - attended, milliseconds(5), milliseconds(20)));
}

// Until when rails that are refused are tried, while none is up.
Clock::time_point Rails::refused_until() const noexcept {
  const auto last = lost_since_ + in_nanoseconds(parameters_.peer_deadline);
  return established_ ? std::min(lost_since_ + kGrace, last) : lost_since_;
}

bool Rails::gives_up_peer(Clock::time_point attended) const noexcept {
  const unsigned enough = established_ ? 1 : kFirstTries;
  bool joining = false, all_tried = true;
  for (const auto& rail : rails_) {
    joining |= rail->state == Rail::State::joining;
    if (!established_ || rail->was_up) all_tried &= rail->failures >= enough;
  }
  return attended >= lost_since_ + in_nanoseconds(parameters_.peer_deadline) ||
         (all_tried && !joining && attended >= refused_until());
}

// --- the end, and reports

void Rails::begin_end() noexcept {
  pump();
  ending_ = true;
  for (const auto& rail : rails_) {
    if (!rail->up() || !rail->stands()) continue;
    const FrameHeader over{.type = FrameType::settled, .total = Flow::kOver};
    rail->post_control(rail->join, Posting::Kind::fence, over);  // its outcome does not matter
  }
}

PathReport Rails::report() const {
  PathReport report{.link = {}, .how = {}};
  for (const auto& rail : rails_) {
    report.link.append(report.link.empty() ? "" : "+").append(rail->link.tag);
    if (!report.how.empty()) report.how += "; ";
    report.how += rail->link.tag + " ";
    if (!rail->up()) {
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
