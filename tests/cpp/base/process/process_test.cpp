#include "base/process/process.h"

#include <doctest/doctest.h>
#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <ctime>
#include <thread>

using namespace fab;

namespace {

// Clock ticks since boot, as start times are counted.
std::uint64_t ticks() {
  timespec now;
  ::clock_gettime(CLOCK_BOOTTIME, &now);
  const auto each = static_cast<std::uint64_t>(::sysconf(_SC_CLK_TCK));
  return static_cast<std::uint64_t>(now.tv_sec) * each +
         static_cast<std::uint64_t>(now.tv_nsec) * each / 1'000'000'000;
}

}  // namespace

TEST_CASE("a child of fork() is another process than its parent, which knows itself already") {
  const ProcessId parent = this_process();
  REQUIRE(parent.pid == ::getpid());
  while (ticks() <= parent.start_time + 1) {  // so that the child starts at another time
  }
  int ends[2], stop[2];
  REQUIRE(::pipe(ends) == 0);
  REQUIRE(::pipe(stop) == 0);
  const pid_t pid = ::fork();
  if (pid == 0) {
    ::close(stop[1]);
    const ProcessId told[2] = {this_process(), {::getpid(), process_start_time(::getpid())}};
    char none;
    ::_exit(::write(ends[1], told, sizeof told) == sizeof told && ::read(stop[0], &none, 1) == 0 ? 0 : 1);
  }
  ::close(stop[0]);
  ProcessId told[2];
  REQUIRE(::read(ends[0], told, sizeof told) == sizeof told);
  const ProcessId child{pid, process_start_time(pid)};
  CHECK(told[0] == child);
  CHECK(told[1] == child);
  CHECK(child.start_time > parent.start_time);
  CHECK_FALSE(process_ended(child));
  ::close(stop[1]);
  int status = -1;
  REQUIRE(::waitpid(pid, &status, 0) == pid);
  CHECK(status == 0);
  CHECK(process_ended(child));
  CHECK(process_start_time(pid) == 0);
  ::close(ends[0]);
  ::close(ends[1]);
}

TEST_CASE("a process has not ended while it asks, but an earlier one of its number has") {
  const ProcessId self = this_process();
  CHECK_FALSE(process_ended(self));
  CHECK(process_ended({self.pid, self.start_time - 1}));
  CHECK(process_start_time(self.pid) == self.start_time);
}

TEST_CASE("what is no number of a process is none that lives") {
  for (const std::int32_t pid : {0, -1, -::getpid()}) {
    CHECK(process_ended({pid, 1}));
    CHECK(process_start_time(pid) == 0);
  }
}

TEST_CASE("a signal during the look at a process does not end that process") {
  struct sigaction nothing = {}, former = {};
  nothing.sa_handler = [](int) {};
  REQUIRE(::sigaction(SIGUSR1, &nothing, &former) == 0);
  const ProcessWatch watch(this_process());
  std::atomic<bool> over{false};
  std::thread sender([&over, looking = ::pthread_self()] {
    while (!over.load()) ::pthread_kill(looking, SIGUSR1);
  });
  int ended = 0;
  for (int i = 0; i < 20'000; ++i) ended += watch.alive() ? 0 : 1;
  over = true;
  sender.join();
  CHECK(ended == 0);
  REQUIRE(::sigaction(SIGUSR1, &former, nullptr) == 0);
}
