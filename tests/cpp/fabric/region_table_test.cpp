#include "fabric/region_table.h"

#include <doctest/doctest.h>

#include <atomic>
#include <random>
#include <thread>
#include <unordered_map>

#include "base/mapping.h"

namespace fab {
namespace {

struct Area {
  OwnFd file = make_memory_file("region-table-test", RegionView::kAreaBytes);
  Mapping mapping = Mapping::shared(file.get(), 0, RegionView::kAreaBytes);
  RegionTable table{mapping.data()};
};

std::uint32_t insert(RegionTable& table, std::uint64_t key, iovec buffer,
                     std::uint32_t access = access::kRemote) {
  return table.insert({.key = key, .buffers = {&buffer, 1}, .access = access});
}

void close(RegionTable& table, std::uint32_t index) {
  table.start_close(index);
  table.finish_close(index);
}

char memory[256];
Port port;
const Visitor visitor{port, 0};

TEST_CASE("a key names one region at a time and is free again after close") {
  Area area;
  const auto first = insert(area.table, 7, {memory, 64});
  CHECK(area.table.find(7) == first);
  CHECK_THROWS_AS(insert(area.table, 7, {memory, 64}), Error);
  CHECK(area.table.size() == 1);
  close(area.table, first);
  CHECK(area.table.find(7) == -1);
  CHECK(insert(area.table, 7, {memory, 32}) == first);
}

TEST_CASE("requests are judged by key, then rights, then bounds") {
  Area area;
  const auto index = insert(area.table, 9, {memory, 100}, access::kRemoteWrite);
  const RegionEntry& entry = area.table.entry(index);
  std::uint64_t offset = 0;
  const auto verdict = [&](std::uint64_t key, OpCode op, std::uint64_t remote, std::uint64_t length) {
    return area.table.judge(entry, key, 0, op, remote, length, visitor, offset);
  };
  CHECK(verdict(9, OpCode::write, 0, 100) == Errc::ok);
  CHECK(verdict(9, OpCode::write, 100, 0) == Errc::ok);
  CHECK(verdict(9, OpCode::write, 1, 100) == Errc::bounds);
  CHECK(verdict(9, OpCode::write, 101, 0) == Errc::bounds);
  CHECK(verdict(9, OpCode::write, ~0ull - 7, 16) == Errc::bounds);
  CHECK(verdict(9, OpCode::write, 16, ~0ull) == Errc::bounds);
  CHECK(verdict(9, OpCode::read, 0, 1) == Errc::access);
  CHECK(verdict(9, OpCode::fetch_atomic, 0, 8) == Errc::ok);
  CHECK(verdict(8, OpCode::read, 0, 1) == Errc::key_rejected);
  const auto state = entry.state.load();
  close(area.table, index);
  CHECK(verdict(9, OpCode::write, 0, 1) == Errc::key_rejected);
  insert(area.table, 9, {memory, 100});
  CHECK(area.table.judge(entry, 9, state, OpCode::write, 0, 1, visitor, offset) == Errc::key_rejected);
}

TEST_CASE("virtual addressing subtracts the base without wrapping") {
  Area area;
  iovec buffer{memory, 64};
  const auto base = reinterpret_cast<std::uint64_t>(memory);
  const auto index =
      area.table.insert({.key = 1, .base = base, .buffers = {&buffer, 1}, .access = access::kRemote});
  std::uint64_t offset = 0;
  const auto verdict = [&](std::uint64_t remote) {
    return area.table.judge(area.table.entry(index), 1, 0, OpCode::read, remote, 8, visitor, offset);
  };
  CHECK(verdict(base + 56) == Errc::ok);
  CHECK(offset == 56);
  CHECK(verdict(base - 1) == Errc::bounds);
  CHECK(verdict(0) == Errc::bounds);
}

TEST_CASE("a region may ask for an endpoint, an authorization key, and pages that are there") {
  Area area;
  iovec buffer{memory, 100};
  const auto index = area.table.insert(
      {.key = 4, .buffers = {&buffer, 1}, .access = access::kRemote, .auth = 2, .enabled = false});
  const RegionEntry& entry = area.table.entry(index);
  std::uint64_t offset = 0;
  Port through;
  through.endpoint.store(5);
  std::uint32_t auth = 2;
  const auto verdict = [&](std::uint64_t remote, std::uint64_t length) {
    return area.table.judge(entry, 4, 0, OpCode::write, remote, length, {through, auth}, offset);
  };
  CHECK(verdict(0, 8) == Errc::key_rejected);
  area.table.bind_endpoint(index, 5);
  const RegionSpan spans[] = {{0, 10}, {20, 30}};
  area.table.set_spans(index, spans);
  area.table.set_enabled(index, true);
  const std::uint64_t state = entry.state.load();
  CHECK(verdict(0, 10) == Errc::ok);
  CHECK(verdict(0, 11) == Errc::bounds);
  CHECK(verdict(10, 1) == Errc::bounds);
  CHECK(verdict(10, 0) == Errc::ok);
  CHECK(verdict(49, 1) == Errc::ok);
  CHECK(verdict(20, 31) == Errc::bounds);
  CHECK(verdict(99, 1) == Errc::bounds);
  through.endpoint.store(6);
  CHECK(verdict(0, 8) == Errc::key_rejected);
  through.endpoint.store(5);
  auth = 0;
  CHECK(verdict(0, 8) == Errc::key_rejected);
  auth = 2;
  area.table.set_enabled(index, false);
  area.table.set_enabled(index, true);
  CHECK(entry.state.load() != state);  // what was begun before does not go on
  close(area.table, index);
  for (int i = 0; i < 3; ++i)
    CHECK_THROWS_AS(area.table.set_spans(index, std::vector<RegionSpan>(65)), Error);
}

TEST_CASE("short keys do not come back soon") {
  Area area;
  std::unordered_map<std::uint64_t, int> seen;
  for (int i = 0; i < 100'000; ++i) {
    const iovec buffer{memory, 8};
    const auto index =
        area.table.insert({.key = kNoKey, .key_size = 4, .buffers = {&buffer, 1}, .access = access::kRemote});
    const std::uint64_t key = area.table.entry(index).key;
    CHECK(key < std::uint64_t{1} << 32);
    CHECK(seen[key]++ == 0);
    close(area.table, index);
  }
}

TEST_CASE("offsets run through the buffers of a region") {
  Area area;
  iovec buffers[] = {{memory, 32}, {memory + 100, 32}, {memory + 200, 8}};
  const auto index = area.table.insert({.key = 3, .buffers = buffers, .access = access::kRemote});
  CHECK(area.table.entry(index).length == 72);
  iovec out[RegionView::kMaxRegionPieces];
  REQUIRE(area.table.pieces(area.table.entry(index), 16, 50, out) == 3);
  CHECK(out[0].iov_base == memory + 16);
  CHECK(out[0].iov_len == 16);
  CHECK(out[1].iov_len == 32);
  CHECK(out[2].iov_base == memory + 200);
  CHECK(out[2].iov_len == 2);
  CHECK(area.table.pieces(area.table.entry(index), 72, 0, out) == 0);
}

TEST_CASE("the index follows random insertions and removals through growth") {
  Area area;
  std::mt19937_64 random(1);
  std::unordered_map<std::uint64_t, std::uint32_t> model;
  std::vector<std::uint64_t> keys;
  for (int round = 0; round < 60000; ++round) {
    if (keys.empty() || random() % 5 < (round < 30000 ? 4u : 2u)) {
      const std::uint64_t key = random() % 4 ? random() : random() % 50000;
      if (model.contains(key)) continue;
      model[key] = insert(area.table, key, {memory, 8});
      keys.push_back(key);
    } else {
      const auto at = random() % keys.size();
      close(area.table, model[keys[at]]);
      model.erase(keys[at]);
      keys[at] = keys.back();
      keys.pop_back();
    }
  }
  CHECK(area.table.size() == model.size());
  for (const auto& [key, index] : model) REQUIRE(area.table.find(key) == index);
  for (int i = 0; i < 1000; ++i) {
    const auto key = random();
    if (!model.contains(key)) REQUIRE(area.table.find(key) == -1);
  }
}

TEST_CASE("register and close of one key never fills the index with tombstones") {
  Area area;
  for (std::uint64_t round = 0; round < 200000; ++round)
    close(area.table, insert(area.table, round, {memory, 8}));
  CHECK(area.table.find(199999) == -1);
  CHECK(area.table.size() == 0);
}

TEST_CASE("readers find live keys while the owner inserts, closes and grows") {
  Area area;
  for (std::uint64_t key = 0; key < 64; ++key) insert(area.table, key, {memory, 8});
  std::atomic<bool> stop{false};
  std::thread owner([&] {
    std::vector<std::uint32_t> mine;
    for (std::uint64_t key = 1000; key < 21000; ++key) {
      mine.push_back(insert(area.table, key, {memory, 8}));
      if (key % 3 == 0) {
        close(area.table, mine.front());
        mine.erase(mine.begin());
      }
    }
    stop = true;
  });
  std::uint64_t lost = 0, key = 0;
  while (!stop) lost += area.table.find(key++ % 64) < 0;
  owner.join();
  CHECK(lost == 0);
}

}  // namespace
}  // namespace fab
