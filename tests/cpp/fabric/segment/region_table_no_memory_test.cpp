#include <doctest/doctest.h>

#include <cstdint>
#include <new>
#include <optional>
#include <vector>

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
