// Queues when there is no memory for what they are told.
#include <doctest/doctest.h>

#include <memory>
#include <new>

#include "fabric/completion/event_queue.h"
#include "fabric/types/error.h"
#include "failing_memory.h"
#include "providers/shm/harness.h"

namespace fab {
namespace {

using test::FailingMemory;
using test::Side;

TEST_CASE("a loss is told without memory, and a queue that cannot be read for want of it keeps what it has") {
  const std::uint64_t made = test::with_each_failing([](FailingMemory& memory) {
    EventQueue queue(4);
    {
      const FailingMemory::Scope scope(memory);
      for (PeerId peer = 0; peer < 6; ++peer) queue.tell_lost({.peer = peer, .link = "tcp.0"});
    }
    CHECK(memory.made() == 0);
    unsigned overruns = 0;
    for (PeerId peer = 0; peer < 4;) {
      const FailingMemory::Scope scope(memory);
      try {
        const auto event = queue.read();
        REQUIRE(event);
        CHECK(event->peer == peer++);
      } catch (const Error& error) {
        CHECK(error.code() == Errc::overrun);
        ++overruns;
      } catch (const std::bad_alloc&) {
        continue;
      }
    }
    CHECK(overruns == 1);
    CHECK(queue.empty());
  });
  CHECK(made > 0);
}

TEST_CASE("a counter that has no memory to be opened leaves its place to the next one") {
  const std::uint64_t made = test::with_each_failing([](FailingMemory& memory) {
    Side side;
    const auto first = side.domain->open_counter();
    std::shared_ptr<Counter> counter;
    {
      const FailingMemory::Scope scope(memory);
      try {
        counter = side.domain->open_counter();
      } catch (const std::bad_alloc&) {
        CHECK(memory.failed());
      }
    }
    if (!counter) counter = side.domain->open_counter();
    CHECK(counter->index() == first->index() + 1);
  });
  CHECK(made >= 2);
}

TEST_CASE("a registration that has no memory to be told of has no effect, and any other has its event") {
  char memory_of_region[64];
  const std::uint64_t made = test::with_each_failing([&](FailingMemory& memory) {
    Side side;
    side.domain->registrations().bind(side.events);
    std::shared_ptr<MemoryRegion> region;
    {
      const FailingMemory::Scope scope(memory);
      try {
        region = side.domain->register_memory({.buffers = {{memory_of_region, sizeof memory_of_region}},
                                               .access = access::kAll,
                                               .keep_alive = {}});
      } catch (const std::exception& error) {
        CHECK(shortage_or(error, Errc::ok) == Errc::no_memory);
      }
    }
    if (region) {
      region->settle();
      while (side.events->empty()) std::this_thread::yield();
      CHECK(side.events->read()->data == region->id());
      CHECK(region->close({}));
    }
    CHECK(side.events->empty());
    CHECK(side.domain->regions().size() == 0);
  });
  CHECK(made > 0);
}

}  // namespace
}  // namespace fab
