#include "providers/lnx/link_settings.h"

#include <algorithm>
#include <cctype>
#include <cstdlib>

#include "fabric/types/error.h"

namespace fab::lnx {
namespace {

bool read(const std::map<std::string, std::string>& settings, const std::string& setting, bool usual) {
  std::string name = setting, text;
  if (const auto found = settings.find(setting); found != settings.end()) {
    text = found->second;
  } else {
    name = "FI_" + setting;
    std::ranges::transform(name, name.begin(), [](unsigned char c) { return std::toupper(c); });
    if (const char* value = std::getenv(name.c_str())) text = value;
  }
  std::string lower = text;
  std::ranges::transform(lower, lower.begin(), [](unsigned char c) { return std::tolower(c); });
  if (lower.empty()) return usual;
  if (lower == "1" || lower == "true" || lower == "yes" || lower == "on") return true;
  if (lower == "0" || lower == "false" || lower == "no" || lower == "off") return false;
  throw Error(Errc::invalid, name + " is \"" + text + "\"; it is 1 or 0");
}

}  // namespace

LinkSettings LinkSettings::of(const std::map<std::string, std::string>& settings) {
  return {.disable_shm = read(settings, "lnx_disable_shm", false),
          .shared_receives = read(settings, "lnx_use_srq", true)};
}

}  // namespace fab::lnx
