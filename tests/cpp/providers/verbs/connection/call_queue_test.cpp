// Whose call is answered next, and which are made again.
#include "providers/verbs/connection/call_queue.h"

#include <doctest/doctest.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "providers/verbs/connection/redials.h"

using namespace fab;
using verbs::CallQueue;
using verbs::PrivateData;
using verbs::Redials;
using verbs::WaitingCall;

namespace {

constexpr auto kAnybody = [](const std::string&) { return true; };

Clock::time_point at(int second) { return Clock::time_point(std::chrono::seconds(second)); }

WaitingCall call(const std::string& source, std::uint64_t number, int second = 0) {
  return {.id = {}, .data = PrivateData{.token = number}, .source = source, .since = at(second)};
}

std::string name_of(const std::optional<WaitingCall>& call) {
  return call ? call->source + std::to_string(call->data.token) : "none";
}

std::string next(CallQueue& queue, const std::function<bool(const std::string&)>& may = kAnybody) {
  return name_of(queue.take(may));
}

constexpr std::chrono::nanoseconds kNever(-1);

}  // namespace

TEST_CASE("sources of calls take turns, and the calls of one keep their order") {
  CallQueue queue;
  for (std::uint64_t number = 1; number < 4; ++number) CHECK_FALSE(queue.add(call("a", number)));
  CHECK_FALSE(queue.add(call("b", 4)));
  CHECK_FALSE(queue.add(call("c", 5)));
  CHECK(next(queue) == "a1");
  CHECK(next(queue) == "b4");
  CHECK(next(queue) == "c5");
  CHECK_FALSE(queue.add(call("b", 6)));
  CHECK(next(queue, [](const std::string& source) { return source != "a"; }) == "b6");
  CHECK(next(queue, [](const std::string& source) { return source != "a"; }) == "none");
  CHECK(next(queue) == "a2");
  CHECK(next(queue) == "a3");
  CHECK(next(queue) == "none");
  CHECK(queue.empty());
}

TEST_CASE("no source takes the places of all others in the queue of calls") {
  CallQueue queue;
  for (std::size_t number = 0; number < CallQueue::kMostOfOne; ++number)
    REQUIRE_FALSE(queue.add(call("a", number)));
  CHECK(name_of(queue.add(call("a", 1'000'000))) == "a1000000");
  while (queue.size() < CallQueue::kMost) REQUIRE_FALSE(queue.add(call("b", queue.size())));
  // The last one of the source that has the most goes.
  CHECK(name_of(queue.add(call("c", 7))) == "a" + std::to_string(CallQueue::kMostOfOne - 1));
  CHECK(queue.size() == CallQueue::kMost);
  CHECK(next(queue) == "a0");
  CHECK(next(queue) == "b" + std::to_string(CallQueue::kMostOfOne));
  CHECK(next(queue) == "c7");
}

TEST_CASE("calls that have waited for long are found") {
  CallQueue queue;
  CHECK_FALSE(queue.add(call("a", 1, 10)));
  CHECK_FALSE(queue.add(call("a", 2, 20)));
  CHECK_FALSE(queue.add(call("b", 3, 5)));
  CHECK_FALSE(queue.take_older(at(4)));
  CHECK(name_of(queue.take_older(at(10))) == "a1");
  CHECK(name_of(queue.take_older(at(10))) == "b3");
  CHECK_FALSE(queue.take_older(at(10)));
  CHECK(queue.size() == 1);
}

TEST_CASE("calls are made again later and later, and as often as there is use in it") {
  Redials refused;
  for (unsigned i = 0; i < Redials::kMostFailures; ++i) CHECK(refused.after(Errc::unreachable, 0));
  CHECK_FALSE(refused.after(Errc::unreachable, 0));
  CHECK_FALSE(Redials().after(Errc::closed, 0));

  Redials away;
  std::chrono::nanoseconds before{0};
  for (int i = 0; i < 100; ++i) {
    Redials same = away;
    const auto earliest = away.after(i % 2 ? Errc::busy : Errc::again, 0).value_or(kNever);
    const auto last = static_cast<std::uint64_t>(2 * earliest.count() - 1);
    CHECK(earliest >= before);
    CHECK(earliest <= Redials::kLongest / 2);
    CHECK(same.after(Errc::busy, last) == 3 * earliest - std::chrono::nanoseconds(1));
    before = earliest;
  }
  CHECK(before == Redials::kLongest / 2);
}
