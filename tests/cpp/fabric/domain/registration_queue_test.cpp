#include "fabric/domain/registration_queue.h"

#include <doctest/doctest.h>

#include <set>
#include <thread>

#include "providers/shm/harness.h"

namespace fab {
namespace {

using test::Side;

char memory[4096];

std::shared_ptr<MemoryRegion> begin(Side& side, std::uint64_t key = kNoKey) {
  return side.domain->register_memory(
      {.buffers = {{memory, sizeof memory}}, .access = access::kAll, .requested_key = key, .keep_alive = {}});
}

Side manual() {
  DomainOptions options;
  options.manual_progress = true;
  options.mr_mode = mr_mode::kAllocated;
  return Side("auto", std::move(options));
}

TEST_CASE("MR-44, MR-46: the thread completes each registration once, whoever began it") {
  Side side;
  side.domain->registrations().bind(side.events);
  constexpr std::size_t kThreads = 4, kEach = 500;
  std::vector<std::vector<std::shared_ptr<MemoryRegion>>> made(kThreads);
  std::vector<std::thread> threads;
  for (auto& mine : made)
    threads.emplace_back([&] {
      for (std::size_t i = 0; i < kEach; ++i) mine.push_back(begin(side));
    });
  for (auto& thread : threads) thread.join();
  std::set<std::uint64_t> known, told;
  for (const auto& mine : made)
    for (const auto& region : mine) {
      region->settle();
      CHECK(region->state() == MemoryRegion::State::open);
      known.insert(region->id());
    }
  while (told.size() < known.size()) {
    const auto event = side.events->read();
    if (!event) {
      std::this_thread::yield();
      continue;
    }
    CHECK(event->type == EventType::registered);
    CHECK(event->error == Errc::ok);
    CHECK(told.insert(event->data).second);
  }
  CHECK(told == known);
  CHECK_FALSE(side.events->read());
}

TEST_CASE("MR-48: under manual progress nothing completes before somebody makes progress") {
  Side side = manual();
  side.domain->registrations().bind(side.events);
  const auto region = begin(side, 5);
  CHECK(region->state() == MemoryRegion::State::registering);
  CHECK(region->key() == kNoKey);
  CHECK_THROWS_AS(region->close({}), Error);
  CHECK_FALSE(side.events->read());
  side.domain->progress();
  CHECK(region->key() == 5);
  CHECK(side.events->read()->data == region->id());
  CHECK(region->close({}));
}

TEST_CASE("what fails behind the caller's back is told, and can only be closed") {
  Side side = manual();
  side.domain->registrations().bind(side.events);
  const auto region =
      side.domain->register_memory({.buffers = {{nullptr, 4096}}, .access = access::kAll, .keep_alive = {}});
  region->settle();
  CHECK(side.events->read()->error == Errc::bounds);
  CHECK(region->state() == MemoryRegion::State::failed);
  CHECK_THROWS_AS(region->descriptor(), Error);
  CHECK(region->close({}));
}

TEST_CASE("without a queue registration is synchronous again; what waits is completed by the end") {
  Side side = manual();
  side.domain->registrations().bind(side.events);
  const auto waiting = begin(side);
  side.domain->registrations().bind(nullptr);
  CHECK(begin(side)->state() == MemoryRegion::State::open);
  CHECK(waiting->state() == MemoryRegion::State::registering);
  waiting->settle();
  CHECK(waiting->state() == MemoryRegion::State::open);
}

TEST_CASE("what comes when the queue has stopped is completed at once, with its event") {
  for (const bool threaded : {true, false}) {
    Side side = threaded ? Side() : manual();
    side.domain->registrations().bind(side.events);
    side.domain->registrations().stop();
    const auto region = begin(side);
    CHECK(region->state() == MemoryRegion::State::open);
    const auto event = side.events->read();
    REQUIRE(event);
    CHECK(event->data == region->id());
    CHECK_FALSE(side.events->read());
    CHECK(region->close({}));
  }
}

TEST_CASE("a domain that closes completes what waits, and nothing of it is left") {
  for (const bool threaded : {true, false}) {
    CAPTURE(threaded);
    std::weak_ptr<DomainCore> domain;
    std::shared_ptr<EventQueue> events;
    {
      Side side = threaded ? Side() : manual();
      domain = side.domain;
      events = side.events;
      side.domain->registrations().bind(events);
      begin(side);
    }
    CHECK(events->read());
    CHECK(domain.expired());
  }
}

}  // namespace
}  // namespace fab
