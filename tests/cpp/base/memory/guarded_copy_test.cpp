#include "base/memory/guarded_copy.h"

#include <doctest/doctest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <thread>
#include <vector>

#include "base/fd.h"
#include "base/memory/mapping.h"
#include "child.h"

namespace fab {
namespace {

constexpr std::size_t kLongest = 1500;

// A page of a file, and pages that are not there before and behind it. An access to the one before is
// SIGSEGV, to the one behind SIGBUS.
class Edges {
 public:
  Edges() {
    const OwnFd file(::memfd_create("edges", 0));
    REQUIRE(file.valid());
    REQUIRE(::ftruncate(file.get(), static_cast<off_t>(page_size())) == 0);
    void* const at = ::mmap(nullptr, 3 * page_size(), PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    REQUIRE(at != MAP_FAILED);
    all_ = static_cast<std::byte*>(at);
    REQUIRE(::mmap(begin(), 2 * page_size(), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file.get(), 0) ==
            begin());
  }
  Edges(const Edges&) = delete;
  Edges& operator=(const Edges&) = delete;
  ~Edges() { ::munmap(all_, 3 * page_size()); }

  std::byte* begin() const noexcept { return all_ + page_size(); }
  std::byte* end() const noexcept { return begin() + page_size(); }

 private:
  std::byte* all_;
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
  const Edges page;
  std::vector<std::byte> own = pattern(kLongest);
  for (std::size_t size = 1; size <= kLongest; ++size) {
    CAPTURE(size);
    for (std::byte* const inside : {page.begin(), page.end() - size}) {
      CHECK(copy_guarded(inside, own.data(), size));
      CHECK(copy_guarded(own.data(), inside, size));
    }
    for (const std::size_t missing : {std::size_t{1}, size}) {
      for (std::byte* const outside : {page.begin() - missing, page.end() - size + missing}) {
        CHECK_FALSE(copy_guarded(outside, own.data(), size));
        CHECK_FALSE(copy_guarded(own.data(), outside, size));
      }
    }
  }
}

TEST_CASE("faults of copies are each thread's own, also within a guard") {
  arm_fault_guard();
  const Edges page;
  std::vector<std::thread> threads;
  std::atomic<int> wrong{0};
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&] {
      std::uint64_t value = 0;
      for (int i = 0; i < 1000; ++i) {
        bool copied = true;
        const bool there = guarded([&] { copied = copy_guarded(&value, page.end(), sizeof value); });
        if (!there || copied) ++wrong;
        if (!copy_guarded(page.end() - sizeof value, &value, sizeof value)) ++wrong;
      }
    });
  for (auto& thread : threads) thread.join();
  CHECK(wrong == 0);
}

struct sigaction before;

// As Python's faulthandler does it.
void hand_on(int signal) {
  ::sigaction(signal, &before, nullptr);
  ::raise(signal);
}

void put_on_top(int signal) {
  struct sigaction action{};
  action.sa_handler = hand_on;
  action.sa_flags = SA_NODEFER | SA_ONSTACK;
  ::sigaction(signal, &action, &before);
}

TEST_CASE("a handler on top that hands a fault on by raise() is no obstacle") {
  for (const int signal : {SIGSEGV, SIGBUS}) {
    for (const std::size_t size : {8, 100, 1000}) {
      CAPTURE(signal);
      CAPTURE(size);
      const Edges page;
      const int status = test::status_of_child([&] {
        arm_fault_guard();
        put_on_top(signal);
        const std::byte* const from = signal == SIGSEGV ? page.begin() - 1 : page.end() - size + 1;
        std::vector<std::byte> into(size);
        return !copy_guarded(into.data(), from, size) && !copy_guarded(into.data(), from, size);
      });
      CHECK(WIFEXITED(status));
      CHECK(WEXITSTATUS(status) == 0);
    }
  }
}

}  // namespace
}  // namespace fab
