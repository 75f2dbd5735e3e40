#include "providers/lnx/rails/health.h"

#include <algorithm>
#include <new>
#include <utility>

#include "fabric/session/frames/frame.h"

namespace fab::lnx {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;

constexpr Clock::duration kLeastWait = milliseconds(20);
// For how long a rail may owe an outcome before others are asked, and before it is set aside.
constexpr Clock::duration kSuspected = milliseconds(40), kPatience = milliseconds(100);
constexpr int kStallsBy = 4;  // a rail stalls if it takes this many times as long as another would
constexpr Clock::duration kSignOfLife = milliseconds(1000);  // between probes of a rail that owes nothing

constexpr double kLeastShare = 0.1;  // of the best rail's bandwidth: less costs more than it adds
constexpr unsigned kStrikes = 3;     // measurements below that in a row, after which a rail is sick

constexpr unsigned kRaceParts = 64, kLeastRaceParts = 4;
constexpr Clock::duration kRaceTime = milliseconds(50);   // after this time no more postings take part
constexpr Clock::duration kRaceSlack = microseconds(10);  // for each posting
constexpr int kRaceLostBy = 2;      // a race is lost by this many times the winner's time
constexpr unsigned kRacesLost = 3;  // lost races in a row, after which a rail is sick
constexpr Clock::duration kFirstRacePause = milliseconds(20), kLongestRacePause = milliseconds(500);

constexpr unsigned kExamParts = 24, kLeastExamParts = 4, kExamAhead = 2;
constexpr Clock::duration kExamTime = milliseconds(20);  // of the examiner's probes, which is enough
constexpr int kPassesBy = 8;  // a rail passes with this many times the examiner's time
constexpr Clock::duration kExamSlack = milliseconds(10);
constexpr Clock::duration kLongestTrial = milliseconds(5000);

double seconds(Clock::duration span) { return std::chrono::duration<double>(span).count(); }

// How long `rail` would take for `bytes`, judged by the time that it took for a probe.
Clock::duration would_take(const Rail& rail, std::uint64_t bytes) noexcept {
  if (bytes <= kMaxProbe) return rail.answer_took;
  const double span = seconds(rail.answer_took);
  const double wanted = rail.rate > 0 ? span + static_cast<double>(bytes) / rail.rate
                                      : span * static_cast<double>(bytes) / kMaxProbe;
  return std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(wanted));
}

}  // namespace

Health::~Health() {
  while (Posting* probe = spare_probes_.front()) {
    spare_probes_.erase(*probe);
    delete probe;
  }
}

// --- looking

Clock::time_point Health::next_look() noexcept {
  const auto now = parameters_.clock();
  auto next = Clock::time_point::max();
  for (const auto& rail : rails_) {
    const auto forgiven = rail->up() ? rail->forgiven_at() : Clock::time_point::max();
    if (forgiven != Clock::time_point::max()) next = std::min(next, std::max(forgiven, now + kLeastWait));
  }
  const bool several = rails_.size() > 1;
  const bool owes =
      std::ranges::any_of(rails_, [](const auto& rail) { return rail->oldest_owed() != nullptr; });
  if (rails_.up() == 0 || (several && owes))
    owner_.watch();
  else if (several && !rails_.idle())
    next = std::min(next, now + kSignOfLife);
  return next;
}

void Health::judge() noexcept {
  const auto now = parameters_.attended();
  for (const auto& rail : rails_)
    if (rail->up()) rail->forgive();
  if (rails_.up() > 1)
    for (const auto& rail : rails_)
      if (rail->up() && stalls(*rail, now)) rail->sick = true;
  if (trial_ == Trial::race) judge_race(now);
  for (const auto& rail : rails_)
    if (rail->up() && std::exchange(rail->sick, false) && rails_.up() > 1) set_aside(*rail);

  if (trial_ != Trial::exam && rails_.up() != 0) {
    const auto aside = std::ranges::find(rails_, Rail::State::aside, &Rail::state);
    if (aside != rails_.end()) begin_trial(Trial::exam, **aside);
  }
  if (trial_ == Trial::exam) sit_exam(now);
  Rail* const primary = rails_.primary;
  if (trial_ == Trial::none && primary && primary->up() && rails_.up() > 1 && parameters_.clock() >= race_at_)
    begin_trial(Trial::race, *primary);
}

void Health::set_aside(Rail& rail) noexcept {
  rail.doubt();
  owner_.give_up(rail);
}

// Whether the rail owes an outcome for much longer than others take. What keeps this process or the peer from
// its work does not count, because it shows in the other rails as well.
bool Health::stalls(Rail& rail, Clock::time_point now) noexcept {
  const Posting* const oldest = rail.oldest_owed();
  if (!oldest) {
    rail.suspected_since = {};
    ask_for_sign(rail);
    return false;
  }
  const auto since = rail.owes_since(*oldest);
  if (now - since < kSuspected) {
    rail.suspected_since = {};
    return false;
  }
  // An outcome may have arrived that nobody has looked at yet; the next look will show it.
  const bool still = std::exchange(rail.suspected_since, since) == since;
  const std::uint64_t bytes = std::max(oldest->out, oldest->back);
  for (const auto& other : rails_) {
    if (other.get() == &rail || !other->up()) continue;
    if (other->answered_asked_at <= since) {
      ask_witness(*other, *oldest);
      continue;
    }
    if (still && now - since >= std::max(kPatience, kStallsBy * would_take(*other, bytes))) return true;
  }
  return false;
}

// Asks a rail for a sign of life on which nothing but announced messages is under way.
void Health::ask_for_sign(Rail& rail) noexcept {
  const auto clock = parameters_.clock();
  if (rail.under_way.empty() || clock < rail.sign_at) return;
  rail.sign_at = clock + kSignOfLife;
  post_probe(rail, 1, 1, Posting::Probe::sign_of_life);
}

void Health::ask_witness(Rail& rail, const Posting& suspect) noexcept {
  if (rail.asked) return;
  rail.asked = post_probe(rail, std::min<std::uint64_t>(suspect.out, kMaxProbe),
                          std::min<std::uint64_t>(suspect.back, kMaxProbe), Posting::Probe::witness);
}

void Health::arrived(Rail& rail, std::uint64_t bytes) noexcept {
  if (!rail.measure(bytes)) return;
  double best = 0;
  for (const auto& other : rails_)
    if (other->up()) best = std::max(best, other->rate);
  rail.strikes = rail.rate < kLeastShare * best ? rail.strikes + 1 : 0;
  if (rail.strikes < kStrikes) return;
  rail.sick = true;
  owner_.notice();
}

// --- probes

bool Health::post_probe(Rail& rail, std::uint64_t out, std::uint64_t back, Posting::Probe kind) noexcept {
  Posting* probe = spare_probes_.front();
  if (probe)
    spare_probes_.erase(*probe);
  else
    probe = new (std::nothrow) Posting;
  if (!probe) return false;
  rail.begin(*probe, Posting::Kind::probe, nullptr);
  probe->probe = kind;
  probe->out = out;
  probe->back = back;
  if (kind == Posting::Probe::trial) {
    probe->trial = trial_number_;
    ++rail.begun;
  }
  const FrameHeader frame{.type = FrameType::probe, .length = static_cast<std::uint32_t>(out), .total = back};
  if (rail.post_frame(*probe, frame, back)) return true;
  spare_probes_.push_back(*probe);
  if (kind == Posting::Probe::trial) --rail.begun;
  return false;
}

void Health::probe_ended(Rail& rail, Posting& probe) noexcept {
  spare_probes_.push_back(probe);
  if (probe.probe == Posting::Probe::witness) {
    rail.asked = false;
    if (probe.completion().error == Errc::ok) {
      rail.answered_asked_at = probe.posted;
      rail.answer_took = parameters_.attended() - probe.posted;
    }
  } else if (probe.probe == Posting::Probe::trial && trial_ == Trial::exam) {
    owner_.notice();  // the next probe has to be posted
  }
}

// --- trials

void Health::tally(Rail& rail, const Posting& posting) noexcept {
  if (posting.trial == 0 || posting.trial != trial_number_ || trial_ == Trial::none) return;
  if (posting.kind == Posting::Kind::probe && posting.completion().error != Errc::ok)
    return;  // a probe that failed shows nothing
  ++rail.done;
  if (!posting.announced) rail.owed += parameters_.attended() - rail.owes_since(posting);
}

void Health::lost(const Rail& rail, bool carried) noexcept {
  if (carried || &rail == tried_) end_trial();
}

void Health::begin_trial(Trial trial, Rail& tried) noexcept {
  trial_ = trial;
  tried_ = &tried;
  examiner_ = nullptr;
  if (++trial_number_ == 0) ++trial_number_;
  if (trial == Trial::race && std::exchange(racer_, &tried) != &tried) races_lost_ = 0;
  trial_since_ = parameters_.attended();
  trial_postings_ = trial == Trial::race ? kRaceParts : kExamParts;
  for (const auto& rail : rails_) {
    rail->begun = rail->done = 0;
    rail->owed = {};
  }
}

void Health::end_trial() noexcept {
  trial_ = Trial::none;
  tried_ = examiner_ = nullptr;
}

bool Health::enters_race(Rail& rail, Posting& posting) noexcept {
  if (trial_ != Trial::race || &rail != tried_ || trial_postings_ == 0 ||
      std::max(posting.out, posting.back) > kMaxProbe)
    return false;
  --trial_postings_;
  posting.trial = trial_number_;
  ++rail.begun;
  return true;
}

void Health::scratch(Posting& posting) noexcept {
  posting.trial = 0;
  if (trial_ == Trial::race) --tried_->begun;
}

void Health::shadow(std::uint64_t out, std::uint64_t back) noexcept {
  for (const auto& rail : rails_)
    if (trial_ == Trial::race && rail.get() != tried_ && rails_.usable(*rail))
      post_probe(*rail, out, back, Posting::Probe::trial);
}

void Health::judge_race(Clock::time_point now) noexcept {
  const Rail& racer = *tried_;
  if (tried_ != rails_.primary) return end_trial();
  if (now - trial_since_ > kRaceTime) trial_postings_ = 0;
  if ((trial_postings_ != 0 || racer.done < racer.begun) && now - trial_since_ < kLongestTrial) return;
  const auto lost_to = [&](const auto& rail) {
    return rail.get() != tried_ && rail->up() && (rail->trusted || !racer.trusted) &&
           rail->begun == racer.begun && rail->done == racer.done &&
           kRaceLostBy * rail->owed + static_cast<int>(racer.done) * kRaceSlack < racer.owed;
  };
  const bool lost =
      racer.done == racer.begun && racer.done >= kLeastRaceParts && std::ranges::any_of(rails_, lost_to);
  races_lost_ = lost ? races_lost_ + 1 : 0;
  race_pause_ =
      lost ? kFirstRacePause : std::min(std::max(kFirstRacePause, 2 * race_pause_), kLongestRacePause);
  race_at_ = parameters_.clock() + (lost ? Clock::duration::zero() : race_pause_);
  if (races_lost_ == kRacesLost) {
    races_lost_ = 0;
    tried_->sick = true;
  }
  end_trial();
}

// Keeps a few probes under way on both rails until the examiner has shown enough, and then judges.
void Health::sit_exam(Clock::time_point now) noexcept {
  Rail& tried = *tried_;
  if (!examiner_) {
    const auto up = std::ranges::find_if(rails_, [](const auto& rail) { return rail->up(); });
    examiner_ = rails_.primary && rails_.primary->up() ? rails_.primary : up->get();
  }
  if (examiner_->owed >= kExamTime && examiner_->done >= kLeastExamParts)
    trial_postings_ = std::min(trial_postings_, examiner_->begun);
  for (Rail* rail : {examiner_, tried_})
    while (rail->begun < trial_postings_ && rail->begun - rail->done < kExamAhead &&
           post_probe(*rail, kMaxProbe, kMaxProbe, Posting::Probe::trial)) {
    }
  const bool late = now - trial_since_ > kLongestTrial;
  if (examiner_->done < trial_postings_ && !late) return;
  auto owed = tried.owed;
  const bool finished = tried.done >= trial_postings_;
  if (!finished && !tried.under_way.empty()) owed += now - tried.owes_since(*tried.under_way.front());
  const bool passes = owed <= kPassesBy * examiner_->owed + kExamSlack;
  if (!finished && passes && !late) return;
  if (!finished || !passes) return set_aside(tried);
  tried.rate =
      static_cast<double>(tried.done * kMaxProbe) / seconds(std::max<Clock::duration>(owed, microseconds(1)));
  end_trial();
  owner_.rise(tried);
  owner_.notice();
}

}  // namespace fab::lnx
