#pragma once

#include <exception>
#include <iterator>
#include <thread>
#include <vector>

#include "base/process/quiet_thread.h"

namespace fab {

// Starts a thread for each of the items but the last, until no thread can be had; returns the first item that
// has none.
template <class Items, class Work>
auto start_each(Items& items, const Work& work, std::vector<std::thread>& threads) noexcept {
  auto next = items.begin();
  try {
    threads.reserve(items.size());
    for (; next != items.end() && std::next(next) != items.end(); ++next)
      threads.push_back(start_quiet_thread("pyfab-each", [&work, &item = *next] { work(item); }));
  } catch (const std::exception&) {
    return next;
  }
  return next;
}

// Calls `work`, which does not throw, with each of the items, and returns when all are done. They run at the
// same time; those for which no thread can be had run one after the other.
template <class Items, class Work>
void at_once(Items& items, const Work& work) noexcept {
  std::vector<std::thread> threads;
  for (auto next = start_each(items, work, threads); next != items.end(); ++next) work(*next);
  for (std::thread& thread : threads) thread.join();
}

}  // namespace fab
