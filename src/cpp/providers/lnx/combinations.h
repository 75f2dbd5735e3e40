#pragma once

#include <cstddef>
#include <vector>

namespace fab::lnx {

inline constexpr std::size_t kMaxCombinations = 64;  // that discovery shows of one link (LNX-14)

// Every choice of one index below counts[i] for each i, the last varying fastest (LNX-7); none where a count
// is 0. Throws Error(too_big) for more than kMaxCombinations.
std::vector<std::vector<std::size_t>> combinations(const std::vector<std::size_t>& counts);

}  // namespace fab::lnx
