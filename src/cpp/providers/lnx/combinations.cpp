#include "providers/lnx/combinations.h"

#include <string>

#include "fabric/types/error.h"

namespace fab::lnx {

std::vector<std::vector<std::size_t>> combinations(const std::vector<std::size_t>& counts) {
  std::vector<std::vector<std::size_t>> all(1);
  for (const std::size_t count : counts) {
    std::vector<std::vector<std::size_t>> longer;
    if (all.size() * count > kMaxCombinations)
      throw Error(Errc::too_big, "the devices of this link make more than " +
                                     std::to_string(kMaxCombinations) +
                                     " combinations; name devices, as in shm+tcp:eth0,eth1");
    for (const auto& chosen : all)
      for (std::size_t index = 0; index < count; ++index) {
        longer.push_back(chosen);
        longer.back().push_back(index);
      }
    all = std::move(longer);
  }
  return all;
}

}  // namespace fab::lnx
