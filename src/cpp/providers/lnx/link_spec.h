#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace fab::lnx {

// One provider in a link, with the devices asked for (empty: the provider's first).
struct LinkPart {
  std::string provider;
  std::vector<std::string> devices;
  friend bool operator==(const LinkPart&, const LinkPart&) = default;
};
using Link = std::vector<LinkPart>;  // in order of preference

// Parses `shm+tcp`, `shm+verbs:mlx5_0,mlx5_1`, alternatives `a+b:b0|a+b:b1` (LNX-2, LNX-3). Spaces are
// trimmed. Throws Error(invalid) naming the bad part. Which providers exist is not its concern.
std::vector<Link> parse_links(std::string_view spec);

}  // namespace fab::lnx
