#pragma once

#include <cstdint>
#include <iterator>
#include <map>

#include "base/memory/address_range.h"

namespace fab {

// How often each address was added. Not thread-safe.
class CountedRanges {
 public:
  void add(AddressRange range) {
    const auto end = split(range.end());
    for (auto step = split(range.start); step != end; ++step) ++step->second;
    join(range);
  }

  // `range` was added before. Calls `freed(AddressRange)` for each part of it that is not there any more.
  template <class Freed>
  void remove(AddressRange range, const Freed& freed) {
    const auto end = split(range.end());
    for (auto step = split(range.start); step != end; ++step)
      if (--step->second == 0)
        freed(AddressRange{.start = step->first, .length = std::next(step)->first - step->first});
    join(range);
  }

 private:
  using Steps = std::map<std::uint64_t, std::uint32_t>;  // from this address on: the count

  Steps::iterator split(std::uint64_t address) {
    const auto next = steps_.lower_bound(address);
    if (next != steps_.end() && next->first == address) return next;
    return steps_.emplace_hint(next, address, next == steps_.begin() ? 0 : std::prev(next)->second);
  }

  // Removes steps in and at the ends of `range` that change nothing.
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
