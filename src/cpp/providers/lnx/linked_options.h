#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace fab::lnx {

// Choices of the user that only linked domains know.
struct LinkedOptions {
  // Chooses the rails to a peer: takes their links in order of preference and returns each one's share (0:
  // none), or nothing: then their bandwidth decides. Called when a peer is first used, by whoever uses it and
  // without any lock; may throw.
  using RailPolicy =
      std::function<std::vector<double>(std::uint64_t peer, const std::vector<std::string>& links)>;
  RailPolicy rail_policy{};
  double rail_deadline = 2;   // seconds without a sign of life until a rail counts as lost
  double peer_deadline = 10;  // and until the peer does: DomainOptions::peer_deadline
};

}  // namespace fab::lnx
