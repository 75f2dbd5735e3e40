#pragma once

#include <algorithm>
#include <array>
#include <memory>

#include "providers/lnx/rails.h"

// A rail of Rails, and the parts that it has under way besides requests.
namespace fab::lnx {

inline constexpr Clock::duration kFirstPause = std::chrono::milliseconds(20);  // between attempts to connect
inline constexpr unsigned kStripesAhead = 2;                                   // on one rail
inline constexpr std::uint16_t kMostPieces = 64;  // of a local vector that is cut

struct Rails::Rail {
  // Aside: it has joined, but carries nothing except probes.
  enum class State { down, joining, aside, up };
  struct Stripe final : Part {
    std::array<iovec, kMostPieces> pieces;
  };

  Rail(Link where, std::uint32_t number, std::size_t rails)
      : link(std::move(where)), slot(number), fences(std::make_unique<Part[]>(rails)) {}

  const Link link;
  const std::uint32_t slot;
  State state = State::down;
  std::unique_ptr<Path> path;
  bool broken = false;  // a join or a fence came to nothing here: the path is of no use
  std::uint32_t incarnation = 0;
  std::uint32_t last_dead = 0;  // incarnation
  std::uint32_t unfenced = 0;   // slots, as bits, whose last dead streams are fenced off before all else
  Part join;
  const std::unique_ptr<Part[]> fences;  // by the slot that is fenced off
  std::array<Stripe, kStripesAhead> stripe_parts;
  unsigned parts = 0;                // with the link,
  unsigned wholes = 0, stripes = 0;  // of them requests, or their ends, and stripes
  std::uint64_t bytes = 0;           // likewise
  double rate = 0;                   // bytes per second; 0: not measured yet
  Clock::time_point busy_since{};    // with stripes, or since the last measurement
  std::uint64_t busy_bytes = 0;      // that arrived since then
  bool was_up = false;               // ever
  Errc refused = Errc::ok;           // why the peer did not let it join
  unsigned failures = 0;             // since a rail was up
  Clock::time_point missed_since{};  // the first of the attempts to connect that go on
  Clock::time_point retry_at{};
  Clock::duration pause = kFirstPause;

  // --- how it does
  Parts under_way;                        // in the order of posting
  Clock::time_point ended_at{};           // the last part, whichever; attended
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
  unsigned losses = 0;                    // that followed each other soon
  Clock::time_point rose_at{};
  unsigned begun = 0, done = 0;  // parts of the trial,
  Clock::duration owed{};        // and how long it owed one of them

  bool up() const noexcept { return state == State::up; }
  bool stands() const noexcept { return path && !broken && path->state() == Errc::ok; }
  // Not counting announced messages: whoever receives them takes his time. Null: it owes nothing.
  const Part* oldest_owed() const noexcept {
    const Part* oldest = under_way.front();
    while (oldest && oldest->announced) oldest = oldest->order.next;
    return oldest;
  }
  // Since when it has owed `part`: not while it was at what comes before.
  Clock::time_point owes_since(const Part& part) const noexcept { return std::max(part.posted, ended_at); }
};

}  // namespace fab::lnx
