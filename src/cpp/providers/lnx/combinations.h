#pragma once

#include <cstddef>
#include <vector>

namespace fab::lnx {

inline constexpr std::size_t kMaxCombinations = 64;  // of its devices that discovery shows for one link

// Every choice of one index below counts[i] for each i, the last index varying fastest; none if a count is 0.
// Throws Error(too_big) for more than kMaxCombinations.
std::vector<std::vector<std::size_t>> combinations(const std::vector<std::size_t>& counts);

}  // namespace fab::lnx
