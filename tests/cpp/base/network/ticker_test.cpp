#include "base/network/ticker.h"

#include <doctest/doctest.h>

#include <chrono>
#include <thread>

using namespace fab;
using std::chrono::milliseconds;

namespace {
constexpr double kPeriod = 0.01;
constexpr milliseconds kAbsence{200};

void next_tick(Poller& poller) {
  REQUIRE(poller.sleep(-1));
  REQUIRE(poller.dispatch() == 1);
}
}  // namespace

TEST_CASE("a ticker calls while it runs, and its time stands still otherwise") {
  Poller poller;
  int ticks = 0;
  Ticker ticker(poller, [&] { ++ticks; });
  CHECK_FALSE(ticker.running());
  CHECK(ticker.attended().count() == 0);
  ticker.start(kPeriod);
  CHECK(ticker.running());
  for (int i = 0; i < 5; ++i) next_tick(poller);
  CHECK(ticks == 5);
  ticker.stop();
  const auto stood = ticker.attended();
  CHECK(stood.count() > 0);
  CHECK_FALSE(poller.sleep(50));
  CHECK(ticker.attended() == stood);
  ticker.start(kPeriod);
  next_tick(poller);
  CHECK(ticks == 6);
  CHECK(ticker.attended() > stood);
}

TEST_CASE("an absence counts as one period, from the second tick after it on") {
  Poller poller;
  std::chrono::nanoseconds told{0};
  Ticker* self = nullptr;
  Ticker ticker(poller, [&] { told = self->attended(); });
  self = &ticker;
  ticker.start(kPeriod);
  next_tick(poller);
  const auto before = ticker.attended();
  std::this_thread::sleep_for(kAbsence);  // this process is stopped
  CHECK(ticker.attended() - before <= milliseconds(20));
  next_tick(poller);
  CHECK(ticker.attended() - before <= milliseconds(20));
  const auto first = told;
  next_tick(poller);
  CHECK(told - first >= milliseconds(10));
  // At most the period for the absence, two for a tick that counts, and one that has begun.
  CHECK(ticker.attended() - before <= milliseconds(60));
}
