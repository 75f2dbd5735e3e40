// The harness itself.
#include <doctest/doctest.h>

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "failing_memory.h"

using namespace fab::test;

namespace {

struct alignas(128) Wide {
  char bytes[128];
};

// Keeps the compiler from doing without an allocation.
const void* volatile seen;

bool made(const void* memory) {
  seen = memory;
  return memory != nullptr;
}

// Six allocations, one of each kind that the library makes.
int allocations_that_succeed() {
  int good = 0;
  const auto attempt = [&](auto make) {
    try {
      good += make() ? 1 : 0;
    } catch (const std::bad_alloc&) {
    }
  };
  attempt([] { return made(std::make_unique<int>(7).get()); });
  attempt([] { return made(std::vector<int>(3).data()); });
  attempt([] { return made(std::string(100, 'x').data()); });
  attempt([] { return made(std::unique_ptr<char[]>(new (std::nothrow) char[10]).get()); });
  attempt([] { return made(std::make_unique<Wide>().get()); });
  attempt([] { return made(std::unique_ptr<Wide[]>(new (std::nothrow) Wide[2]).get()); });
  return good;
}

}  // namespace

TEST_CASE("each allocation of a scope fails once, and none outside") {
  int runs = 0;
  const auto allocations = with_each_failing([&](FailingMemory& memory) {
    ++runs;
    int good = 0;
    {
      const FailingMemory::Scope scope(memory);
      good = allocations_that_succeed();
    }
    CHECK(good == (memory.failed() ? 5 : 6));
    CHECK(allocations_that_succeed() == 6);
  });
  CHECK(allocations == 6);
  CHECK(runs == 7);
}

TEST_CASE("a lasting lack fails all that follow, but not what is spared") {
  FailingMemory memory(3, FailingMemory::Of::thread, FailingMemory::Lack::lasting);
  int good = 0, spared = 0;
  {
    const FailingMemory::Scope scope(memory);
    good = allocations_that_succeed();
    const FailingMemory::Spared others;
    spared = allocations_that_succeed();
  }
  CHECK(good == 2);
  CHECK(spared == 6);
  CHECK(memory.made() == 6);
}

TEST_CASE("what other threads allocate counts only where it shall") {
  for (const auto of : {FailingMemory::Of::thread, FailingMemory::Of::process}) {
    FailingMemory memory(1, of, FailingMemory::Lack::lasting);
    std::atomic<bool> go{false};
    int good = -1;
    std::thread other([&] {
      go.wait(false);
      good = allocations_that_succeed();
    });
    {
      const FailingMemory::Scope scope(memory);
      go = true;
      go.notify_one();
      other.join();
    }
    CHECK(good == (of == FailingMemory::Of::thread ? 6 : 0));
  }
}
