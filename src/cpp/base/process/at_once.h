#pragma once

#include <exception>
#include <iterator>
#include <thread>
#include <vector>

#include "base/process/quiet_thread.h"

namespace fab {

// Calls `work`, which does not throw, with each of the items, at the same time as far as threads are to be
// had. Returns when all are done.
template <class Items, class Work>
void at_once(Items& items, const Work& work) noexcept {
  std::vector<std::thread> threads;
  auto next = items.begin();
  try {
    threads.reserve(items.size());
    for (; next != items.end() && std::next(next) != items.end(); ++next)
      threads.push_back(start_quiet_thread("pyfab-each", [&work, &item = *next] { work(item); }));
  } catch (const std::exception&) {  // the rest one after the other
  }
  for (; next != items.end(); ++next) work(*next);
  for (std::thread& thread : threads) thread.join();
}

}  // namespace fab
