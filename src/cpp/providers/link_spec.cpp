#include "providers/link_spec.h"

#include <algorithm>

#include "fabric/types/error.h"

namespace fab {
namespace {

constexpr std::string_view kSpaces = " \t\r\n";

std::string_view trim(std::string_view text) {
  const auto first = text.find_first_not_of(kSpaces);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(kSpaces) - first + 1);
}

std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  for (;;) {
    const auto end = text.find(separator);
    parts.push_back(trim(text.substr(0, end)));
    if (end == std::string_view::npos) return parts;
    text.remove_prefix(end + 1);
  }
}

}  // namespace

std::vector<Link> parse_links(std::string_view spec) {
  const auto refuse = [&](std::string_view part, const std::string& why) {
    return Error(Errc::invalid,
                 "link \"" + std::string(spec) + "\" is not valid: " + why + " \"" + std::string(part) +
                     "\"; write for instance shm, tcp:eth0, shm+tcp or shm+verbs:mlx5_0,mlx5_1");
  };
  std::vector<Link> links;
  for (const auto alternative : split(spec, '|')) {
    if (alternative.empty()) throw refuse(spec, "empty alternative in");
    Link link;
    for (const auto text : split(alternative, '+')) {
      if (text.empty()) throw refuse(alternative, "empty part in");
      const auto colon = text.find(':');
      LinkPart part{std::string(trim(text.substr(0, colon))), {}};
      if (part.provider.empty()) throw refuse(text, "no provider in");
      if (part.provider.find_first_of(", \t") != std::string::npos) throw refuse(text, "not a provider:");
      if (colon != std::string_view::npos) {
        for (const auto device : split(text.substr(colon + 1), ',')) {
          if (device.empty()) throw refuse(text, "empty device in");
          if (std::ranges::find(part.devices, device) != part.devices.end())
            throw refuse(device, "device named twice:");
          part.devices.emplace_back(device);
        }
      }
      if (part.provider == "lnx") throw refuse(text, "a link cannot hold a link:");
      if (std::ranges::find(link, part.provider, &LinkPart::provider) != link.end())
        throw refuse(part.provider, "provider named twice:");
      link.push_back(std::move(part));
    }
    links.push_back(std::move(link));
  }
  return links;
}

}  // namespace fab
