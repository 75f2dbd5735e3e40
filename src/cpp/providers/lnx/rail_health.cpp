// Which rails are sick, and what becomes of them: docs/rails.md.

#include <algorithm>
#include <new>

#include "fabric/session/frames/frame.h"
#include "providers/lnx/rail.h"

namespace fab::lnx {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;

constexpr Clock::duration kLeastWait = milliseconds(20);
constexpr Clock::duration kSuspected =
    milliseconds(40);  // that a rail may owe something until others are asked,
constexpr Clock::duration kPatience = milliseconds(100);     // and until it is set aside
constexpr int kStallsBy = 4;                                 // times as long as another rail would take
constexpr Clock::duration kSignOfLife = milliseconds(1000);  // between them, of a rail that owes nothing

constexpr unsigned kRaceParts = 64, kLeastRaceParts = 4;
constexpr Clock::duration kRaceTime = milliseconds(50);   // after which nothing more takes part
constexpr Clock::duration kRaceSlack = microseconds(10);  // for each part
constexpr int kRaceLostBy = 2;                            // times as long as the winner
constexpr unsigned kRacesLost = 3;                        // in a row
constexpr Clock::duration kFirstRacePause = milliseconds(20), kLongestRacePause = milliseconds(500);

constexpr unsigned kExamParts = 24, kLeastExamParts = 4, kExamAhead = 2;
constexpr Clock::duration kExamTime = milliseconds(20);  // of the examiner, is enough
constexpr int kPassesBy = 8;                             // times as long as the examiner
constexpr Clock::duration kExamSlack = milliseconds(10);
constexpr Clock::duration kLongestTrial = milliseconds(5000);

constexpr Clock::duration kFirstAside = milliseconds(250), kLongestAside = milliseconds(60'000);
constexpr int kAsideGrowth = 4;
constexpr int kTrustedAfter = 40, kForgottenAfter = 80;  // times as long as it was set aside

}  // namespace

// --- looking

// tick() is called every kLook as long as there is something to look at.
void Rails::watch() noexcept {
  if (std::exchange(watched_, true)) return;
  parameters_.on_watch();
}

// Beside what is watched.
Clock::time_point Rails::next_look() noexcept {
  const auto now = parameters_.clock();
  auto next = Clock::time_point::max();
  for (const auto& rail : rails_) {
    if (!rail->up() || rail->aside == Clock::duration::zero()) continue;
    const auto forgiven = rail->rose_at + (rail->trusted ? kForgottenAfter : kTrustedAfter) * rail->aside;
    next = std::min(next, std::max(forgiven, now + kLeastWait));
  }
  const bool owes =
      std::ranges::any_of(rails_, [](const auto& rail) { return rail->oldest_owed() != nullptr; });
  watched_ = false;
  if (up() == 0 || (rails_.size() > 1 && owes))
    watch();
  else if (parts_open_ != 0 && rails_.size() > 1)
    next = std::min(next, now + kSignOfLife);
  return next;
}

void Rails::judge(Clock::time_point now) noexcept {
  if (ending_) return;
  for (const auto& rail : rails_)
    if (rail->up()) forgive(*rail);
  if (up() > 1)
    for (const auto& rail : rails_)
      if (rail->up() && stalls(*rail, now)) rail->sick = true;
  if (trial_ == Trial::race) judge_race(now);
  for (const auto& rail : rails_)
    if (rail->up() && std::exchange(rail->sick, false) && up() > 1) set_aside(*rail);

  if (trial_ != Trial::exam && up() != 0) {
    const auto aside = std::ranges::find(rails_, Rail::State::aside, &Rail::state);
    if (aside != rails_.end()) {
      end_trial();
      begin_trial(Trial::exam, **aside);
    }
  }
  if (trial_ == Trial::exam) sit_exam(now);
  if (trial_ == Trial::none && primary_ && primary_->up() && up() > 1 && parameters_.clock() >= race_at_)
    begin_trial(Trial::race, *primary_);
}

void Rails::forgive(Rail& rail) noexcept {
  if (rail.aside == Clock::duration::zero()) return;
  const auto now = parameters_.clock();
  if (now - rail.rose_at >= kTrustedAfter * rail.aside) rail.trusted = true;
  if (now - rail.rose_at >= kForgottenAfter * rail.aside) rail.aside = {};
}

// It is believed again only after an exam, and with small requests only after it has behaved for long; each
// time for longer.
void Rails::doubt(Rail& rail) noexcept {
  rail.aside = rail.aside == Clock::duration::zero() ? kFirstAside
                                                     : std::min(kAsideGrowth * rail.aside, kLongestAside);
  rail.out = true;
  rail.trusted = false;
  rail.rate = 0;
}

// Cuts its stream: what it held comes back as lost, and goes over other rails behind a fence.
void Rails::set_aside(Rail& rail) noexcept {
  doubt(rail);
  rail.path->cut();
  look_after_rails();
}

// Whether it owes something for much longer than others take, whatever keeps this process or the peer from
// its work: that shows in others as well.
bool Rails::stalls(Rail& rail, Clock::time_point now) noexcept {
  const Part* const oldest = rail.oldest_owed();
  if (!oldest) {
    rail.suspected_since = {};
    if (const auto clock = parameters_.clock(); !rail.under_way.empty() && clock >= rail.sign_at) {
      rail.sign_at = clock + kSignOfLife;
      post_probe(rail, 1, 1, ProbeKind::sign_of_life);
    }
    return false;
  }
  const auto since = rail.owes_since(*oldest);
  if (now - since < kSuspected) {
    rail.suspected_since = {};
    return false;
  }
  // What has arrived, but was not looked at yet, shows until the next look.
  const bool still = std::exchange(rail.suspected_since, since) == since;
  const std::uint64_t bytes = std::max(oldest->out, oldest->back);
  for (const auto& other : rails_) {
    if (other.get() == &rail || !other->up()) continue;
    if (other->answered_asked_at <= since) {
      if (!other->asked)
        other->asked = post_probe(*other, std::min<std::uint64_t>(oldest->out, kMaxProbe),
                                  std::min<std::uint64_t>(oldest->back, kMaxProbe), ProbeKind::witness);
      continue;
    }
    auto takes = other->answer_took;
    if (bytes > kMaxProbe) {
      const double probes = static_cast<double>(bytes) / kMaxProbe;
      const double span = std::chrono::duration<double>(takes).count();
      const double wanted = other->rate > 0 ? span + static_cast<double>(bytes) / other->rate : span * probes;
      takes = std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(wanted));
    }
    if (still && now - since >= std::max(kPatience, kStallsBy * takes)) return true;
  }
  return false;
}

// --- probes

bool Rails::post_probe(Rail& rail, std::uint64_t out, std::uint64_t back, ProbeKind kind) noexcept {
  Part* part = spare_probes_.front();
  if (part)
    spare_probes_.erase(*part);
  else
    part = new (std::nothrow) Part;
  if (!part) return false;
  begin(*part, PartKind::probe, rail, nullptr);
  part->probe = kind;
  part->out = out;
  part->back = back;
  if (kind == ProbeKind::trial) {
    part->trial = trial_number_;
    ++rail.begun;
  }
  Transfer probe{};
  probe.op = OpCode::probe;
  probe.operation = part;
  probe.length = out;
  probe.remote = back;
  probe.delivery = Delivery::delivery;
  if (post_part(rail, *part, probe)) return true;
  spare_probes_.push_back(*part);
  if (kind == ProbeKind::trial) --rail.begun;
  return false;
}

void Rails::probe_ended(Rail& rail, Part& probe, Errc error, Clock::time_point now) noexcept {
  spare_probes_.push_back(probe);
  if (probe.probe == ProbeKind::witness) {
    rail.asked = false;
    if (error == Errc::ok) {
      rail.answered_asked_at = probe.posted;
      rail.answer_took = now - probe.posted;
    }
  } else if (probe.probe == ProbeKind::trial && trial_ == Trial::exam) {
    notice();  // the next one
  }
}

// --- trials

// Before Rail::ended_at tells of `part`.
void Rails::tally(Rail& rail, const Part& part, Clock::time_point now) noexcept {
  if (part.trial == 0 || part.trial != trial_number_ || trial_ == Trial::none) return;
  if (part.kind == PartKind::probe && part.completion().error != Errc::ok) return;  // shows nothing
  ++rail.done;
  if (!part.announced) rail.owed += now - rail.owes_since(part);
}

void Rails::begin_trial(Trial trial, Rail& tried) noexcept {
  trial_ = trial;
  tried_ = &tried;
  examiner_ = nullptr;
  if (++trial_number_ == 0) ++trial_number_;
  trial_since_ = parameters_.attended();
  trial_parts_ = trial == Trial::race ? kRaceParts : kExamParts;
  for (const auto& rail : rails_) {
    rail->begun = rail->done = 0;
    rail->owed = {};
  }
}

void Rails::end_trial() noexcept {
  trial_ = Trial::none;
  tried_ = examiner_ = nullptr;
}

// Before it is posted.
bool Rails::enters_race(Rail& rail, Part& part) noexcept {
  if (trial_ != Trial::race || &rail != tried_ || trial_parts_ == 0 ||
      std::max(part.out, part.back) > kMaxProbe)
    return false;
  --trial_parts_;
  part.trial = trial_number_;
  ++rail.begun;
  return true;
}

void Rails::scratch(Part& part) noexcept {
  part.trial = 0;
  if (trial_ == Trial::race) --tried_->begun;
}

// The same over the other rails, which nobody needs.
void Rails::shadow(std::uint64_t out, std::uint64_t back) noexcept {
  for (const auto& rail : rails_)
    if (trial_ == Trial::race && rail.get() != tried_ && usable(*rail))
      post_probe(*rail, out, back, ProbeKind::trial);
}

void Rails::judge_race(Clock::time_point now) noexcept {
  const Rail& racer = *tried_;
  if (tried_ != primary_) return end_trial();
  if (now - trial_since_ > kRaceTime) trial_parts_ = 0;
  if ((trial_parts_ != 0 || racer.done < racer.begun) && now - trial_since_ < kLongestTrial) return;
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

// Both rails have a few probes under way until the examiner has shown enough.
void Rails::sit_exam(Clock::time_point now) noexcept {
  Rail& tried = *tried_;
  if (!examiner_) {
    const auto up = std::ranges::find_if(rails_, [](const auto& rail) { return rail->up(); });
    examiner_ = primary_ && primary_->up() ? primary_ : up->get();
  }
  if (examiner_->owed >= kExamTime && examiner_->done >= kLeastExamParts)
    trial_parts_ = std::min(trial_parts_, examiner_->begun);
  for (Rail* rail : {examiner_, tried_})
    while (rail->begun < trial_parts_ && rail->begun - rail->done < kExamAhead &&
           post_probe(*rail, kMaxProbe, kMaxProbe, ProbeKind::trial)) {
    }
  const bool late = now - trial_since_ > kLongestTrial;
  if (examiner_->done < trial_parts_ && !late) return;
  auto owed = tried.owed;
  const bool finished = tried.done >= trial_parts_;
  if (!finished && !tried.under_way.empty()) owed += now - tried.owes_since(*tried.under_way.front());
  const bool passes = owed <= kPassesBy * examiner_->owed + kExamSlack;
  if (!finished && passes && !late) return;
  if (!finished || !passes) return set_aside(tried);
  tried.rate = static_cast<double>(tried.done * kMaxProbe) /
               std::chrono::duration<double>(std::max<Clock::duration>(owed, microseconds(1))).count();
  end_trial();
  rise(tried);
  notice();
}

}  // namespace fab::lnx
