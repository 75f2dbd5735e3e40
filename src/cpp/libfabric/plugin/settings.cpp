#include "libfabric/plugin/settings.h"

#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <string_view>

#include "fabric/types/error.h"

namespace fab::fi {
namespace {

constexpr std::string_view kPrefix = "PYFAB_FI_";

double seconds(const std::string& name, const std::string& text) {
  char* end = nullptr;
  const double value = std::strtod(text.c_str(), &end);
  if (text.empty() || *end != '\0' || !(value > 0))
    throw Error(Errc::invalid, name + " is \"" + text + "\"; it must be a number of seconds above 0");
  return value;
}

std::string lower(std::string_view text) {
  std::string out(text);
  std::ranges::transform(out, out.begin(),
                         [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return out;
}

bool has_verbs() {
  return std::ranges::any_of(discover(),
                             [](const Info& info) { return info.provider == "verbs" && info.usable; });
}

}  // namespace

std::string configured_links_or_default() {
  if (const char* const links = std::getenv("PYFAB_FI_LINKS"); links && *links) return links;
  return has_verbs() ? "shm+verbs+tcp" : "shm+tcp";
}

const char* provider_name() {
  const char* const name = std::getenv("PYFAB_FI_NAME");
  static const std::string chosen = name && *name ? name : "pyfab";
  return chosen.c_str();
}

Settings settings_of_environment() {
  Settings all;
  for (char** entry = environ; entry && *entry; ++entry) {
    const std::string_view text(*entry);
    if (!text.starts_with(kPrefix)) continue;
    const auto equals = text.find('=');
    if (equals == std::string_view::npos) continue;
    const std::string variable(text.substr(0, equals)), value(text.substr(equals + 1));
    const std::string name = lower(variable.substr(kPrefix.size()));
    if (name == "links" || name == "name") continue;
    if (name == "peer_deadline")
      all.domain.peer_deadline = seconds(variable, value);
    else if (name == "rail_deadline")
      all.rails.deadline = seconds(variable, value);
    else
      all.domain.settings[name] = value;
  }
  return all;
}

}  // namespace fab::fi
