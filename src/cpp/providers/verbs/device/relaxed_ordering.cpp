#include "providers/verbs/device/relaxed_ordering.h"

#include <algorithm>
#include <fstream>
#include <string>

#include "base/bytes/number.h"
#include "fabric/types/error.h"
#include "providers/verbs/device/library.h"

namespace fab::verbs {
namespace {

// What the first processor says under this name; empty: nothing.
std::string_view field(std::string_view processors, std::string_view name) noexcept {
  while (!processors.empty()) {
    const std::string_view line = processors.substr(0, processors.find('\n'));
    processors.remove_prefix(std::min(processors.size(), line.size() + 1));
    const std::size_t colon = line.find(':');
    if (colon == std::string_view::npos || !line.starts_with(name)) continue;
    if (line.substr(name.size(), colon - name.size()).find_first_not_of(" \t") != std::string_view::npos)
      continue;
    const std::size_t begin = line.find_first_not_of(" \t", colon + 1);
    return begin == std::string_view::npos ? std::string_view{} : line.substr(begin);
  }
  return {};
}

// Only the first: the kernel takes long to describe hundreds of them.
std::string first_processor() {
  std::ifstream file("/proc/cpuinfo");
  std::string all, line;
  while (std::getline(file, line) && !line.empty()) all += line + '\n';
  return all;
}

}  // namespace

bool prefers_relaxed_ordering(std::string_view processors) noexcept {
  if (field(processors, "vendor_id") == "AuthenticAMD") {
    constexpr unsigned kZen = 23;
    return number_in<unsigned>(field(processors, "cpu family")).value_or(0) >= kZen;
  }
  const std::string_view made_by = field(processors, "CPU implementer");
  const bool fujitsu = made_by == "0x46";
  const bool neoverse_v2 = made_by == "0x41" && field(processors, "CPU part") == "0xd4f";  // NVIDIA Grace
  return fujitsu || neoverse_v2;
}

RelaxedOrdering relaxed_ordering(const DomainOptions& options) {
  const std::string given = options.choice("verbs_relaxed_ordering", {"auto", "on", "off"});
  if (given == "off") return RelaxedOrdering::nowhere;
  if (library().reg_mr_iova2) {
    if (given == "on") return RelaxedOrdering::everywhere;
    return prefers_relaxed_ordering(first_processor()) ? RelaxedOrdering::landing : RelaxedOrdering::nowhere;
  }
  if (given == "auto") return RelaxedOrdering::nowhere;
  throw Error(Errc::not_supported_here,
              "verbs_relaxed_ordering is \"on\", but the rdma-core libraries here are older than 28; leave "
              "the setting out");
}

}  // namespace fab::verbs
