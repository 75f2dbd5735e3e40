#include "fabric/registration/cache_settings.h"

#include <fcntl.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>

#include "base/bytes/number.h"
#include "base/fd.h"
#include "fabric/types/error.h"

namespace fab {
namespace {

struct Value {
  std::string text;  // empty: not given
  std::string name;  // the setting or variable that gave it
};

Value value_of(const DomainOptions& options, const std::string& setting) {
  if (const auto found = options.settings.find(setting); found != options.settings.end())
    return {.text = found->second, .name = setting};
  std::string variable = "FI_" + setting;
  std::ranges::transform(variable, variable.begin(), [](unsigned char c) { return std::toupper(c); });
  const char* text = std::getenv(variable.c_str());
  return {.text = text ? text : "", .name = variable};
}

void read_number(const DomainOptions& options, const std::string& setting, const char* what,
                 std::uint64_t& number) {
  const Value value = value_of(options, setting);
  if (value.text.empty()) return;
  const auto given = number_in<std::uint64_t>(value.text);
  if (!given)
    throw Error(Errc::invalid,
                value.name + " is \"" + value.text + "\"; it is " + what + ", a whole number from 0");
  number = *given;
}

bool is_yes(std::string text) {
  std::ranges::transform(text, text.begin(), [](unsigned char c) { return std::tolower(c); });
  return text == "true" || text == "yes" || text == "1";
}

}  // namespace

CacheSettings CacheSettings::of(const DomainOptions& options) {
  CacheSettings settings;
  const Value monitor = value_of(options, "mr_cache_monitor");
  constexpr std::string_view kMonitors[] = {"", "userfaultfd", "memhooks", "kdreg2", "disabled"};
  if (std::ranges::find(kMonitors, monitor.text) == std::end(kMonitors))
    throw Error(Errc::invalid, monitor.name + " is \"" + monitor.text +
                                   "\"; it is userfaultfd, memhooks, kdreg2 or disabled");
  read_number(options, "mr_cache_max_size", "the most bytes that the registration cache tracks",
              settings.limits.max_bytes);
  read_number(options, "mr_cache_max_count", "the most idle entries of the registration cache",
              settings.limits.max_idle);
  settings.limits.merge = is_yes(value_of(options, "mr_cache_merge_regions").text);
  const std::string asked = options.setting("mr_cache", "");
  const bool where_possible = asked == "auto";
  settings.wanted = is_yes(asked) || where_possible || (asked.empty() && !monitor.text.empty());
  settings.quiet = where_possible && monitor.text.empty();
  settings.monitor = monitor.text.empty() ? "userfaultfd" : monitor.text;
  return settings;
}

DomainCache open_cache(const CacheSettings& settings, Enroller enroller) {
  DomainCache opened;
  if (!settings.wanted || settings.monitor == "disabled") return opened;
  try {
    if (settings.monitor == "memhooks")
      throw Error(Errc::not_supported, "this build does not replace functions of the C library");
    if (settings.monitor == "kdreg2") {
      const OwnFd device(::open("/dev/kdreg2", O_RDWR | O_CLOEXEC));
      throw Error(Errc::not_supported,
                  device.valid() ? "this build cannot use /dev/kdreg2"
                                 : "/dev/kdreg2 cannot be opened: " + std::generic_category().message(errno));
    }
    MemoryMonitor& monitor = userfault_monitor();
    opened.cache = std::make_unique<RegistrationCache>(settings.limits, std::move(enroller), &monitor);
    opened.monitor = settings.monitor;
  } catch (const Error& error) {
    if (error.code() != Errc::not_supported) throw;
    if (settings.quiet) return opened;
    opened.warning = "no registration cache: the monitor " + settings.monitor +
                     " is not available here, because " + error.what() +
                     "; choose another FI_MR_CACHE_MONITOR, or disabled";
  }
  return opened;
}

}  // namespace fab
