#pragma once

#include "providers/lnx/rails/rail.h"

namespace fab::lnx {

// Which rails are sick, and what becomes of them: docs/rails.md, "When a rail is sick".
class Health {
 public:
  Health(const RailsParameters& parameters, RailSet& rails, RailsOwner& owner)
      : parameters_(parameters), rails_(rails), owner_(owner) {}
  ~Health();
  Health(const Health&) = delete;
  Health& operator=(const Health&) = delete;

  // Looks at all rails, once every kLook while anything is owed.
  void judge() noexcept;
  // When judge() wants to be called again, apart from the calls while rails are watched.
  Clock::time_point next_look() noexcept;
  // So many bytes of stripes have arrived.
  void arrived(Rail& rail, std::uint64_t bytes) noexcept;
  // A posting of any kind has ended. To be called before Rail::ended_at is set.
  void tally(Rail& rail, const Posting& posting) noexcept;
  void probe_ended(Rail& rail, Posting& probe) noexcept;
  void lost(const Rail& rail, bool carried) noexcept;

  // --- races: small requests go over the primary rail, and probes of the same size over the other rails
  // To be called before the posting is posted: whether it takes part in a race.
  bool enters_race(Rail& rail, Posting& posting) noexcept;
  void scratch(Posting& posting) noexcept;  // a posting that takes part was not posted after all
  // Posts probes of this size over the other rails.
  void shadow(std::uint64_t out, std::uint64_t back) noexcept;

 private:
  // A trial compares rails by what they do at the same time. A race is between the primary rail and the
  // others; an exam is for a rail that was set aside.
  enum class Trial { none, race, exam };

  bool stalls(Rail& rail, Clock::time_point now) noexcept;
  void ask_for_sign(Rail& rail) noexcept;
  void ask_witness(Rail& rail, const Posting& suspect) noexcept;
  void set_aside(Rail& rail) noexcept;
  bool post_probe(Rail& rail, std::uint64_t out, std::uint64_t back, Posting::Probe kind) noexcept;
  void begin_trial(Trial trial, Rail& tried) noexcept;
  void end_trial() noexcept;
  void judge_race(Clock::time_point now) noexcept;
  void sit_exam(Clock::time_point now) noexcept;

  const RailsParameters& parameters_;
  RailSet& rails_;
  RailsOwner& owner_;
  Postings spare_probes_;  // owns them

  Trial trial_ = Trial::none;
  Rail *tried_ = nullptr, *examiner_ = nullptr;
  std::uint32_t trial_number_ = 0;   // tells the postings of this trial from those of others
  Clock::time_point trial_since_{};  // by parameters.attended()
  unsigned trial_postings_ = 0;      // a race: how many are still to come; an exam: how many each rail gets
  const Rail* racer_ = nullptr;      // the primary rail of the last race
  unsigned races_lost_ = 0;          // how many races the racer has lost in a row
  Clock::time_point race_at_{};      // when the next race may begin
  Clock::duration race_pause_{};     // the time between the last race and the next
};

}  // namespace fab::lnx
