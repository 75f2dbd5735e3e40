#pragma once

#include <chrono>
#include <cstdint>
#include <limits>

namespace fab {

// When the peer of a link is asked for a sign of life, and when it counts as lost: the rule of all links.
//
// A peer is judged only while it owes something, by the time for which it has been silent since then. After a
// third of the user's deadline, each look asks the peer for a sign of life (a ping, which any process that
// runs answers). At the deadline the peer is lost. Only time in which this process ran counts as silence
// (Ticker::attended), so that peers are not blamed for an absence of this process. For the same reason a link
// takes in what has arrived before it gives a peer up.
//
// What differs from link to link, and why:
// - What a peer owes. All links wait for answers (Session::awaits_peer). Over shm and verbs, whoever opened
//   the stream waits for room in it too: a put with remote data over shm is told by a notice, which has no
//   answer. Over tcp the kernel ends a connection whose peer takes nothing (tune_tcp).
// - What is a sign of life. Over all links, what the peer sends. It answers behind all that was sent to it,
//   which may take longer than the deadline: so shm counts what the peer takes out of the ring, too, and tcp
//   what the network takes while some of it waits here.
// - What happens while nobody owes anything. shm and tcp need nothing: a pidfd and TCP's keep-alive tell of a
//   peer that has gone. A queue pair has neither, so the called side of a verbs stream sends something once
//   in a deadline, and its device finds out whether the peer is there.
// - Work of devices (verbs) needs no process of the peer, so no peer is pinged for it. It is judged
//   by itself, and any sign of the device or of the process counts.
// - When the link takes in what has arrived. shm and verbs make progress before they look at any peer, which
//   costs one look at a ring or a queue. Over tcp that would be a system call for each peer, so tcp looks
//   only at the socket of the peer that it is about to give up.
class Liveness {
 public:
  using Time = std::chrono::nanoseconds;  // Ticker::attended()
  enum class Verdict : std::uint8_t { well, ask, lost };

  // Seconds, as in DomainOptions and EndpointServices.
  struct Deadlines {
    double peer;
    double shared = std::numeric_limits<double>::infinity();  // for a link that is one of several to its peer
  };
  // How long a peer may be silent. `one_of_several`: there are other links to the peer, so this one is given
  // up earlier.
  static Time patience(Deadlines deadlines, bool one_of_several) noexcept;
  // How long a handshake may take, including calls that are repeated.
  static Time handshake_time(Deadlines deadlines) noexcept;
  // Seconds between two looks, for a Ticker.
  static double look_period(Deadlines deadlines) noexcept;

  // To be called once in a look_period(). `owes`: the peer owes something. `heard`: any number that changes
  // with each sign of life. Verdict::ask: it is time to ask the peer for a sign of life.
  Verdict look(bool owes, std::uint64_t heard, Time now, Time patience) noexcept;

 private:
  bool owed_ = false;
  std::uint64_t heard_ = 0;
  Time quiet_since_{0};
};

}  // namespace fab
