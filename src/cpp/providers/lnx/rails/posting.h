#pragma once

#include <cstdint>

#include "base/deadline.h"
#include "base/queues/intrusive_list.h"
#include "fabric/session/link_operation.h"

namespace fab::lnx {

class Rail;
struct Request;

// What is posted on a rail: a request, a part of one, or what rails tell each other. Owned by whoever posts
// it, until its outcome came.
struct Posting : LinkOperation {
  // End: of a striped request, when all stripes are stored. Note: what the peer may forget.
  enum class Kind : std::uint8_t { whole, stripe, end, join, fence, note, probe };
  enum class Probe : std::uint8_t { sign_of_life, witness, trial };

  Rail* rail = nullptr;
  Request* request = nullptr;  // null: of none
  Kind kind = Kind::whole;
  Probe probe = Probe::sign_of_life;
  bool under_way = false;           // with the link
  std::uint64_t length = 0;         // of a stripe or a whole
  std::uint64_t out = 0, back = 0;  // bytes that it moves to the peer and from there
  ListLink<Posting> order;          // among those of its rail
  Clock::time_point posted{};       // attended
  std::uint32_t trial = 0;          // in which it takes part; 0: in none

  bool of_request() const noexcept { return kind == Kind::whole || kind == Kind::end; }
};
using Postings = IntrusiveList<Posting, &Posting::order>;

}  // namespace fab::lnx
