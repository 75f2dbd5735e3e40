#include "fabric/domain/memory_region.h"

#include <doctest/doctest.h>

#include <atomic>
#include <cstdlib>
#include <functional>
#include <new>
#include <thread>
#include <utility>
#include <vector>

#include "providers/shm/harness.h"

using namespace fab;
using test::Side;

namespace {

// What this thread does when it next allocates memory, in the middle of a call.
thread_local const std::function<void()>* on_allocation = nullptr;

}  // namespace

void* operator new(std::size_t bytes) {
  if (const auto* const call = std::exchange(on_allocation, nullptr)) (*call)();
  if (void* const memory = std::malloc(bytes)) return memory;
  throw std::bad_alloc();
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }

namespace {

int rounds() {
  const char* const given = std::getenv("FAB_ROUNDS");
  return given ? std::atoi(given) : 30;
}

Side with_mode(std::uint32_t mode) {
  DomainOptions options;
  options.manual_progress = true;
  options.mr_mode = mode;
  return Side("auto", std::move(options));
}

std::uint32_t index_of(Side& side, const MemoryRegion& region) {
  return static_cast<std::uint32_t>(side.domain->regions().find(region.key()));
}

Errc ended(const std::function<void()>& call) {
  try {
    call();
    return Errc::ok;
  } catch (const Error& error) {
    return error.code();
  }
}

// One thread closes the region while others change it again and again, and wait for each other; afterwards
// nobody may find its entry in use.
void race(Side& side, const std::function<void(MemoryRegion&)>& change) {
  static std::byte memory[4096];
  for (int round = 0; round < rounds(); ++round) {
    const auto region = side.domain->register_memory(
        {.buffers = {{memory, sizeof memory}}, .access = access::kAll, .keep_alive = {}});
    RegionTable& table = side.domain->regions();
    const std::uint32_t index = index_of(side, *region);
    constexpr int kChanging = 3;
    std::atomic<int> ready{0};
    std::vector<std::thread> changing;
    for (int i = 0; i < kChanging; ++i)
      changing.emplace_back([&] {
        ++ready;
        for (bool open = true; open; std::this_thread::yield()) try {
            change(*region);
          } catch (const Error& error) {
            open = error.code() != Errc::closed;
          }
      });
    while (ready != kChanging) std::this_thread::yield();
    CHECK(region->close(Deadline::in_seconds(30)));
    for (auto& thread : changing) thread.join();
    CHECK(status_of(table.entry(index).state.load()) == RegionStatus::vacant);
    CHECK(table.size() == 0);
  }
}

}  // namespace

TEST_CASE("a region that closes is not enabled behind its end") {
  Side side = with_mode(mr_mode::kEndpoint);
  race(side, [](MemoryRegion& region) {
    try {
      region.bind_endpoint(1);
    } catch (const Error& error) {
      if (error.code() == Errc::closed) throw;
    }
    region.enable();
  });
}

TEST_CASE("a region that closes is not refreshed behind its end") {
  Side side = with_mode(mr_mode::kMmuNotify);
  race(side, [](MemoryRegion& region) { region.refresh({}, Deadline::in_seconds(30)); });
}

TEST_CASE("a region that closes takes no counter and is not shown to links behind its end") {
  static std::byte memory[64];
  Side side = with_mode(0);
  const auto counter = side.domain->open_counter();
  const auto open = [&] {
    return side.domain->register_memory(
        {.buffers = {{memory, sizeof memory}}, .access = access::kAll, .keep_alive = {}});
  };
  for (int round = 0; round < 5; ++round) {
    const auto region = open();
    std::atomic<bool> inside{false}, replaced{false};
    const std::function<void()> stop = [&] {
      inside = true;
      for (int i = 0; i < 50 && !replaced; ++i) std::this_thread::yield();
    };
    std::thread binding([&] {
      on_allocation = &stop;
      ended([&] { region->bind(counter); });
    });
    while (!inside) std::this_thread::yield();
    CHECK(region->close(Deadline::in_seconds(30)));
    const auto later = open();  // in the same entry of the table
    replaced = true;
    CHECK(ended([&] { region->bind(counter); }) == Errc::closed);
    CHECK(ended([&] { region->remote(); }) == Errc::closed);
    binding.join();
    CHECK(side.domain->regions().entry(index_of(side, *later)).counters[0].load() == 0);
  }
}
