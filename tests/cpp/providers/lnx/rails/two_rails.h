#pragma once

#include <algorithm>

#include "providers/lnx/rails/rail_ground.h"

namespace fab::test {

using lnx::Posting;
using Kind = Posting::Kind;
using Slots = std::vector<std::uint32_t>;

// Two rails that are up, the first of which is the primary one; no race is due.
struct Two : RailGround {
  explicit Two(std::size_t count = 2) : RailGround(count) {
    raise_all();
    rails.primary = &rails[0];
    for (std::size_t i = 0; i < count; ++i) links[i].room = 100'000;
  }
  // Looks every so often, for so long.
  void look(Clock::duration span, Clock::duration every = std::chrono::milliseconds(20)) {
    for (const auto until = clock + span; clock < until;) {
      pass(every);
      health.judge();
    }
  }
  Posting& owe(std::size_t slot, std::uint64_t out = 100, std::uint64_t back = 0) {
    Posting& posting = postings.emplace_back();
    rails[slot].begin(posting, Kind::note, nullptr);
    posting.out = out;
    posting.back = back;
    Transfer transfer{};
    transfer.operation = &posting;
    REQUIRE(rails[slot].post(posting, transfer));
    return posting;
  }
  bool probed(std::size_t slot) const {
    return !links[slot].held.empty() && is(links[slot].held.back(), FrameType::probe);
  }
};

}  // namespace fab::test
