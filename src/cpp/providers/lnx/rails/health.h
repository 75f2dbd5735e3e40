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
  // When it wants to look again, beside what is watched.
  Clock::time_point next_look() noexcept;
  // Bytes of stripes have arrived.
  void arrived(Rail& rail, std::uint64_t bytes) noexcept;
  // Any posting has ended; before Rail::ended_at tells of it.
  void tally(Rail& rail, const Posting& posting) noexcept;
  void probe_ended(Rail& rail, Posting& probe) noexcept;
  void lost(const Rail& rail, bool carried) noexcept;

  // --- races, beside which the same goes over the other rails
  // Before it is posted. Whether it takes part.
  bool enters_race(Rail& rail, Posting& posting) noexcept;
  void scratch(Posting& posting) noexcept;  // it was not posted
  // The same over the other rails, which nobody needs.
  void shadow(std::uint64_t out, std::uint64_t back) noexcept;

 private:
  // Rails are compared by what they do at the same time: a race of the primary rail against the others, or an
  // exam of one that was set aside.
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
  std::uint32_t trial_number_ = 0;   // tells its postings from those of others
  Clock::time_point trial_since_{};  // attended
  unsigned trial_postings_ = 0;      // of a race: still to be posted; of an exam: for each of both rails
  const Rail* racer_ = nullptr;      // the last one,
  unsigned races_lost_ = 0;          // and how many it has lost one after the other
  Clock::time_point race_at_{};      // when the next race may begin,
  Clock::duration race_pause_{};     // and how long that is after the last one
};

}  // namespace fab::lnx
