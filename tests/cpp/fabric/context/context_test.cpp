#include "fabric/context/context.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <thread>
#include <vector>

#include "base/locks/overlap_watch.h"
#include "providers/shm/harness.h"

using namespace fab;
using fab::test::Side;

namespace {

// Everything that moves a context, by many threads at once beside the progress thread of the domain: posts,
// waits that lead and waits that follow, single turns, flushes and looks at messages.
std::uint64_t overlaps_under_load(const std::string& copy) {
  constexpr int kThreads = 4, kRounds = 300;
  Side side(copy);
  const PeerId self = side.knows(side);
  auto memory = side.alloc(kThreads * 4096);
  std::atomic<int> wrong{0}, working{kThreads};
  OverlapWatch::start();
  std::vector<std::thread> threads;
  for (int thread = 0; thread < kThreads; ++thread)
    threads.emplace_back([&, thread] {
      const std::uint64_t offset = static_cast<std::uint64_t>(thread) * 4096;
      std::vector<std::byte> data(4096), seen(4096);
      for (int round = 0; round < kRounds; ++round) {
        std::ranges::fill(data, static_cast<std::byte>(round));
        const std::size_t length = round % 2 ? 8 : 4096;
        wrong += side.put(self, memory.region->key(), offset, data.data(), length) != Errc::ok;
        wrong += side.get(self, memory.region->key(), offset, seen.data(), length) != Errc::ok;
        wrong += !std::equal(seen.begin(), seen.begin() + static_cast<std::ptrdiff_t>(length), data.begin());
        auto goals = side.context->flush_goals(self);
        wrong += round % 16 == 0 && !side.context->flushed(goals, Deadline::in_seconds(30));
      }
      --working;
    });
  for (int thread = 0; thread < 2; ++thread)
    threads.emplace_back([&, thread] {
      while (working.load() != 0) {
        side.context->progress(thread == 0);
        side.context->inbox().look({}, Inbox::Look::only);
        side.context->counts(self);
        std::this_thread::yield();
      }
    });
  for (std::thread& thread : threads) thread.join();
  const std::uint64_t overlaps = OverlapWatch::stop();
  CHECK(wrong.load() == 0);
  return overlaps;
}

}  // namespace

TEST_CASE("WIN-45: two threads never progress one context at the same time") {
  for (const std::string copy : {"auto", "ring"}) {
    CAPTURE(copy);
    CHECK(overlaps_under_load(copy) == 0);
  }
}
