#include "base/fault_guard.h"

#include <doctest/doctest.h>
#include <sys/mman.h>

#include <cstring>
#include <thread>
#include <vector>

#include "base/backing.h"
#include "base/mapping.h"

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

TEST_CASE("what is backed of a range") {
  Hole hole(8);
  const auto address = reinterpret_cast<std::uint64_t>(hole.start);
  const std::uint64_t page = page_size();
  CHECK(backed_spans(address, hole.size, false).empty());
  REQUIRE(::mprotect(hole.start + page, 2 * page, PROT_READ | PROT_WRITE) == 0);
  REQUIRE(::mprotect(hole.start + 3 * page, page, PROT_READ) == 0);
  REQUIRE(::mprotect(hole.start + 6 * page, page, PROT_READ | PROT_WRITE) == 0);
  const auto readable = backed_spans(address, hole.size, false);
  REQUIRE(readable.size() == 2);
  CHECK(readable[0].start == address + page);
  CHECK(readable[0].length == 3 * page);
  CHECK(readable[1].start == address + 6 * page);
  CHECK(readable[1].length == page);
  CHECK(backed_spans(address, hole.size, true)[0].length == 2 * page);
  const auto inner = backed_spans(address + page + 5, 10, true);
  REQUIRE(inner.size() == 1);
  CHECK(inner[0].start == address + page + 5);
  CHECK(inner[0].length == 10);
}

}  // namespace
}  // namespace fab
