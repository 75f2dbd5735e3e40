#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>

namespace fab {

// An atomic on a long array comes in several pieces, one after the other. The counters of the region rise
// once for the whole array, with its last piece. This remembers the arrays of one initiator of which pieces
// are still missing. Pieces of different arrays may come in turns.
class ArrayCounts final {
 public:
  // A piece of `array` was applied. `modified`: it changed an element. Returns true if it was the last piece
  // and any piece changed an element: then the counters rise.
  bool applied(std::uint64_t array, bool last, bool modified) noexcept {
    Entry* const known = find(array);
    const bool any = modified || (known && known->modified);
    if (last) {
      if (known) *known = {};
      return any;
    }
    Entry* entry = known ? known : find(std::nullopt);
    // Arrays whose last piece never came stay in the table. Once it is full, one after the other is
    // replaced.
    if (!entry) entry = &entries_[next_++ % kMost];
    *entry = {array, any};
    return false;
  }

 private:
  static constexpr std::size_t kMost = 16;
  // The number of the array in an entry. Peers choose these numbers, so none of them can mean "no array".
  using Place = std::optional<std::uint64_t>;
  struct Entry {
    Place array{};
    bool modified = false;
  };
  Entry* find(Place place) noexcept {
    for (Entry& entry : entries_)
      if (entry.array == place) return &entry;
    return nullptr;
  }

  std::array<Entry, kMost> entries_{};
  std::size_t next_ = 0;
};

}  // namespace fab
