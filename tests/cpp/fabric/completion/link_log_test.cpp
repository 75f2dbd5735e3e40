#include "fabric/completion/link_log.h"

#include <doctest/doctest.h>

#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "fabric/completion/log_thread.h"

using namespace fab;

namespace {

struct Told {
  std::vector<LinkLog::Note> notes;
  std::uint64_t left_out = 0;
};
std::mutex told_mutex;
Told told;

void tell_test(std::span<const LinkLog::Note> notes, std::uint64_t left_out) {
  const std::lock_guard lock(told_mutex);
  told.notes.insert(told.notes.end(), notes.begin(), notes.end());
  told.left_out += left_out;
}

Told take_told() {
  const std::lock_guard lock(told_mutex);
  return std::exchange(told, {});
}

}  // namespace

TEST_CASE("a way is told once, and a fallback even where only fallbacks are wanted") {
  LinkLog::set_outlet(&tell_test);
  LinkLog log(false, false), all(true, false);
  for (LinkLog* one : {&log, &all})
    for (int i = 0; i < 3; ++i) {
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

TEST_CASE("what waits to be told is bounded, and what was left out is counted") {
  LinkLog::set_outlet(&tell_test);
  LinkLog log(true, false);
  for (PeerId peer = 0; peer < 10'000; ++peer) log.opened(peer, "tcp.0", "x");
  log.tell();
  const Told first = take_told();
  CHECK(first.notes.size() < 1000);
  CHECK(first.notes.size() + first.left_out == 10'000);
  log.opened(10'000, "tcp.0", "x");
  log.tell();
  CHECK(take_told().notes.size() == 1);
}

TEST_CASE("a thread tells, and nothing is lost when a log ends") {
  LinkLog::set_outlet(&tell_test);
  {
    LinkLog log(true, true);
    std::vector<std::thread> threads;
    for (PeerId first = 0; first < 4; ++first)
      threads.emplace_back([&, first] {
        for (PeerId i = 0; i < 50; ++i) log.opened(first * 50 + i, "tcp.0", "x");
      });
    for (std::thread& thread : threads) thread.join();
  }
  LogThread::finish();
  const Told all = take_told();
  CHECK(all.notes.size() + all.left_out == 200);
}
