#pragma once

#include <algorithm>
#include <cstddef>

namespace fab {

// How much of this process those hold together who call an endpoint. The figures of callers and of the
// reserve are those of pyfab.meeting.acceptor. Where the process may have few descriptors, callers get a
// quarter of them at most, and streams that peers began get half.
struct Bounds {
  std::size_t callers, callers_of_one;  // that have not finished their handshake: in all, and of one source
  std::size_t guests, guests_of_one;    // streams that peers began
  int reserve;  // the first descriptor of those that are left to the program and to proven peers

  // `descriptors`: those that the process may have. `keyed`: peers prove an authorization key. Without a key
  // everybody may begin a stream, so that no source may hold all of them.
  static constexpr Bounds of(std::size_t descriptors, bool keyed) noexcept {
    const std::size_t quarter = std::max<std::size_t>(descriptors / 4, 2);
    const std::size_t guests = std::min<std::size_t>(4096, 2 * quarter);
    return {.callers = std::min<std::size_t>(256, quarter),
            .callers_of_one = std::min<std::size_t>(128, quarter / 2),
            .guests = guests,
            .guests_of_one = keyed ? guests : guests - guests / 4,
            .reserve = static_cast<int>(descriptors - std::min<std::size_t>(64, descriptors / 4))};
  }
};

}  // namespace fab
