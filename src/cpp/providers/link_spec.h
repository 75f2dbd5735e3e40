#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace fab {

// One provider in a link, with the devices asked for (empty: the provider's first).
struct LinkPart {
  std::string provider;
  std::vector<std::string> devices;
  friend bool operator==(const LinkPart&, const LinkPart&) = default;
};
using Link = std::vector<LinkPart>;  // in order of preference

// Parses `shm+tcp`, `shm+verbs:mlx5_0,mlx5_1`, and alternatives such as `a+b:b0|a+b:b1` (FI_LNX_PROV_LINKS of
// fi_lnx(7)). Spaces are trimmed. Throws Error(invalid) that names the bad part. Does not check which
// providers exist.
std::vector<Link> parse_links(std::string_view spec);

}  // namespace fab
