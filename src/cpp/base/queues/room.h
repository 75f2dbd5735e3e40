#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

namespace fab {

// Makes room for one more item, so that adding it cannot fail. The room grows with the number of items, as it
// does in push_back(): many of them take time in proportion. Throws std::bad_alloc.
template <class T>
void make_room(std::vector<T>& items) {
  constexpr std::size_t kFewest = 4;
  if (items.size() == items.capacity()) items.reserve(std::max(kFewest, 2 * items.size()));
}

// Does so, and first drops items for which `gone` returns true, if there is no room. They stay no longer than
// until as many items were added again as there are others.
template <class T, class Gone>
void make_room(std::vector<T>& items, const Gone& gone) {
  if (items.size() < items.capacity()) return;
  std::erase_if(items, gone);
  if (items.size() > items.capacity() / 2) items.reserve(2 * items.capacity());
  make_room(items);
}

}  // namespace fab
