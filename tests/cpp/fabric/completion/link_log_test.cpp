#include "fabric/completion/link_log.h"

#include <doctest/doctest.h>

#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/deadline.h"
#include "fabric/completion/log_thread.h"

using namespace fab;

namespace {

struct Told {
  std::vector<LinkLog::Note> notes;
  LinkLog::LeftOut left_out;
};
std::mutex told_mutex;
Told told;

void tell_test(std::span<const LinkLog::Note> notes, const LinkLog::LeftOut& left_out) {
  const std::lock_guard lock(told_mutex);
  told.notes.insert(told.notes.end(), notes.begin(), notes.end());
  told.left_out.ways += left_out.ways;
  told.left_out.fallbacks += left_out.fallbacks;
}

Told take_told() {
  const std::lock_guard lock(told_mutex);
  return std::exchange(told, {});
}

}  // namespace

TEST_CASE("each way is told where that is wanted, and a fallback always") {
  LinkLog::set_outlet(&tell_test);
  LinkLog log(false, false), all(true, false);
  for (LinkLog* one : {&log, &all}) {
    one->opened(7, "tcp.0", "tcp to 10.0.0.2:1");
    one->fell_back(8, "tcp.1", "shm.0 (no\nrights)");
  }
  CHECK(take_told().notes.empty());
  log.tell();
  const auto fallbacks = take_told().notes;
  REQUIRE(fallbacks.size() == 1);
  CHECK(fallbacks[0].fallback);
  CHECK(fallbacks[0].text == "peer 8 is reached over tcp.1, and not over shm.0 (no\\x0arights)");
  all.tell();
  const auto ways = take_told().notes;
  REQUIRE(ways.size() == 2);
  CHECK_FALSE(ways[0].fallback);
  CHECK(ways[0].text == "peer 7 is reached over tcp.0: tcp to 10.0.0.2:1");
}

TEST_CASE("what waits to be told is bounded for each kind, and what was left out is counted") {
  LinkLog::set_outlet(&tell_test);
  LinkLog log(true, false);
  for (PeerId peer = 0; peer < 10'000; ++peer) log.opened(peer, "tcp.0", "x");
  log.fell_back(1, "tcp.0", "shm.0 (y)");
  log.tell();
  const Told first = take_told();
  CHECK(first.notes.back().fallback);
  CHECK(first.notes.size() < 1000);
  CHECK(first.notes.size() - 1 + first.left_out.ways == 10'000);
  CHECK(first.left_out.fallbacks == 0);
  log.opened(1, "tcp.0", "x");
  log.tell();
  CHECK(take_told().notes.size() == 1);
}

TEST_CASE("a thread tells each note once, also after it has told all there was") {
  LinkLog::set_outlet(&tell_test);
  std::size_t all = 0;
  LinkLog log(true, true);
  for (PeerId round = 0; round < 50; ++round) {
    std::vector<std::thread> threads;
    for (PeerId first = 0; first < 4; ++first)
      threads.emplace_back([&, first] {
        for (PeerId i = 0; i < 10; ++i) log.opened(first * 10 + i, "tcp.0", "x");
      });
    for (std::thread& thread : threads) thread.join();
    const auto deadline = Deadline::in_seconds(30);
    for (std::size_t told_now = 0; told_now < 40 && !deadline.passed(); std::this_thread::yield()) {
      const Told some = take_told();
      CHECK(some.left_out.ways == 0);
      told_now += some.notes.size();
      all += some.notes.size();
    }
  }
  CHECK(all == 50 * 40);
  LogThread::finish();
  log.opened(1, "tcp.0", "x");  // nobody tells any more
  CHECK(take_told().notes.empty());
}
