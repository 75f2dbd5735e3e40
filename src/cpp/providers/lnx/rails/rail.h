#pragma once

#include <array>
#include <memory>
#include <optional>
#include <vector>

#include "providers/lnx/rails/parameters.h"
#include "providers/lnx/rails/posting.h"
#include "providers/lnx/rails/stripes.h"

namespace fab::lnx {

// What the parts of Rails ask of the whole.
class RailsOwner {
 public:
  // Runs inside of a link's path, which may be at its end: only notes what is to be done.
  virtual void ended(Rail& rail, Posting& posting) noexcept = 0;
  virtual void notice() noexcept = 0;  // there is something to do in the next pump()
  virtual void watch() noexcept = 0;   // looks are wanted
  // Cuts the stream of a rail: what it held comes back as lost, and goes over others behind a fence.
  virtual void give_up(Rail& rail) noexcept = 0;
  virtual void rise(Rail& rail) noexcept = 0;  // it carries requests from now on

 protected:
  ~RailsOwner() = default;
};

// One link to the peer, and what is under way on it. Its state is looked at by all parts of Rails.
class Rail final {
 public:
  // Aside: it has joined, but carries nothing except probes.
  enum class State { down, joining, aside, up };

  Rail(RailLink where, std::uint32_t number, std::size_t rails, const RailsParameters& parameters,
       RailsOwner& owner);

  bool up() const noexcept { return state == State::up; }
  bool stands() const noexcept { return path && !broken && path->state() == Errc::ok; }

  // --- postings
  // Prepares it for this rail.
  void begin(Posting& posting, Posting::Kind kind, Request* request) noexcept;
  // False: the link takes no more now. Else RailsOwner::ended() tells its end, or did.
  bool post(Posting& posting, const Transfer& transfer) noexcept;
  // Prepares and posts what rails tell each other. The posting keeps the frame.
  bool post_control(Posting& posting, Posting::Kind kind, const FrameHeader& frame,
                    Request* request = nullptr) noexcept;
  // Posts a request of the link that was prepared, of whose answer `answer` bytes are thrown away.
  bool post_frame(Posting& posting, const FrameHeader& frame, std::uint64_t answer) noexcept;
  // What is posted in a batch, or not any longer.
  void track(Posting& posting) noexcept;
  void untrack(Posting& posting) noexcept;
  // Not counting announced messages: whoever receives them takes his time. Null: it owes nothing.
  const Posting* oldest_owed() const noexcept;
  // Since when it has owed this one: not while it was at what comes before.
  Clock::time_point owes_since(const Posting& posting) const noexcept {
    return std::max(posting.posted, ended_at);
  }

  // --- stripes
  Stripe* free_stripe() noexcept;  // null: enough are under way
  void begin_stripes() noexcept;   // if none is under way: from now on it is measured
  // So many bytes of stripes have arrived; true if that makes a new measurement.
  bool measure(std::uint64_t arrived) noexcept;

  // --- coming and going; by parameters.clock()
  void rose() noexcept;
  // `others`: that are up.
  void lost(bool others) noexcept;
  // It is believed again only after an exam, and with small requests only after it has behaved for long; each
  // time for longer.
  void doubt() noexcept;
  void forgive() noexcept;                                  // what was long ago
  Clock::time_point forgiven_at() const noexcept;           // the next time; max(): nothing is to be forgiven
  void try_soon() noexcept;                                 // no other one is left
  bool late_after(Clock::time_point other) const noexcept;  // another one rose so long before it joined

  const RailLink link;
  const std::uint32_t slot;
  State state = State::down;
  std::unique_ptr<Path> path;
  bool broken = false;  // a join or a fence came to nothing here: the path is of no use
  std::uint32_t incarnation = 0;
  std::uint32_t last_dead = 0;  // incarnation
  std::uint32_t unfenced = 0;   // slots, as bits, whose last dead streams are fenced off before all else
  Posting join;
  std::vector<Posting> fences;       // by the slot that is fenced off
  unsigned postings = 0;             // with the link,
  unsigned wholes = 0, stripes = 0;  // of them requests, or their ends, and stripes
  std::uint64_t bytes = 0;           // of wholes and stripes
  double rate = 0;                   // bytes per second; 0: not measured yet
  bool was_up = false;               // ever
  Errc refused = Errc::ok;           // why the peer did not let it join
  unsigned failures = 0;             // since a rail was up
  Clock::time_point retry_at{};
  Clock::time_point rose_at{};

  // --- how it does: Health
  Postings under_way;                     // in the order of posting
  Clock::time_point ended_at{};           // the last posting, whichever; attended
  Clock::time_point suspected_since{};    // what it owed at the last look, it owed since then; attended
  Clock::time_point sign_at{};            // when it may be asked for a sign of life
  bool asked = false;                     // for a probe that tells how others do, and has not answered
  Clock::time_point answered_asked_at{};  // when it was asked for the last one that it answered; attended
  Clock::duration answer_took{};          // and how long that one took
  unsigned strikes = 0;                   // measurements of its stripes in a row that were too small
  bool sick = false;                      // to be set aside at the next look
  bool out = false;                       // it was set aside, and has passed no exam since
  Clock::duration aside{};                // for how long, the last time; 0: never, or long ago
  bool trusted = true;                    // with small requests
  unsigned begun = 0, done = 0;           // postings of the trial,
  Clock::duration owed{};                 // and how long it owed one of them

 private:
  static constexpr Clock::duration kFirstPause = std::chrono::milliseconds(20);

  static void on_ended(Operation& operation) noexcept;

  const RailsParameters& parameters_;
  RailsOwner& owner_;
  std::array<Stripe, kStripesAhead> stripe_postings_;
  Clock::time_point busy_since_{};       // with stripes, or since the last measurement
  std::uint64_t busy_bytes_ = 0;         // that arrived since then
  unsigned losses_ = 0;                  // that followed each other soon
  Clock::time_point missed_since_{};     // the first of the attempts to connect that go on
  Clock::duration pause_ = kFirstPause;  // between attempts to connect
};

// The rails to one peer, in the order of preference.
class RailSet {
 public:
  void add(RailLink where, std::size_t rails, const RailsParameters& parameters, RailsOwner& owner);
  auto begin() const noexcept { return rails_.begin(); }
  auto end() const noexcept { return rails_.end(); }
  std::size_t size() const noexcept { return rails_.size(); }
  Rail& operator[](std::size_t slot) const noexcept { return *rails_[slot]; }

  unsigned up() const noexcept;
  bool idle() const noexcept;                                     // the links hold nothing
  std::optional<Clock::time_point> earliest_up() const noexcept;  // since when one is, if one is
  // What bandwidth counts it for, beside the others.
  double weight(const Rail& rail) const noexcept;
  double share(const Rail& rail) const noexcept;  // of all that are up, 0 to 1
  // Whether it takes requests: nothing goes before the fences, which are posted here.
  bool usable(Rail& rail) noexcept;
  // The one that will be done first with so many bytes more; null: none takes any.
  Rail* best_for(std::uint64_t bytes) noexcept;

  Rail* primary = nullptr;  // of what is ordered
  bool lost_some = false;   // with a rail: nothing goes out before that one was fenced off

 private:
  std::vector<std::unique_ptr<Rail>> rails_;
};

}  // namespace fab::lnx
