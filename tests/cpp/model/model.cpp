#include "model/model.h"

#include <doctest/doctest.h>

#include <cstdio>
#include <cstdlib>
#include <string>

#include "model/scheduler.h"

namespace model {
namespace {

Scheduler* running = nullptr;

template <class Run>
Result with_scheduler(const Scenario& scenario, const Options& options, Run run) {
  Scheduler scheduler(scenario, options);
  running = &scheduler;
  Result result = run(scheduler);
  running = nullptr;
  return result;
}

std::string text_of(const Result& result) {
  return result.finding + "\nschedule: " + result.schedule + "\n" + result.story;
}

}  // namespace

Result explore(const Scenario& scenario, const Options& options) {
  Result result = with_scheduler(scenario, options, [](Scheduler& scheduler) { return scheduler.explore(); });
  if (!result.finding.empty()) result.story = replay(scenario, result.schedule, options).story;
  return result;
}

Result replay(const Scenario& scenario, const std::string& schedule, const Options& options) {
  return with_scheduler(scenario, options, [&](Scheduler& scheduler) { return scheduler.replay(schedule); });
}

void check(bool holds, const char* what) {
  const Unwatched unwatched;
  if (!holds) running->fail(what);
}

void stop(unsigned thread) {
  const Unwatched unwatched;
  running->stop(thread);
}

void Signal::send() {
  const Unwatched unwatched;
  running->send(missing_);
}

void Signal::wait() {
  const Unwatched unwatched;
  running->wait(missing_);
}

void holds(const char* title, const Scenario& scenario, Options options) {
  if (const char* deeper = std::getenv("FAB_PREEMPTIONS"))
    options.preemptions = static_cast<unsigned>(std::strtoul(deeper, nullptr, 10));
  if (const char* schedule = std::getenv("FAB_SCHEDULE")) {
    std::printf("%s\n", text_of(replay(scenario, schedule, options)).c_str());
    return;
  }
  const Result result = explore(scenario, options);
  std::printf("%s: %llu executions, %s within %u preemptions\n", title,
              static_cast<unsigned long long>(result.executions), result.exhaustive ? "all" : "NOT all",
              options.preemptions);
  std::fflush(stdout);
  INFO(text_of(result));
  CHECK(result.finding == "");
  CHECK(result.exhaustive);
}

void fails(const char* title, const Scenario& scenario, const std::vector<Weaker>& weaker,
           const std::string& expected, Options options) {
  if (std::getenv("FAB_SCHEDULE")) return;
  options.weaker = weaker;
  const Result result = explore(scenario, options);
  INFO(std::string(title));
  INFO(text_of(result));
  CHECK(result.finding.find(expected) != std::string::npos);
  CHECK(!result.finding.empty());
  if (!result.finding.empty()) CHECK(replay(scenario, result.schedule, options).finding == result.finding);
}

}  // namespace model
