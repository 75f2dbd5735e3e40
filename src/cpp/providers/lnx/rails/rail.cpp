#include "providers/lnx/rails/rail.h"

#include <algorithm>
#include <bit>

namespace fab::lnx {
namespace {

using std::chrono::milliseconds;

constexpr double kNewest = 0.3;         // weight of the newest measurement
constexpr double kMeasuredFor = 0.004;  // seconds of a measurement at least: acknowledgements come in bunches
constexpr Clock::duration kLongestPause = milliseconds(1000),
                          kLongestOfNew = milliseconds(30'000);  // for a link that was never up
constexpr Clock::duration kLate = milliseconds(500);  // a rail that rises this much later may be flapping
constexpr unsigned kLossesForgiven = 2;               // in a row, each within kSoon after the rail rose
constexpr Clock::duration kSoon = milliseconds(10'000);
constexpr Clock::duration kFirstAside = milliseconds(250), kLongestAside = milliseconds(60'000);
constexpr int kAsideGrowth = 4;
constexpr int kTrustedAfter = 40, kForgottenAfter = 80;  // multiples of the time for which it was set aside

}  // namespace

Rail::Rail(RailLink where, std::uint32_t number, std::size_t rails, const RailsParameters& parameters,
           RailsOwner& owner)
    : link(std::move(where)),
      slot(number),
      fences(rails),
      parameters_(parameters),
      owner_(owner),
      missed_since_(parameters.clock()) {}

// --- postings

void Rail::begin(Posting& posting, Posting::Kind kind, Request* request) noexcept {
  posting.rail = this;
  posting.request = request;
  posting.kind = kind;
  posting.length = posting.out = posting.back = 0;
  posting.trial = 0;
  posting.frame = {};
  posting.announced = kind == Posting::Kind::whole && request->announced;
  static_cast<Operation&>(posting).begin({.hook = &Rail::on_ended});
}

void Rail::on_ended(Operation& operation) noexcept {
  auto& posting = static_cast<Posting&>(operation);
  posting.rail->owner_.ended(*posting.rail, posting);
}

bool Rail::post(Posting& posting, const Transfer& transfer) noexcept {
  posting.length = posting.kind == Posting::Kind::stripe ? transfer.length : 0;
  track(posting);
  parameters_.slice.spend(0);
  if (path->post({&transfer, 1}) == 1) return true;
  untrack(posting);
  return false;
}

bool Rail::post_control(Posting& posting, Posting::Kind kind, const FrameHeader& frame,
                        Request* request) noexcept {
  begin(posting, kind, request);
  return post_frame(posting, frame, 0);
}

bool Rail::post_frame(Posting& posting, const FrameHeader& frame, std::uint64_t answer) noexcept {
  posting.frame = frame;
  Transfer transfer{};
  transfer.operation = &posting;
  transfer.op = OpCode::control;
  transfer.length = answer;
  transfer.delivery = Delivery::delivery;
  return post(posting, transfer);
}

void Rail::track(Posting& posting) noexcept {
  posting.under_way = true;
  posting.posted = parameters_.attended();
  under_way.push_back(posting);
  ++postings;
  bytes += posting.length;
  if (posting.kind == Posting::Kind::stripe) ++stripes;
  if (posting.of_request()) ++wholes;
  if (posting.request) ++posting.request->postings;
}

void Rail::untrack(Posting& posting) noexcept {
  posting.under_way = false;
  under_way.erase(posting);
  --postings;
  bytes -= posting.length;
  if (posting.kind == Posting::Kind::stripe) --stripes;
  if (posting.of_request()) --wholes;
  if (posting.request) --posting.request->postings;
}

const Posting* Rail::oldest_owed() const noexcept {
  const Posting* oldest = under_way.front();
  while (oldest && oldest->announced) oldest = oldest->order.next;
  return oldest;
}

// --- stripes

Stripe* Rail::free_stripe() noexcept {
  for (Stripe& stripe : stripe_postings_)
    if (!stripe.under_way) return &stripe;
  return nullptr;
}

void Rail::begin_stripes() noexcept {
  if (stripes != 0) return;
  busy_since_ = parameters_.clock();
  busy_bytes_ = 0;
}

bool Rail::measure(std::uint64_t arrived) noexcept {
  const auto now = parameters_.clock();
  busy_bytes_ += arrived;
  const double span = std::chrono::duration<double>(now - busy_since_).count();
  if (span < kMeasuredFor) return false;
  const double measured = static_cast<double>(busy_bytes_) / span;
  rate = rate == 0 ? measured : rate + kNewest * (measured - rate);
  busy_since_ = now;
  busy_bytes_ = 0;
  return true;
}

// --- coming and going

void Rail::rose() noexcept {
  rose_at = parameters_.clock();
  state = State::up;
  was_up = true;
  out = sick = asked = false;
  strikes = 0;
  pause_ = kFirstPause;
}

void Rail::lost(bool others) noexcept {
  const bool carried = up();
  const auto now = parameters_.clock();
  state = State::down;
  last_dead = incarnation;
  refused = Errc::ok;
  path.reset();
  failures = carried ? 0 : failures + 1;
  unfenced = 0;
  asked = broken = false;
  if (carried) {
    missed_since_ = now;
    losses_ = now - rose_at < kSoon ? losses_ + 1 : 1;
    if (!out && losses_ > kLossesForgiven && others) doubt();
  }
  if (out && others)
    retry_at = now + aside;
  else
    retry_at = carried ? now : now + pause_;
  pause_ = carried ? kFirstPause : std::min(2 * pause_, was_up ? kLongestPause : kLongestOfNew);
}

void Rail::doubt() noexcept {
  aside = aside == Clock::duration::zero() ? kFirstAside : std::min(kAsideGrowth * aside, kLongestAside);
  out = true;
  trusted = false;
  rate = 0;
}

void Rail::forgive() noexcept {
  if (aside == Clock::duration::zero()) return;
  const auto behaved = parameters_.clock() - rose_at;
  if (behaved >= kTrustedAfter * aside) trusted = true;
  if (behaved >= kForgottenAfter * aside) aside = {};
}

Clock::time_point Rail::forgiven_at() const noexcept {
  if (aside == Clock::duration::zero()) return Clock::time_point::max();
  return rose_at + (trusted ? kForgottenAfter : kTrustedAfter) * aside;
}

void Rail::try_soon() noexcept {
  retry_at = std::min(retry_at, parameters_.clock());
  pause_ = kFirstPause;
}

bool Rail::late_after(Clock::time_point other) const noexcept {
  return parameters_.clock() - std::max(missed_since_, other) > kLate;
}

// --- all of them

void RailSet::add(RailLink where, std::size_t rails, const RailsParameters& parameters, RailsOwner& owner) {
  const auto slot = static_cast<std::uint32_t>(rails_.size());
  rails_.push_back(std::make_unique<Rail>(std::move(where), slot, rails, parameters, owner));
}

unsigned RailSet::up() const noexcept {
  return static_cast<unsigned>(std::ranges::count_if(rails_, [](const auto& rail) { return rail->up(); }));
}

bool RailSet::idle() const noexcept {
  return std::ranges::all_of(rails_, [](const auto& rail) { return rail->postings == 0; });
}

std::optional<Clock::time_point> RailSet::earliest_up() const noexcept {
  std::optional<Clock::time_point> earliest;
  for (const auto& rail : rails_)
    if (rail->up()) earliest = std::min(rail->rose_at, earliest.value_or(Clock::time_point::max()));
  return earliest;
}

double RailSet::weight(const Rail& rail) const noexcept {
  if (rail.link.weight > 0) return rail.link.weight;
  if (rail.rate > 0) return rail.rate;
  double most = 0;  // the greatest measured rate
  for (const auto& other : rails_) most = std::max(most, other->rate);
  return most > 0 ? most : 1;
}

double RailSet::share(const Rail& rail) const noexcept {
  double all = 0;
  for (const auto& other : rails_)
    if (other->up()) all += weight(*other);
  return weight(rail) / all;
}

bool RailSet::usable(Rail& rail) noexcept {
  while (!lost_some && rail.up() && rail.stands()) {
    if (rail.unfenced == 0) return true;
    const auto slot = static_cast<std::uint32_t>(std::countr_zero(rail.unfenced));
    Posting& posting = rail.fences[slot];
    if (posting.under_way) return false;  // the fence of an earlier stream
    const FrameHeader fence{.type = FrameType::fence,
                            .data = RailNumber{slot, rails_[slot]->last_dead}.packed()};
    rail.unfenced &= ~(1u << slot);
    if (rail.post_control(posting, Posting::Kind::fence, fence)) continue;
    rail.unfenced |= 1u << slot;
    return false;
  }
  return false;
}

Rail* RailSet::best_for(std::uint64_t bytes) noexcept {
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

}  // namespace fab::lnx
