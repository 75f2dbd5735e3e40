#include "fabric/domain/auth_numbers.h"

#include <algorithm>

#include "fabric/segment/region_table.h"
#include "fabric/types/error.h"

namespace fab {

std::uint32_t AuthNumbers::of(const std::string& auth_key) {
  if (auth_key.empty() || auth_key == own_) return 0;
  const std::lock_guard lock(mutex_);
  auto found = std::ranges::find(others_, auth_key);
  if (found == others_.end()) found = others_.insert(found, auth_key);
  return static_cast<std::uint32_t>(found - others_.begin()) + 1;
}

std::uint32_t AuthNumbers::of_any(std::span<const std::string> auth_keys) {
  if (auth_keys.empty()) return 0;
  if (auth_keys.size() == 1) return of(auth_keys.front());
  std::uint32_t set = kAuthSet;
  for (const std::string& auth_key : auth_keys) {
    const std::uint32_t number = of(auth_key);
    if (number > kMostInAuthSet)
      throw Error(Errc::too_big, "regions for several authorization keys take the first " +
                                     std::to_string(kMostInAuthSet) +
                                     " that the domain has seen, and this is number " +
                                     std::to_string(number) + "; register the memory once for each key");
    set |= 1u << number;
  }
  return set;
}

}  // namespace fab
