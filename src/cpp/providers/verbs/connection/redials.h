#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <optional>

#include "fabric/types/error.h"

namespace fab::verbs {

// When a call that ended is made again: later and later, and at random, so that callers who were turned away
// together do not come back together. The caller has a deadline besides.
class Redials {
 public:
  static constexpr unsigned kMostFailures = 3;
  static constexpr std::chrono::milliseconds kFirst{10}, kLongest{4000};

  // Returns how long to wait, or nothing if there is no use in another call. `end`: why the call ended, as in
  // ConnectionOwner::on_closed(). `random` is any 64 bits.
  std::optional<std::chrono::nanoseconds> after(Errc end, std::uint64_t random) noexcept {
    const bool in_vain = end == Errc::closed;
    const bool failed = end != Errc::busy && end != Errc::again;  // nobody listens, or a device failed
    if (in_vain || (failed && ++failures_ > kMostFailures)) return {};
    const std::chrono::nanoseconds middle = next_;
    next_ = std::min<std::chrono::nanoseconds>(2 * next_, kLongest);
    return middle / 2 + std::chrono::nanoseconds(random % static_cast<std::uint64_t>(middle.count()));
  }

 private:
  unsigned failures_ = 0;
  std::chrono::nanoseconds next_ = kFirst;
};

}  // namespace fab::verbs
