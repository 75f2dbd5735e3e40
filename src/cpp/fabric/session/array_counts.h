#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>

namespace fab {

// The arrays of one initiator whose atomics come in several pieces, one behind the other, as long as pieces
// are missing: a counter of the region rises once for all of them, with the last. Pieces of different arrays
// may mix.
class ArrayCounts final {
 public:
  // A piece was applied, and has changed an element or not. True: it is the last one, and the array counts.
  bool applied(std::uint64_t array, bool last, bool modified) noexcept {
    Entry* const known = find(array);
    const bool any = modified || (known && known->modified);
    if (last) {
      if (known) *known = {};
      return any;
    }
    Entry* entry = known ? known : find(std::nullopt);
    // Arrays that broke off fill the table in time: then one after the other gives way.
    if (!entry) entry = &entries_[next_++ % kMost];
    *entry = {array, any};
    return false;
  }

 private:
  static constexpr std::size_t kMost = 16;
  using Place = std::optional<std::uint64_t>;  // the array that has it, whose number a peer may choose
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
