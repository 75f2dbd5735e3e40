#include "fabric/session/liveness.h"

#include <doctest/doctest.h>

#include <limits>

namespace fab::test {
namespace {

using namespace std::chrono_literals;
using Verdict = Liveness::Verdict;

// A peer under a clock that the test moves.
struct Watched {
  static constexpr Liveness::Time kPatience = 9s;
  Liveness liveness;
  Liveness::Time now = 100s;
  std::uint64_t heard = 0;

  Verdict after(Liveness::Time time, bool owes = true) {
    now += time;
    return liveness.look(owes, heard, now, kPatience);
  }
};

}  // namespace

TEST_CASE("a silent peer is asked from a third of the deadline on, and lost at the deadline") {
  Watched peer;
  CHECK(peer.after(0s) == Verdict::well);
  CHECK(peer.after(3s - 1ns) == Verdict::well);
  CHECK(peer.after(1ns) == Verdict::ask);
  CHECK(peer.after(3s) == Verdict::ask);
  CHECK(peer.after(3s - 1ns) == Verdict::ask);
  CHECK(peer.after(1ns) == Verdict::lost);
}

TEST_CASE("any sign of life begins the silence anew") {
  Watched peer;
  peer.after(0s);
  CHECK(peer.after(8s) == Verdict::ask);
  ++peer.heard;
  CHECK(peer.after(500ms) == Verdict::well);
  CHECK(peer.after(2s) == Verdict::well);
  CHECK(peer.after(6s) == Verdict::ask);
  CHECK(peer.after(1s) == Verdict::lost);
}

TEST_CASE("a peer that owes nothing may be silent for ever") {
  Watched peer;
  for (int i = 0; i < 100; ++i) CHECK(peer.after(5s, false) == Verdict::well);
  CHECK(peer.after(100s, false) == Verdict::well);
}

TEST_CASE("silence counts from when something is owed") {
  Watched peer;
  CHECK(peer.after(0s, false) == Verdict::well);
  CHECK(peer.after(20s) == Verdict::well);  // it may have been posted just now
  CHECK(peer.after(8s) == Verdict::ask);
  CHECK(peer.after(500ms, false) == Verdict::well);  // answered, and asked for something else
  CHECK(peer.after(8s) == Verdict::well);
  CHECK(peer.after(8s) == Verdict::ask);
  CHECK(peer.after(1s) == Verdict::lost);
}

TEST_CASE("what was heard while nothing was owed is no sign of life later") {
  Watched peer;
  peer.after(0s, false);
  ++peer.heard;
  peer.after(1s, false);
  peer.after(1s);
  CHECK(peer.after(8s) == Verdict::ask);
  CHECK(peer.after(1s) == Verdict::lost);
}

TEST_CASE("a clock that stands while this process is away blames nobody") {
  Watched peer;
  peer.after(0s);
  for (int i = 0; i < 1000; ++i) CHECK(peer.after(0s) == Verdict::well);
  // One period for an absence, however long, as Ticker::attended() counts it.
  CHECK(peer.after(1s) == Verdict::well);
}

TEST_CASE("a patience without end never loses anybody") {
  Liveness liveness;
  constexpr auto kEndless = Liveness::Time::max();
  CHECK(liveness.look(true, 0, 0s, kEndless) == Verdict::well);
  CHECK(liveness.look(true, 0, 1000h, kEndless) == Verdict::well);
}

TEST_CASE("the deadlines are the user's") {
  CHECK(Liveness::patience({10, 2}, false) == 10s);
  CHECK(Liveness::patience({10, 2}, true) == 2s);
  CHECK(Liveness::patience({1, 2}, true) == 1s);  // a rail is given up no later than its peer
  CHECK(Liveness::patience({std::numeric_limits<double>::infinity(), 2}, false) > 24h);
  CHECK(Liveness::handshake_time({10, 2}) == 5s);
  CHECK(Liveness::handshake_time({0.5, 2}) == 500ms);
}

TEST_CASE("looks come several times in a deadline, and not all the time") {
  for (const double peer : {0.2, 1.0, 4.0}) {
    for (const double rail : {0.3, 3.0}) {
      CAPTURE(peer);
      CAPTURE(rail);
      for (const bool rails : {false, true}) {
        const double period =
            Liveness::look_period(rails ? Liveness::Deadlines{peer, rail} : Liveness::Deadlines{peer});
        CHECK(8 * period == doctest::Approx(rails ? std::min(peer, rail) : peer));
      }
    }
  }
  // The handshake's deadline is judged with them.
  CHECK(8 * Liveness::look_period({1e6}) == doctest::Approx(5));
  CHECK(Liveness::look_period({0, 0}) == doctest::Approx(0.01));
}

}  // namespace fab::test
