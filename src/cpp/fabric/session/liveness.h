#pragma once

#include <chrono>
#include <cstdint>
#include <limits>

namespace fab {

// When the peer of a link is asked for a sign of life, and when it counts as lost: the rule of all links.
//
// A peer is judged only while it owes something, by how long it has been silent since it has owed it. From a
// third of the user's deadline on it is asked with each look (a ping, which any process that runs answers);
// at the deadline it is lost. Silence is counted in time in which this process ran itself (Ticker::attended),
// so an absence of its own is never blamed on a peer, and a link takes in what has arrived before it gives a
// peer up.
//
// What differs from link to link, and why:
// - What a peer owes. All links wait for answers (Session::awaits_peer). Over shm and verbs, whoever opened
//   the stream waits for room in it too: a put with remote data over shm is told by a notice, which has no
//   answer. Over tcp the kernel ends a connection whose peer takes nothing (tune_tcp).
// - What is done of one's own accord. shm and tcp need nothing while nobody owes anything: a pidfd and TCP's
//   keep-alive tell of a peer that has gone. A queue pair has neither, so the called side of a verbs stream
//   says something once in a deadline, and its device finds out.
// - Work of devices (verbs) needs no process, so nobody is pinged for it. It is judged by itself, and any
//   sign of the device or of the process counts.
// - tcp looks at one socket again before it gives up its peer. shm and verbs make progress before they look
// at
//   anybody, which is one look at a ring or a queue there, and would be a system call for each peer here.
class Liveness {
 public:
  using Time = std::chrono::nanoseconds;  // Ticker::attended()
  enum class Verdict : std::uint8_t { well, ask, lost };

  // Seconds, as in DomainOptions and EndpointServices.
  struct Deadlines {
    double peer;
    double shared = std::numeric_limits<double>::infinity();  // of one of several ways to a peer
  };
  // How long a peer may be silent. `one_of_several`: there are other ways to it, so this one is given up
  // earlier.
  static Time patience(Deadlines deadlines, bool one_of_several) noexcept;
  // How long a handshake may take, all of its calls together.
  static Time handshake_time(Deadlines deadlines) noexcept;
  // Seconds between two looks, for a Ticker.
  static double look_period(Deadlines deadlines) noexcept;

  // To be called once in a look_period(). `owes`: this side waits for the peer. `heard`: any number that
  // changes with each sign of life. Verdict::ask: it is time to ask for one.
  Verdict look(bool owes, std::uint64_t heard, Time now, Time patience) noexcept;

 private:
  bool owed_ = false;
  std::uint64_t heard_ = 0;
  Time quiet_since_{0};
};

}  // namespace fab
