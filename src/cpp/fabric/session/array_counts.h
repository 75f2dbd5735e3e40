#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <utility>

namespace fab {

// The arrays of one initiator whose atomics come in several pieces, one behind the other, as long as pieces
// are missing: a counter of the region rises once for all of them, with the last. Pieces of different arrays
// may mix.
class ArrayCounts final {
 public:
  // A piece was applied, and has changed an element or not. True: it is the last one, and the array counts.
  bool applied(std::uint32_t array, bool last, bool modified) noexcept {
    Entry* entry = find(array);
    if (last) return std::exchange(entry ? *entry : none_, {}).modified || modified;
    if (!entry) entry = find(0);
    // Arrays that broke off fill the table in time: then one after the other gives way.
    if (!entry) entry = &(entries_[next_++ % entries_.size()] = {});
    entry->array = array;
    entry->modified |= modified;
    return false;
  }

 private:
  struct Entry {
    std::uint32_t array = 0;  // 0: free
    bool modified = false;
  };
  Entry* find(std::uint32_t array) noexcept {
    for (Entry& entry : entries_)
      if (entry.array == array) return &entry;
    return nullptr;
  }

  std::array<Entry, 16> entries_{};
  Entry none_{};
  std::size_t next_ = 0;
};

}  // namespace fab
