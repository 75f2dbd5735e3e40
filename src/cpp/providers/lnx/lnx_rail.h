#pragma once

#include <algorithm>
#include <memory>
#include <vector>

#include "providers/lnx/lnx_rails.h"

// What Rails is made of.
namespace fab::lnx {

inline constexpr Clock::duration kFirstPause = std::chrono::milliseconds(20);  // between attempts to connect

// What was posted on a rail.
struct Rails::Part final : FlowOperation {
  Rails* rails = nullptr;
  Request* request = nullptr;
  std::uint32_t slot = 0;
  PartKind kind = PartKind::whole;
  ProbeKind probe = ProbeKind::sign_of_life;
  std::uint64_t length = 0;
  std::uint64_t out = 0, back = 0;  // bytes that it moves to the peer and from there
  std::vector<iovec> pieces;
  ListLink<Part> order;
  Clock::time_point posted{};
  std::uint32_t trial = 0;  // of which it is a part; 0: of none
};

struct Rails::Rail {
  // Aside: it has joined, but carries nothing except probes.
  enum class State { down, joining, aside, up };
  Link link;
  std::uint32_t slot = 0;
  State state = State::down;
  std::unique_ptr<Path> path{};
  std::uint32_t incarnation = 0;
  std::uint32_t last_dead = 0;          // incarnation
  std::vector<std::uint64_t> fences{};  // to be sent before anything else
  unsigned parts = 0;                   // with the link,
  unsigned wholes = 0, stripes = 0;     // of them requests, or their ends, and stripes
  std::uint64_t bytes = 0;              // likewise
  double rate = 0;                      // bytes per second; 0: not measured yet
  Clock::time_point busy_since{};       // with stripes, or since the last measurement
  std::uint64_t busy_bytes = 0;         // that arrived since then
  bool was_up = false;                  // ever
  Errc refused = Errc::ok;              // why the peer did not let it join
  unsigned failures = 0;                // since a rail was up
  Clock::time_point retry_at{};
  Clock::duration pause = kFirstPause;

  // --- how it does
  IntrusiveList<Part, &Part::order> under_way{};  // in the order of posting
  Clock::time_point ended_at{};                   // the last part, whichever
  Clock::time_point suspected_since{};            // what it owed at the last look, it owed since then
  bool asked = false;                     // for a probe that tells how others do, and has not answered
  Clock::time_point answered_asked_at{};  // when it was asked for the last one that it answered,
  Clock::duration answer_took{};          // and how long that one took
  unsigned strikes = 0;                   // measurements of its stripes in a row that were too small
  bool sick = false;                      // to be set aside at the next look
  bool out = false;                       // it was set aside, and has passed no exam since
  Clock::duration aside{};                // for how long, the last time; 0: never, or long ago
  bool trusted = true;                    // with small requests
  Clock::time_point rose_at{};
  unsigned begun = 0, done = 0;  // parts of the trial,
  Clock::duration owed{};        // and how long it owed one of them

  bool up() const noexcept { return state == State::up; }
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
