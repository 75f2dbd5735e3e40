#pragma once

#include <cstdint>

#include "base/deadline.h"
#include "base/queues/intrusive_list.h"
#include "fabric/session/link_operation.h"

namespace fab::lnx {

class Rail;
struct Request;

// What is posted on a rail: a request, a part of one, or what rails tell each other. Whoever posts it owns
// it, and keeps it until its outcome came.
struct Posting : LinkOperation {
  // `end`: ends a striped request, when all stripes are stored. `note`: tells the peer what it may forget.
  enum class Kind : std::uint8_t { whole, stripe, end, join, fence, note, probe };
  enum class Probe : std::uint8_t { sign_of_life, witness, trial };

  Rail* rail = nullptr;
  Request* request = nullptr;  // null: it belongs to none
  Kind kind = Kind::whole;
  Probe probe = Probe::sign_of_life;
  bool under_way = false;           // the link holds it
  std::uint64_t length = 0;         // bytes of a stripe or of a whole request
  std::uint64_t out = 0, back = 0;  // bytes that it moves to the peer and from the peer
  ListLink<Posting> order;          // its place in Rail::under_way
  Clock::time_point posted{};       // when, by parameters.attended()
  std::uint32_t trial = 0;          // the trial in which it takes part; 0: none

  bool of_request() const noexcept { return kind == Kind::whole || kind == Kind::end; }
};
using Postings = IntrusiveList<Posting, &Posting::order>;

}  // namespace fab::lnx
