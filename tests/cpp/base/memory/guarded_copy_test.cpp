#include "base/memory/guarded_copy.h"

#include <doctest/doctest.h>
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <thread>
#include <vector>

#include "base/memory/mapping.h"

namespace fab {
namespace {

constexpr std::size_t kLongest = 1500;

// A page, and behind it one that is not there.
class Edge {
 public:
  Edge() {
    void* const at =
        ::mmap(nullptr, 2 * page_size(), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    REQUIRE(at != MAP_FAILED);
    start_ = static_cast<std::byte*>(at);
    REQUIRE(::mprotect(end(), page_size(), PROT_NONE) == 0);
  }
  Edge(const Edge&) = delete;
  Edge& operator=(const Edge&) = delete;
  ~Edge() { ::munmap(start_, 2 * page_size()); }

  std::byte* end() const noexcept { return start_ + page_size(); }

 private:
  std::byte* start_;
};

std::vector<std::byte> pattern(std::size_t size) {
  std::vector<std::byte> bytes(size);
  for (std::size_t i = 0; i < size; ++i) bytes[i] = static_cast<std::byte>(1 + i % 251);
  return bytes;
}

TEST_CASE("a guarded copy has all bytes, and no others") {
  arm_fault_guard();
  const std::vector<std::byte> from = pattern(kLongest + 16);
  for (std::size_t size = 0; size <= kLongest; ++size) {
    CAPTURE(size);
    for (const std::size_t shift : {0, 1, 7}) {
      std::vector<std::byte> to(size + 32);
      REQUIRE(copy_guarded(to.data() + 16, from.data() + shift, size));
      REQUIRE(std::equal(to.begin() + 16, to.end() - 16, from.begin() + static_cast<std::ptrdiff_t>(shift)));
      REQUIRE(std::all_of(to.begin(), to.begin() + 16, [](std::byte byte) { return byte == std::byte{}; }));
      REQUIRE(std::all_of(to.end() - 16, to.end(), [](std::byte byte) { return byte == std::byte{}; }));
    }
  }
}

TEST_CASE("a guarded copy at the edge of memory succeeds, and one beyond it says so, from either side") {
  arm_fault_guard();
  const Edge edge;
  std::vector<std::byte> own = pattern(kLongest);
  for (std::size_t size = 1; size <= kLongest; ++size) {
    CAPTURE(size);
    CHECK(copy_guarded(edge.end() - size, own.data(), size));
    CHECK(copy_guarded(own.data(), edge.end() - size, size));
    for (const std::size_t missing : {std::size_t{1}, size}) {
      CHECK_FALSE(copy_guarded(edge.end() - size + missing, own.data(), size));
      CHECK_FALSE(copy_guarded(own.data(), edge.end() - size + missing, size));
    }
  }
}

TEST_CASE("faults of copies are each thread's own, also within a guard") {
  arm_fault_guard();
  const Edge edge;
  std::vector<std::thread> threads;
  std::atomic<int> wrong{0};
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&] {
      std::uint64_t value = 0;
      for (int i = 0; i < 1000; ++i) {
        bool copied = true;
        const bool there = guarded([&] { copied = copy_guarded(&value, edge.end(), sizeof value); });
        if (!there || copied) ++wrong;
        if (!copy_guarded(edge.end() - sizeof value, &value, sizeof value)) ++wrong;
      }
    });
  for (auto& thread : threads) thread.join();
  CHECK(wrong == 0);
}

}  // namespace
}  // namespace fab
