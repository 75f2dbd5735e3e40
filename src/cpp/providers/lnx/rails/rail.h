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
  // A posting ended. Runs inside of a link's path, which may be ending itself: only notes what is to be done.
  virtual void ended(Rail& rail, Posting& posting) noexcept = 0;
  virtual void notice() noexcept = 0;  // there is something to do in the next pump()
  virtual void watch() noexcept = 0;   // tick() is wanted regularly
  // Cuts the stream of a rail: what it held comes back as lost, and goes over other rails behind a fence.
  virtual void give_up(Rail& rail) noexcept = 0;
  virtual void rise(Rail& rail) noexcept = 0;  // the rail carries requests from now on

 protected:
  ~RailsOwner() = default;
};

// One link to the peer, and what is under way on it. All parts of Rails look at its state.
class Rail final {
 public:
  // `aside`: it has joined, but carries nothing except probes.
  enum class State { down, joining, aside, up };

  Rail(RailLink where, std::uint32_t number, std::size_t rails, const RailsParameters& parameters,
       RailsOwner& owner);

  bool up() const noexcept { return state == State::up; }
  bool stands() const noexcept { return path && !broken && path->state() == Errc::ok; }

  // --- postings
  // Prepares the posting for this rail.
  void begin(Posting& posting, Posting::Kind kind, Request* request) noexcept;
  // False: the link takes no more now. True: RailsOwner::ended() will tell the end of the posting, or already
  // did.
  bool post(Posting& posting, const Transfer& transfer) noexcept;
  // Begins and posts what rails tell each other. The posting keeps the frame.
  bool post_control(Posting& posting, Posting::Kind kind, const FrameHeader& frame,
                    Request* request = nullptr) noexcept;
  // Posts a request of the link, which was begun; the answer has `answer` bytes that nobody reads.
  bool post_frame(Posting& posting, const FrameHeader& frame, std::uint64_t answer) noexcept;
  // The link holds the posting from track() to untrack(). For postings that are posted in a batch.
  void track(Posting& posting) noexcept;
  void untrack(Posting& posting) noexcept;
  // The oldest posting whose outcome is due; null: none. Announced messages are not due, because their
  // receivers may take their time.
  const Posting* oldest_owed() const noexcept;
  // Since when the outcome has been due: not before the posting ahead of it ended.
  Clock::time_point owes_since(const Posting& posting) const noexcept {
    return std::max(posting.posted, ended_at);
  }

  // --- stripes
  Stripe* free_stripe() noexcept;  // null: enough are under way
  void begin_stripes() noexcept;   // starts a measurement if no stripe is under way
  // So many bytes of stripes have arrived; true if that completes a measurement.
  bool measure(std::uint64_t arrived) noexcept;

  // --- coming and going; times are by parameters.clock()
  void rose() noexcept;
  // The rail was lost. `others`: other rails are up.
  void lost(bool others) noexcept;
  // Sets the rail aside: it carries requests again only after an exam, and small requests only after it has
  // done well for long. Each time that lasts longer.
  void doubt() noexcept;
  void forgive() noexcept;                         // undoes doubt() if that was long ago
  Clock::time_point forgiven_at() const noexcept;  // when to call forgive() next; max(): never
  void try_soon() noexcept;                        // connects again soon, because no other rail is left
  // Whether the rail joined long after another one rose at `other`.
  bool late_after(Clock::time_point other) const noexcept;

  const RailLink link;
  const std::uint32_t slot;
  State state = State::down;
  std::unique_ptr<Path> path;
  bool broken = false;  // a join or a fence failed on this path, which is of no use then
  std::uint32_t incarnation = 0;
  std::uint32_t last_dead = 0;  // the incarnation that was lost last
  std::uint32_t unfenced = 0;   // a bit for each slot whose last lost stream has to be fenced off first
  Posting join;
  bool rejoins = false;              // with `join` it asked for a flow that the peer has to know
  std::vector<Posting> fences;       // by the slot that is fenced off
  unsigned postings = 0;             // all that the link holds
  unsigned wholes = 0, stripes = 0;  // how many of the postings are requests or their ends, and stripes
  std::uint64_t bytes = 0;           // of the stripes and whole requests that the link holds
  double rate = 0;                   // bytes per second; 0: not measured yet
  bool was_up = false;               // at any time
  Errc refused = Errc::ok;           // why the peer did not let it join
  unsigned failures = 0;             // failed attempts to connect since the rail was up
  Clock::time_point retry_at{};
  Clock::time_point rose_at{};

  // --- how it does: Health
  // Times are by parameters.attended(), except for sign_at.
  Postings under_way;                   // in the order of posting
  Clock::time_point ended_at{};         // when the last posting of any kind ended
  Clock::time_point suspected_since{};  // owes_since() what was due at the last look; {}: nothing was
  Clock::time_point sign_at{};          // when it may be asked for a sign of life
  bool asked = false;                   // a witness is under way: a probe that shows how long this rail takes
  Clock::time_point answered_asked_at{};  // when the last witness probe was posted that came back
  Clock::duration answer_took{};          // how long that probe took
  unsigned strikes = 0;                   // measurements in a row that were too small
  bool sick = false;                      // to be set aside at the next look
  bool out = false;                       // it was set aside, and has passed no exam since
  Clock::duration aside{};                // how long it was set aside the last time; 0: never, or long ago
  bool trusted = true;                    // it may carry small requests
  unsigned begun = 0, done = 0;           // postings of the trial that were posted, and that ended
  Clock::duration owed{};                 // sum of the times that those took

 private:
  static constexpr Clock::duration kFirstPause = std::chrono::milliseconds(20);

  static void on_ended(Operation& operation) noexcept;

  const RailsParameters& parameters_;
  RailsOwner& owner_;
  std::array<Stripe, kStripesAhead> stripe_postings_;
  Clock::time_point busy_since_{};       // when the present measurement began
  std::uint64_t busy_bytes_ = 0;         // bytes that arrived since then
  unsigned losses_ = 0;                  // losses in a row, each soon after the rail rose
  Clock::time_point missed_since_{};     // since when it has been tried to connect
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
  std::optional<Clock::time_point> earliest_up() const noexcept;  // when the first of those that are up rose
  // The weight that the user gave, else the bandwidth; to be compared with the weights of the others.
  double weight(const Rail& rail) const noexcept;
  double share(const Rail& rail) const noexcept;  // of the weights of all that are up, 0 to 1
  // Whether the rail takes requests. Posts its fences, before which nothing else may go.
  bool usable(Rail& rail) noexcept;
  // The rail that will be done first with so many bytes more; null: none takes any.
  Rail* best_for(std::uint64_t bytes) noexcept;

  Rail* primary = nullptr;  // the rail for ordered requests
  bool lost_some = false;   // requests were lost with a rail: nothing goes out before it is fenced off

 private:
  std::vector<std::unique_ptr<Rail>> rails_;
};

}  // namespace fab::lnx
