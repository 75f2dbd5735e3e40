// Tables whose changes cannot be refused any more when they come: whatever they need is there before.
#include <doctest/doctest.h>

#include <cstdint>
#include <map>
#include <new>
#include <optional>
#include <vector>

#include "fabric/session/flow.h"
#include "fabric/session/pipe.h"
#include "failing_memory.h"

using namespace fab;
using namespace fab::test;

TEST_CASE("a region table without memory takes no region, and gives back all that it took") {
  const auto made = with_each_failing([](FailingMemory& memory) {
    Side side(1);
    std::vector<std::byte> bytes(64);
    std::vector<std::uint32_t> open;
    open.reserve(100);
    {
      const FailingMemory::Scope scope(memory);
      for (int round = 0; round < 2; ++round) {
        for (int i = 0; i < 40; ++i) {
          const std::uint32_t before = side.regions.size();
          std::optional<std::vector<iovec>> buffers;
          {
            const FailingMemory::Spared spared;
            buffers.emplace(i % 2 ? 2 : 1, piece(bytes));
          }
          try {
            open.push_back(side.regions.insert({.key = kNoKey,
                                                .base = 0,
                                                .buffers = *buffers,
                                                .access = access::kAll,
                                                .flags = 0,
                                                .file = -1,
                                                .file_offset = 0,
                                                .enabled = true}));
          } catch (const std::bad_alloc&) {
            const FailingMemory::Spared spared;
            CHECK(side.regions.size() == before);
          }
        }
        for (const std::uint32_t region : open) {
          side.regions.start_close(region);
          side.regions.finish_close(region);
        }
        open.clear();
      }
    }
    CHECK(side.regions.size() == 0);
  });
  CHECK(made > 0);
}

TEST_CASE("what a flow has made room for it remembers") {
  const auto made = with_each_failing([](FailingMemory& memory) {
    ReceiveQueue receives;
    AddressVector peers;
    Flow flow(receives, std::make_shared<Sender>(peers, std::vector<Part>{{"test.0", 0, "peer"}}), [] {});
    std::map<std::uint64_t, Errc> done;
    const std::vector<std::byte> result(8, std::byte{7});
    std::mt19937 random(5);
    {
      const FailingMemory::Scope scope(memory);
      for (int i = 0; i < 60; ++i) {
        const std::uint64_t number = 1 + random() % 40;
        if (flow.known(number)) continue;
        const Errc error = random() % 3 ? Errc::ok : Errc::bounds;
        const std::size_t length = random() % 2 && error == Errc::ok ? result.size() : 0;
        try {
          flow.make_room(length);
        } catch (const std::bad_alloc&) {
          continue;  // it is not done, then
        }
        flow.record(number, error, std::span(result).first(length));
        const FailingMemory::Spared spared;
        done[number] = error;
      }
      flow.settled(10);
      flow.settled(17);
    }
    for (std::uint64_t number = 17; number < 45; ++number) {
      const auto* const outcome = flow.outcome(number);
      REQUIRE((outcome != nullptr) == done.contains(number));
      if (outcome) CHECK(outcome->error == done[number]);
    }
  });
  CHECK(made > 10);
}
