#include "providers/verbs/device/staging_memory.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <set>
#include <span>
#include <vector>

using fab::verbs::StagingMemory;

constexpr std::size_t kBytes = 4096;

TEST_CASE("every slot is taken once, and has its bytes for itself") {
  constexpr std::int32_t kSlots = 8;
  StagingMemory staging(kSlots, kBytes);
  std::vector<std::int32_t> taken;
  while (staging.has_free()) {
    taken.push_back(staging.take());
    std::memset(staging.at(taken.back()), 1 + taken.back(), kBytes);
  }
  CHECK(std::set(taken.begin(), taken.end()).size() == kSlots);
  CHECK(taken.size() == kSlots);
  for (const std::int32_t slot : taken) {
    const std::span bytes(staging.at(slot), kBytes);
    CHECK(
        std::ranges::all_of(bytes, [&](std::byte byte) { return byte == static_cast<std::byte>(1 + slot); }));
  }
}

TEST_CASE("slots that were given back are taken again, the last one first: its bytes are in the cache") {
  StagingMemory staging(3, kBytes);
  const std::int32_t a = staging.take(), b = staging.take();
  staging.take();
  CHECK_FALSE(staging.has_free());
  staging.give(b);
  staging.give(a);
  CHECK(staging.has_free());
  CHECK(staging.take() == a);
  CHECK(staging.take() == b);
  CHECK_FALSE(staging.has_free());
}
