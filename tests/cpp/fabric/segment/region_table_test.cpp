#include "fabric/segment/region_table.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <random>
#include <thread>
#include <unordered_map>
#include <vector>

#include "base/bytes/mix.h"
#include "base/memory/mapping.h"

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
ContextRights rights;
const Requester requester{rights, 0};

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
    return area.table.judge(entry, {key, 0, op, remote, length}, requester, offset);
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
  CHECK(area.table.judge(entry, {9, state, OpCode::write, 0, 1}, requester, offset) == Errc::key_rejected);
}

TEST_CASE("virtual addressing subtracts the base without wrapping") {
  Area area;
  iovec buffer{memory, 64};
  const auto base = reinterpret_cast<std::uint64_t>(memory);
  const auto index =
      area.table.insert({.key = 1, .base = base, .buffers = {&buffer, 1}, .access = access::kRemote});
  std::uint64_t offset = 0;
  const auto verdict = [&](std::uint64_t remote) {
    return area.table.judge(area.table.entry(index), {1, 0, OpCode::read, remote, 8}, requester, offset);
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
  ContextRights through;
  through.endpoint.store(5);
  std::uint32_t auth = 2;
  const auto verdict = [&](std::uint64_t remote, std::uint64_t length) {
    return area.table.judge(entry, {4, 0, OpCode::write, remote, length}, {through, auth}, offset);
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

TEST_CASE("an entry says nothing of the region that had it before") {
  Area area;
  std::vector<iovec> buffers(3, iovec{memory, 16});
  const auto index = area.table.insert({.key = 1,
                                        .base = 0x1000,
                                        .buffers = buffers,
                                        .access = access::kRemoteRead,
                                        .flags = region_flag::kPersistent,
                                        .file = 5,
                                        .file_offset = 4096,
                                        .auth = 3,
                                        .enabled = false});
  const RegionEntry& entry = area.table.entry(index);
  CHECK(entry.base == 0x1000);
  CHECK(entry.length == 48);
  CHECK(entry.access == access::kRemoteRead);
  CHECK(entry.flags == region_flag::kPersistent);
  CHECK(entry.file == 5);
  CHECK(entry.file_offset == 4096);
  CHECK(entry.piece_count == 3);
  CHECK(entry.auth == 3);
  area.table.bind_endpoint(index, 6);
  for (std::uint32_t i = 0; i < 8; ++i) area.table.bind_counter(index, 10 + i);
  CHECK_THROWS_AS(area.table.bind_counter(index, 0), Error);
  for (std::uint32_t i = 0; i < 8; ++i) CHECK(entry.counters[i] == 11 + i);
  const RegionSpan span{0, 8};
  area.table.set_spans(index, {&span, 1});
  CHECK(entry.flags == (region_flag::kPersistent | region_flag::kSpans));
  const std::uint64_t generation = entry.state >> 2;
  close(area.table, index);
  REQUIRE(insert(area.table, 2, {memory + 8, 32}) == index);
  CHECK((entry.state >> 2) == generation + 1);
  CHECK(status_of(entry.state) == RegionStatus::enabled);
  CHECK(entry.key == 2);
  CHECK(entry.base == 0);
  CHECK(entry.address == reinterpret_cast<std::uint64_t>(memory + 8));
  CHECK(entry.length == 32);
  CHECK(entry.access == access::kRemote);
  CHECK(entry.flags == region_flag::kWasEnabled);
  CHECK(entry.file == -1);
  CHECK(entry.file_offset == 0);
  CHECK(entry.piece_count == 1);
  CHECK(entry.endpoint == 0);
  CHECK(entry.auth == 0);
  for (const auto& counter : entry.counters) CHECK(counter == 0);
}

TEST_CASE("the state of an entry tells what it is, and its generation how often it was enabled") {
  Area area;
  const auto index = insert(area.table, 1, {memory, 64});
  const auto& state = area.table.entry(index).state;
  const std::uint64_t first = state >> 2;
  const auto is = [&](std::uint64_t generation, RegionStatus status) {
    return state >> 2 == generation && status_of(state) == status;
  };
  CHECK(is(first, RegionStatus::enabled));
  area.table.set_enabled(index, false);
  CHECK(is(first, RegionStatus::disabled));
  area.table.set_enabled(index, true);
  CHECK(is(first + 1, RegionStatus::enabled));
  area.table.start_close(index);
  CHECK(is(first + 1, RegionStatus::closing));
  CHECK(area.table.find(1) == index);  // the key is not free yet
  area.table.finish_close(index);
  CHECK(is(first + 1, RegionStatus::vacant));
}

TEST_CASE("a region is bound to the endpoint that it names, be it the first, and else to none") {
  Area area;
  const auto bound = insert(area.table, 1, {memory, 64}), free = insert(area.table, 2, {memory, 64});
  area.table.bind_endpoint(bound, 1);
  ContextRights through;
  const auto verdict = [&](std::uint32_t index, std::uint32_t endpoint) {
    through.endpoint.store(endpoint);
    std::uint64_t offset = 0;
    return area.table.judge(area.table.entry(index), {area.table.entry(index).key, 0, OpCode::read, 0, 8},
                            {through, 0}, offset);
  };
  CHECK(verdict(bound, 1) == Errc::ok);
  CHECK(verdict(bound, 2) == Errc::key_rejected);
  CHECK(verdict(free, 1) == Errc::ok);
  CHECK(verdict(free, 2) == Errc::ok);
}

TEST_CASE("of the spans of a region those count that were set last") {
  Area area;
  const auto index = insert(area.table, 1, {memory, 256});
  const auto reaches = [&](std::uint64_t remote, std::uint64_t length) {
    std::uint64_t offset = 0;
    const Errc verdict =
        area.table.judge(area.table.entry(index), {1, 0, OpCode::read, remote, length}, requester, offset);
    return verdict == Errc::ok;
  };
  std::vector<RegionSpan> spans;
  for (std::uint64_t i = 0; i < RegionView::kMaxRegionPieces; ++i) spans.push_back({4 * i, 2});
  area.table.set_spans(index, spans);
  const std::uint32_t block = area.table.entry(index).spans_block;
  for (std::uint64_t offset = 0; offset < 256; ++offset) {
    CHECK(reaches(offset, 1) == (offset % 4 < 2));
    CHECK(reaches(offset, 2) == (offset % 4 == 0));
  }
  const RegionSpan one{20, 30};
  area.table.set_spans(index, {&one, 1});
  CHECK(area.table.entry(index).spans_block == block);
  CHECK(reaches(21, 29));
  CHECK_FALSE(reaches(21, 30));
  CHECK_FALSE(reaches(4, 1));
}

TEST_CASE("blocks of pieces and spans belong to one region each, and are used again") {
  Area area;
  std::vector<iovec> low(64, iovec{memory, 1}), high(64, iovec{memory + 128, 2});
  const auto insert_vector = [&](std::uint64_t key, std::span<const iovec> buffers) {
    return area.table.insert({.key = key, .buffers = buffers, .access = access::kRemote});
  };
  const auto block_of = [&](std::uint32_t index) { return area.table.entry(index).piece_block; };
  const auto first = insert_vector(0, low), second = insert_vector(1, high);
  iovec out[RegionView::kMaxRegionPieces];
  REQUIRE(area.table.pieces(area.table.entry(first), 0, 64, out) == 64);
  for (const iovec& piece : out) CHECK(piece.iov_base == memory);
  REQUIRE(area.table.pieces(area.table.entry(second), 0, 128, out) == 64);
  for (const iovec& piece : out) CHECK(piece.iov_base == memory + 128);
  const RegionSpan span{0, 8};
  area.table.set_enabled(second, false);
  area.table.set_spans(second, {&span, 1});
  std::vector<std::uint32_t> freed{block_of(second), area.table.entry(second).spans_block};
  CHECK(freed[0] != freed[1]);
  close(area.table, second);
  close(area.table, insert(area.table, 1, {memory, 8}));  // which has none, where that one was
  std::vector<std::uint32_t> again{block_of(insert_vector(1, low)), block_of(insert_vector(2, low))};
  std::ranges::sort(freed);
  std::ranges::sort(again);
  CHECK(again == freed);
  for (std::uint64_t key = 3; key < RegionView::kPieceBlocks; ++key) insert_vector(key, low);
  const std::uint32_t full = area.table.size();
  CHECK_THROWS_AS(insert_vector(1 << 20, low), Error);
  CHECK(area.table.size() == full);
  CHECK(area.table.find(1 << 20) == -1);
  close(area.table, first);
  insert_vector(1 << 20, low);
}

TEST_CASE("two buffers are several, and give their block back") {
  Area area;
  const iovec buffers[] = {{memory, 8}, {memory + 100, 8}};
  for (std::uint32_t round = 0; round <= RegionView::kPieceBlocks; ++round) {
    const auto index = area.table.insert({.key = 1, .buffers = buffers, .access = access::kRemote});
    iovec out[RegionView::kMaxRegionPieces];
    REQUIRE(area.table.pieces(area.table.entry(index), 8, 8, out) == 1);
    REQUIRE(out[0].iov_base == memory + 100);
    close(area.table, index);
  }
}

TEST_CASE("keys that the table chooses are random, or count through those of their length") {
  Area area;
  const iovec buffer{memory, 8};
  const auto choose = [&](std::uint32_t size) {
    const auto index = area.table.insert(
        {.key = kNoKey, .key_size = size, .buffers = {&buffer, 1}, .access = access::kRemote});
    const std::uint64_t key = area.table.entry(index).key;
    close(area.table, index);
    return key;
  };
  insert(area.table, 0, buffer);  // whose entry is the first, too
  for (std::uint64_t round = 0; round < 600; ++round) CHECK(choose(1) == 1 + round % 255);
  const std::uint64_t one = choose(8), other = choose(8);
  CHECK(one > 0xffffffff);
  CHECK(other > 0xffffffff);
  CHECK(one != other);
}

// Keys whose places in an index of `slots` are those asked for, each key once.
std::vector<std::uint64_t> keys_at(const std::vector<std::uint64_t>& places, std::uint64_t slots) {
  std::unordered_map<std::uint64_t, std::uint64_t> found;
  for (std::uint64_t key = 0; found.size() < slots; ++key) found.emplace(mix(key) & (slots - 1), key);
  std::vector<std::uint64_t> keys;
  for (const std::uint64_t place : places) keys.push_back(found.at(place));
  return keys;
}

TEST_CASE("an index that closed regions have filled is made anew, not larger") {
  Area area;
  constexpr std::uint64_t kSlots = 2 * RegionView::kFirstIndexSlots;
  std::vector<std::uint64_t> odd, even;
  for (std::uint64_t place = 0; place < kSlots / 2; place += 2) {
    even.push_back(place);
    odd.push_back(place + 1);
  }
  const auto staying = keys_at(odd, kSlots), passing = keys_at(even, kSlots);
  for (const std::uint64_t key : staying) insert(area.table, key, {memory, 8});
  close(area.table,
        insert(area.table, 1 << 30, {memory, 8}));  // too many for the smallest index, for a moment
  for (int round = 0; round < 3; ++round)
    for (const std::uint64_t key : passing) close(area.table, insert(area.table, key, {memory, 8}));
  for (const std::uint64_t key : staying) CHECK(area.table.find(key) >= 0);
  for (const std::uint64_t key : passing) CHECK(area.table.find(key) == -1);
  CHECK(area.table.size() == staying.size());
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
  REQUIRE(area.table.pieces(area.table.entry(index), 32, 40, out) == 2);
  CHECK(out[0].iov_base == memory + 100);
  REQUIRE(area.table.pieces(area.table.entry(index), 40, 10, out) == 1);
  CHECK(out[0].iov_base == memory + 108);
  CHECK(out[0].iov_len == 10);
  const RegionEntry& single = area.table.entry(insert(area.table, 4, {memory + 150, 64}));
  REQUIRE(area.table.pieces(single, 16, 8, out) == 1);
  CHECK(out[0].iov_base == memory + 166);
  CHECK(out[0].iov_len == 8);
  CHECK(area.table.pieces(single, 64, 0, out) == 0);
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
