#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace fab {

// One provider in a link, and the devices that are named for it. No name means any one device.
struct LinkPart {
  std::string provider;
  std::vector<std::string> devices;
  friend bool operator==(const LinkPart&, const LinkPart&) = default;
};
using Link = std::vector<LinkPart>;  // in order of preference

// Parses links such as `shm+tcp` and `shm+verbs:mlx5_0,mlx5_1`, and alternatives such as `a+b:b0|a+b:b1`: the
// syntax of FI_LNX_PROV_LINKS in fi_lnx(7). Trims spaces. Throws Error(invalid) that names the bad part. Does
// not check which providers exist.
std::vector<Link> parse_links(std::string_view spec);

}  // namespace fab
