#include "base/memory/fault_guard.h"

#include <doctest/doctest.h>
#include <sys/mman.h>

#include <cstring>
#include <thread>
#include <vector>

#include "base/memory/mapping.h"

namespace fab {
namespace {

struct Hole {
  std::size_t size;
  char* start;
  explicit Hole(std::size_t pages) : size(pages * page_size()) {
    void* at = ::mmap(nullptr, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    REQUIRE(at != MAP_FAILED);
    start = static_cast<char*>(at);
  }
  ~Hole() { ::munmap(start, size); }
};

TEST_CASE("a fault under a guard is told, again and again, in every thread") {
  arm_fault_guard();
  arm_fault_guard();
  Hole hole(1);
  const auto store = [&](char* at) { return guarded([at] { std::memset(at, 1, 8); }); };
  std::vector<std::thread> threads;
  std::atomic<int> faults{0};
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&] {
      char own[8] = {};
      for (int i = 0; i < 1000; ++i) {
        if (!store(hole.start)) ++faults;
        if (!store(own)) faults = -100'000;
        if (own[7] != 1) faults = -100'000;
      }
    });
  for (auto& thread : threads) thread.join();
  CHECK(faults == 4000);
}

}  // namespace
}  // namespace fab
