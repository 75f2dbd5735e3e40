#include "fabric/noncoherent/shadow_memory.h"

#include <doctest/doctest.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

#include "base/memory/mapping.h"
#include "fabric/memory/pieces.h"

using namespace fab;
using test::address;
using test::Bytes;
using test::piece;
using test::view;

TEST_CASE("the views of shadow memory agree byte by byte on what was synchronised, and on nothing else") {
  // The model knows for each byte who changed it; the memory has to find out.
  std::mt19937 random(7);
  for (int round = 0; round < 30; ++round) {
    CAPTURE(round);
    constexpr std::size_t kGap = 13, kSize = 9000;
    Bytes cpu(2 * kSize + kGap);
    for (auto& byte : cpu) byte = std::byte(random() % 4);
    const iovec buffers[] = {piece(cpu, 0, kSize), piece(cpu, kSize + kGap, kSize)};
    ShadowMemory memory(buffers, round % 2 == 0);
    const auto device = memory.device();
    const auto at = [&](const iovec* views, std::size_t offset) -> std::byte& {
      return offset < kSize ? view(views[0])[offset] : view(views[1])[offset - kSize];
    };
    for (int i = 0; i < 2; ++i) {
      CHECK(address(device[i].iov_base) % 4096 == address(buffers[i].iov_base) % 4096);
      REQUIRE(std::memcmp(device[i].iov_base, buffers[i].iov_base, kSize) == 0);
    }
    enum class By { nobody, host, peer };
    std::vector<By> changed(2 * kSize, By::nobody);
    for (int step = 0; step < 400; ++step) {
      const std::size_t start = random() % (2 * kSize);
      const std::size_t end = std::min<std::size_t>(2 * kSize, start + 1 + random() % 200);
      if (const auto what = random() % 3; what < 2) {
        const By by = what == 0 ? By::host : By::peer;
        for (std::size_t i = start; i < end; ++i) {
          if (changed[i] != By::nobody && changed[i] != by) continue;  // both: undefined
          std::byte& byte = at(by == By::host ? buffers : device.data(), i);
          if (changed[i] == By::nobody) byte ^= std::byte(1 + random() % 255);
          changed[i] = by;
        }
        continue;
      }
      const SyncSide side = random() % 2 ? SyncSide::read : SyncSide::write;
      const auto effect = memory.synchronise(side, {start, end}, 1);
      std::uint64_t to_device = 0, to_cpu = 0;
      for (std::size_t i = start; i < end; ++i) {
        to_device += changed[i] == By::host;
        to_cpu += changed[i] == By::peer && side == SyncSide::write;
        if (side == SyncSide::write || changed[i] == By::host) changed[i] = By::nobody;
      }
      CHECK(effect.to_device == to_device);
      CHECK(effect.to_cpu == to_cpu);
      CHECK(effect.conflict.empty());
      std::size_t wrong = 0;
      for (std::size_t i = 0; i < 2 * kSize; ++i)
        wrong += (at(buffers, i) == at(device.data(), i)) != (changed[i] == By::nobody);
      REQUIRE(wrong == 0);
    }
    for (std::size_t i = 0; i < 2 * kSize; i += 97) {
      const bool dirty = changed[i] == By::host;
      CHECK(memory.stored({i, i + 1}).empty() != dirty);
    }
  }
}

TEST_CASE("SYNC-24: lines of more than a byte lose what their neighbours have not synchronised") {
  struct alignas(64) Line {
    std::byte bytes[192];
  } memory{};
  const iovec buffer{memory.bytes, sizeof memory.bytes};
  ShadowMemory shadow({&buffer, 1}, false);
  std::byte* const device = view(shadow.device()[0]);
  memory.bytes[63] = memory.bytes[65] = memory.bytes[127] = memory.bytes[128] = std::byte{1};
  device[64] = std::byte{2};

  SUBCASE("not with lines of one byte") {
    shadow.synchronise(SyncSide::write, {64, 65}, 1);
    CHECK(memory.bytes[65] == std::byte{1});
    CHECK(memory.bytes[127] == std::byte{1});
  }
  SUBCASE("of stores") {
    shadow.synchronise(SyncSide::write, {64, 65}, 64);
    CHECK(memory.bytes[65] == std::byte{0});
    CHECK(memory.bytes[127] == std::byte{0});
    CHECK(memory.bytes[63] == std::byte{1});  // in other lines
    CHECK(memory.bytes[128] == std::byte{1});
  }
  SUBCASE("of puts") {
    shadow.synchronise(SyncSide::read, {65, 66}, 64);
    CHECK(device[64] == std::byte{0});
    CHECK(device[127] == std::byte{1});  // goes along
    CHECK(device[128] == std::byte{0});
  }
  CHECK(memory.bytes[64] == device[64]);
}

TEST_CASE("shadow memory costs nothing for pages that nobody touched, and leaves read-only pages alone") {
  const std::size_t size = 1 << 30;
  const Mapping zeros = Mapping::anonymous(size);
  const iovec buffer{zeros.data(), size};
  ShadowMemory shadow({&buffer, 1}, false);
  zeros.data()[size / 2] = std::byte{1};
  CHECK(shadow.synchronise(SyncSide::read, {size / 2 - 4096, size / 2 + 4096}, 1).to_device == 1);
  std::vector<unsigned char> resident(size / page_size());
  REQUIRE(::mincore(zeros.data(), size, resident.data()) == 0);
  REQUIRE(::mprotect(zeros.data(), size, PROT_READ) == 0);
  CHECK_FALSE(shadow.synchronise(SyncSide::write, {0, 1 << 20}, 64).any());
  const iovec device = shadow.device()[0];
  REQUIRE(::mincore(device.iov_base, size, resident.data()) == 0);
  CHECK(std::ranges::count_if(resident, [](unsigned char page) { return page & 1; }) < 1000);
}

TEST_CASE("pages that are not there are passed over, and found when they have come") {
  const std::size_t page = page_size();
  const Mapping memory = Mapping::anonymous(3 * page);
  std::byte* const middle = memory.data() + page;
  REQUIRE(::mprotect(middle, page, PROT_NONE) == 0);
  const iovec buffer{memory.data(), 3 * page};
  ShadowMemory shadow({&buffer, 1}, false);
  memory.data()[page - 1] = memory.data()[2 * page] = std::byte{1};
  view(shadow.device()[0])[page + 5] = std::byte{2};
  for (const std::uint32_t line : {1u, 64u})
    for (const SyncSide side : {SyncSide::read, SyncSide::write})
      shadow.synchronise(side, {0, 3 * page}, line);
  CHECK(view(shadow.device()[0])[page - 1] == std::byte{1});
  CHECK(view(shadow.device()[0])[2 * page] == std::byte{1});
  CHECK(shadow.stored({0, 3 * page}).empty());
  REQUIRE(::mprotect(middle, page, PROT_READ | PROT_WRITE) == 0);
  CHECK(shadow.synchronise(SyncSide::write, {0, 3 * page}, 1).to_cpu == 1);
  CHECK(middle[5] == std::byte{2});
}
