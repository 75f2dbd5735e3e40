#include "fabric/completion/security_log.h"

#include <doctest/doctest.h>

#include <future>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "fabric/completion/log_thread.h"

using namespace fab;

namespace {

std::mutex told_mutex;
std::vector<SecurityLog::Note> told_notes;

void tell_test(std::span<const SecurityLog::Note> notes) {
  const std::lock_guard lock(told_mutex);
  told_notes.insert(told_notes.end(), notes.begin(), notes.end());
}

std::vector<SecurityLog::Note> take_told() {
  const std::lock_guard lock(told_mutex);
  return std::exchange(told_notes, {});
}

}  // namespace

TEST_CASE("what happens is counted, and told once for each kind and source") {
  SecurityLog::set_outlet(&tell_test);
  SecurityLog log(false);
  for (int i = 0; i < 3; ++i) log.note(SecurityEvent::key_refused, "10.0.0.5", "first");
  log.note(SecurityEvent::protocol, "10.0.0.5", "another kind");
  log.note(SecurityEvent::key_refused, "10.0.0.6", "another source");
  CHECK(take_told().empty());
  log.tell();
  const auto notes = take_told();
  REQUIRE(notes.size() == 3);
  CHECK(notes[0].count == 3);
  CHECK(notes[0].source == "10.0.0.5");
  CHECK(std::string(notes[0].what) == "first");
  log.tell();
  CHECK(take_told().empty());
  CHECK(log.counts()[static_cast<std::size_t>(SecurityEvent::key_refused)] == 4);
}

TEST_CASE("a flood from many sources is counted, and what waits to be told is bounded") {
  SecurityLog::set_outlet(&tell_test);
  SecurityLog log(false);
  for (int i = 0; i < 10'000; ++i) log.note(SecurityEvent::caller_dropped, std::to_string(i), "too many");
  log.tell();
  CHECK(take_told().size() < 100);
  CHECK(log.counts()[static_cast<std::size_t>(SecurityEvent::caller_dropped)] == 10'000);
}

TEST_CASE("a log ends while the program is told, and waits for nothing") {
  static std::promise<void> began, may_end;
  SecurityLog::set_outlet([](std::span<const SecurityLog::Note>) {
    began.set_value();
    may_end.get_future().wait();
  });
  {
    SecurityLog log(true);
    log.note(SecurityEvent::limit, "x", "too many");
    began.get_future().wait();
  }
  may_end.set_value();
}

TEST_CASE("the program is told by a thread, and nothing is lost when a log ends") {
  SecurityLog::set_outlet(&tell_test);
  SecurityLog log(true);
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i)
    threads.emplace_back([&] {
      for (int j = 0; j < 1000; ++j) log.note(SecurityEvent::limit, "x", "too many");
    });
  for (std::thread& thread : threads) thread.join();
  log.tell();
  LogThread::finish();  // waits for what the thread tells
  std::uint64_t count = 0;
  for (const auto& note : take_told()) count += note.count;
  CHECK(count == 4000);
}
