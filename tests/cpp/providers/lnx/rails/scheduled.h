#pragma once

#include <string>
#include <utility>

#include "providers/lnx/rails/rail_ground.h"

namespace fab::test {

// Bytes of a put or get from which on it may leave the primary rail.
inline constexpr std::size_t kMedium = 16 * 1024;

// Requests and the rails over which they are scheduled.
struct Scheduled {
  std::deque<UserOp> ops;
  RailGround ground;

  explicit Scheduled(std::size_t count = 2, std::string preferred = {}, std::vector<double> weights = {})
      : ground(count, std::move(preferred), std::move(weights)) {
    ground.raise_all();
  }
  UserOp& post(OpCode op, std::size_t length = 100, std::uint16_t flags = 0) {
    UserOp& posted = ops.emplace_back(op, length, flags);
    lnx::Request* const request = ground.journal.accept(posted.transfer, Errc::ok);
    REQUIRE(request);
    ground.scheduler.enqueue(*request);
    return posted;
  }
  bool send() {
    ground.slice.begin();
    return ground.scheduler.send();
  }
  std::deque<Transfer>& held(std::size_t slot) { return ground.links[slot].held; }
  std::size_t count(std::size_t slot) { return held(slot).size(); }
  void break_rail(std::size_t slot) {
    ground.links[slot].fail();
    ground.lose(ground.rails[slot]);
  }
};

inline lnx::Request& request_of(const Transfer& transfer) {
  return *static_cast<lnx::Posting*>(transfer.operation)->request;
}

}  // namespace fab::test
