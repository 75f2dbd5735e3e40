#include "base/network/poller.h"

#include <doctest/doctest.h>
#include <sys/epoll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "base/network/ready_call.h"

using namespace fab;

namespace {

// A pipe with something to read.
struct Full {
  Full() {
    int ends[2];
    REQUIRE(::pipe(ends) == 0);
    read.reset(ends[0]);
    write.reset(ends[1]);
    REQUIRE(::write(ends[1], "x", 1) == 1);
  }
  OwnFd read, write;
};

}  // namespace

TEST_CASE("what is ready is told in each round until it is read, and nothing after it was removed") {
  Poller poller;
  const Full full;
  int told = 0;
  ReadyCall call(poller, full.read.get(), [&] { ++told; });
  CHECK(poller.sleep(-1));
  CHECK(told == 0);  // sleeping runs nothing
  CHECK(poller.dispatch() == 1);
  CHECK(poller.dispatch() == 1);
  CHECK(told == 2);
  call.pause(true);
  CHECK(poller.dispatch() == 0);
  call.pause(false);
  CHECK(poller.dispatch() == 1);
  call.end();
  CHECK_FALSE(poller.sleep(0));
  CHECK(poller.dispatch() == 0);
  CHECK(told == 3);
}

TEST_CASE("a handler that another one removes within a round is not told in it") {
  Poller poller;
  const std::array<Full, 8> pipes;
  std::vector<std::unique_ptr<ReadyCall>> calls(pipes.size());
  int told = 0;
  for (std::size_t i = 0; i < pipes.size(); ++i)
    calls[i] = std::make_unique<ReadyCall>(poller, pipes[i].read.get(), [&, i] {
      ++told;
      for (std::size_t other = 0; other < pipes.size(); ++other)
        if (other != i) calls[other].reset();  // the memory of the others is gone, too
    });
  CHECK(poller.dispatch() == static_cast<int>(pipes.size()));
  CHECK(told == 1);
}

TEST_CASE("the rounds begin at different handlers") {
  Poller poller;
  const std::array<Full, 3> pipes;
  std::vector<std::unique_ptr<ReadyCall>> calls;
  std::vector<std::size_t> order;
  for (std::size_t i = 0; i < pipes.size(); ++i)
    calls.push_back(
        std::make_unique<ReadyCall>(poller, pipes[i].read.get(), [&order, i] { order.push_back(i); }));
  std::array<bool, 3> first{};
  for (int round = 0; round < 3; ++round) {
    order.clear();
    CHECK(poller.dispatch() == 3);
    first.at(order.front()) = true;
  }
  CHECK(first == std::array<bool, 3>{true, true, true});
}

TEST_CASE("a waker ends the sleep of another thread, and wakes once for many calls before it is looked at") {
  Poller poller;
  Waker waker(poller);
  for (int round = 0; round < 100; ++round) {
    std::thread sleeper([&] { CHECK(poller.sleep(-1)); });
    waker.wake();
    sleeper.join();
    waker.wake();
    CHECK(poller.dispatch() == 1);
    CHECK(poller.dispatch() == 0);
  }
}

TEST_CASE("a child of fork() takes nothing out of its parent's set") {
  Poller poller;
  const Full full;
  int told = 0;
  ReadyCall call(poller, full.read.get(), [&] { ++told; });
  const pid_t child = ::fork();
  if (child == 0) {
    call.end();
    ::_exit(0);
  }
  int status = -1;
  REQUIRE(::waitpid(child, &status, 0) == child);
  CHECK(status == 0);
  CHECK(poller.dispatch() == 1);
  CHECK(told == 1);
}
