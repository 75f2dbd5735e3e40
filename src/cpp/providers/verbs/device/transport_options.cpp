#include "providers/verbs/device/transport_options.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "base/bytes/number.h"
#include "fabric/provider.h"
#include "fabric/types/error.h"

namespace fab::verbs {
namespace {

constexpr unsigned kMostRetries = 7, kUsualTimeout = 17, kLongestTimeout = 31;

std::optional<std::uint8_t> number_of(const DomainOptions& options, const char* name, unsigned least,
                                      unsigned most) {
  const std::string given = options.setting(name, "");
  if (given.empty()) return {};
  const auto number = number_in<unsigned>(given);
  if (!number || *number < least || *number > most)
    throw Error(Errc::invalid, std::string(name) + " is \"" + given + "\"; it must be a number from " +
                                   std::to_string(least) + " to " + std::to_string(most));
  return static_cast<std::uint8_t>(*number);
}

// Seconds until a device gives a packet up.
double all_attempts(unsigned timeout, unsigned retries) {
  return std::ldexp(4.096e-6, static_cast<int>(timeout)) * (1 + retries);
}

}  // namespace

TransportOptions TransportOptions::of(const DomainOptions& options) {
  TransportOptions chosen{
      .traffic_class = number_of(options, "verbs_traffic_class", 0, 255),
      .retries = number_of(options, "verbs_retries", 0, kMostRetries).value_or(kMostRetries),
      .ack_timeout = kUsualTimeout};
  unsigned longest = kLongestTimeout;
  while (longest > 1 && all_attempts(longest, chosen.retries) > options.peer_deadline) --longest;
  const auto asked = number_of(options, "verbs_ack_timeout", 1, kLongestTimeout);
  if (asked && *asked > longest)
    throw Error(Errc::invalid, "verbs_ack_timeout is \"" + std::to_string(*asked) + "\": with " +
                                   std::to_string(chosen.retries) + " retries a device tries for " +
                                   std::to_string(all_attempts(*asked, chosen.retries)) +
                                   " s, and a peer is lost after peer_deadline, " +
                                   std::to_string(options.peer_deadline) + " s; choose at most " +
                                   std::to_string(longest) + ", fewer verbs_retries, or a longer deadline");
  chosen.ack_timeout = asked.value_or(static_cast<std::uint8_t>(std::min(longest, kUsualTimeout)));
  return chosen;
}

}  // namespace fab::verbs
