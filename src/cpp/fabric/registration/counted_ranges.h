#pragma once

#include <cstdint>
#include <iterator>
#include <map>

#include "base/memory/address_range.h"

namespace fab {

// Counts how often each address was added. Not thread-safe.
class CountedRanges {
 public:
  void add(AddressRange range) {
    const auto end = split(range.end());
    for (auto step = split(range.start); step != end; ++step) ++step->second;
    join(range);
  }

  // Takes back one add() of `range`. Calls `freed(AddressRange)` for each part whose count becomes 0.
  template <class Freed>
  void remove(AddressRange range, const Freed& freed) {
    const auto end = split(range.end());
    for (auto step = split(range.start); step != end; ++step)
      if (--step->second == 0)
        freed(AddressRange{.start = step->first, .length = std::next(step)->first - step->first});
    join(range);
  }

 private:
  using Steps = std::map<std::uint64_t, std::uint32_t>;  // an address, and the count from there on

  Steps::iterator split(std::uint64_t address) {
    const auto next = steps_.lower_bound(address);
    if (next != steps_.end() && next->first == address) return next;
    return steps_.emplace_hint(next, address, next == steps_.begin() ? 0 : std::prev(next)->second);
  }

  // Removes the steps in `range` and at its ends whose count is that of the step before.
  void join(AddressRange range) {
    auto step = steps_.lower_bound(range.start);
    while (step != steps_.end() && step->first <= range.end()) {
      const std::uint32_t before = step == steps_.begin() ? 0 : std::prev(step)->second;
      step = step->second == before ? steps_.erase(step) : std::next(step);
    }
  }

  Steps steps_;
};

}  // namespace fab
