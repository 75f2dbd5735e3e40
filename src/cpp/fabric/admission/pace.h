#pragma once

#include <chrono>
#include <cstdint>
#include <utility>

namespace fab {

// Whether a peer goes on with what it has begun. A byte now and then is enough not to be silent (Liveness),
// so there is a least pace as well, below which the peer's work is no reason to keep its stream.
class Pace {
 public:
  using Time = std::chrono::nanoseconds;
  static constexpr std::uint64_t kLeast = 16 * 1024;  // bytes in a second

  // To be called once in a Liveness::look_period(). `works`: something of the peer is under way. `bytes`:
  // that have come and gone so far. The pace is judged each time that `stretch` has passed.
  void look(bool works, std::uint64_t bytes, Time now, Time stretch) noexcept {
    const bool went_on = std::exchange(works_, works) && works;
    if (went_on && now - since_ < stretch) return;
    const double seconds = std::chrono::duration<double>(now - since_).count();
    stalled_ = went_on && static_cast<double>(bytes - from_) < kLeast * seconds;
    since_ = now;
    from_ = bytes;
  }
  bool stalled() const noexcept { return stalled_; }

 private:
  bool works_ = false, stalled_ = false;
  Time since_{0};
  std::uint64_t from_ = 0;  // bytes at that time
};

}  // namespace fab
