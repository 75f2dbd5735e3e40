#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>
#include <unordered_map>
#include <vector>

#include "base/bytes/mix.h"
#include "base/memory/mapping.h"
#include "fabric/segment/region_table.h"

// Where the parts of a region table lie in their area, how large the index of keys is, and what others find
// who are told nonsense.
namespace fab {
namespace {

struct Area : RegionView {
  Area() : RegionView(nullptr) { area_ = mapping.data(); }
  using RegionView::index;
  using RegionView::index_size;

  std::uint32_t insert(std::uint64_t key) {
    const iovec buffer{memory, 8};
    return table.insert({.key = key, .buffers = {&buffer, 1}, .access = access::kRemote});
  }
  std::uint32_t insert_vector(std::uint64_t key, std::span<const iovec> buffers) {
    return table.insert({.key = key, .buffers = buffers, .access = access::kRemote});
  }
  void close(std::uint32_t entry) {
    table.start_close(entry);
    table.finish_close(entry);
  }

  Mapping mapping = Mapping::anonymous(kAreaBytes);
  RegionTable table{mapping.data()};
  char memory[256];
};

// Keys that want the places 0 … count - 1 of an index of `slots`.
std::vector<std::uint64_t> keys_of_places(std::size_t count, std::uint64_t slots) {
  std::unordered_map<std::uint64_t, std::uint64_t> found;
  for (std::uint64_t key = 0; found.size() < slots; ++key) found.emplace(mix(key) & (slots - 1), key);
  std::vector<std::uint64_t> keys(count);
  for (std::uint64_t place = 0; place < count; ++place) keys[place] = found.at(place);
  return keys;
}

}  // namespace

TEST_CASE("header, indices, entries and blocks lie behind each other, and none in another") {
  Area area;
  const auto* end = area.mapping.data() + 4096;
  for (std::uint32_t size = 0; size < RegionView::kIndexSizes; ++size) {
    CHECK(reinterpret_cast<std::byte*>(area.index(size)) == end);
    end += sizeof(std::uint32_t) * (std::size_t{RegionView::kFirstIndexSlots} << size);
  }
  CHECK(end <= area.mapping.data() + RegionView::kEntriesOffset);
  CHECK(reinterpret_cast<std::byte*>(&area.entry(3)) ==
        area.mapping.data() + RegionView::kEntriesOffset + 3 * sizeof(RegionEntry));
  CHECK(&area.entry(RegionView::kMaxRegions + 3) == &area.entry(3));  // nonsense leads nowhere else

  const std::byte* blocks = area.mapping.data() + RegionView::kPiecesOffset;
  for (std::uint64_t number = 0; number < 6; ++number) {
    const iovec pieces[] = {{area.memory + number, 3}, {area.memory + 100, 4}};
    area.insert_vector(number, pieces);
    const RegionPiece expected[] = {{reinterpret_cast<std::uint64_t>(area.memory + number), 3},
                                    {reinterpret_cast<std::uint64_t>(area.memory + 100), 4}};
    CHECK(std::memcmp(blocks, expected, sizeof expected) == 0);
    blocks += RegionView::kMaxRegionPieces * sizeof(RegionPiece);
  }
}

TEST_CASE("the index doubles when it is half full of keys") {
  Area area;
  std::uint64_t key = 0;
  for (std::uint32_t size = 0; size < 4; ++size) {
    for (; key < (std::uint64_t{RegionView::kFirstIndexSlots} << size) / 2; ++key) area.insert(key);
    CHECK(area.index_size() == size);
    area.insert(key++);
    CHECK(area.index_size() == size + 1);
  }
  for (std::uint64_t old = 0; old < key; ++old) CHECK(area.table.find(old) == static_cast<std::int64_t>(old));
}

TEST_CASE("an index that is half full of what closed regions left does not grow for ever") {
  Area area;
  constexpr std::uint64_t kSlots = RegionView::kFirstIndexSlots;
  // Regions at odd places stay, so that nothing can be cleared away before them.
  const auto fill = [&](std::uint32_t size, std::uint64_t stay) {
    const auto keys = keys_of_places(2 * stay, kSlots << size);
    for (std::size_t place = 1; place < keys.size(); place += 2)
      if (area.table.find(keys[place]) < 0) area.insert(keys[place]);
    for (std::size_t place = 0; place < keys.size(); place += 2) area.close(area.insert(keys[place]));
    return keys;
  };
  auto keys = fill(0, kSlots / 4);
  CHECK(area.index_size() == 0);
  area.close(area.insert(~std::uint64_t{1}));
  CHECK(area.index_size() == 1);  // there is none that is smaller
  for (std::size_t place = 0; place < keys.size(); ++place)
    CHECK((area.table.find(keys[place]) >= 0) == (place % 2 == 1));
  for (std::size_t place = 1; place < keys.size(); place += 2)
    area.close(static_cast<std::uint32_t>(area.table.find(keys[place])));
  CHECK(area.table.size() == 0);

  keys = fill(1, kSlots / 2);
  CHECK(area.index_size() == 1);
  area.insert(~std::uint64_t{1});
  CHECK(area.index_size() == 0);
  for (std::size_t place = 0; place < keys.size(); ++place)
    CHECK((area.table.find(keys[place]) >= 0) == (place % 2 == 1));
}

TEST_CASE("an entry that claims too many pieces or spans leads into no block of another region") {
  Area area;
  const std::vector<iovec> first(64, iovec{area.memory, 1}), second(64, iovec{area.memory + 100, 1});
  const std::uint32_t mine = area.insert_vector(1, first), next = area.insert_vector(2, second);
  CHECK(area.entry(next).piece_block == area.entry(mine).piece_block + 1);
  area.entry(mine).piece_count = 1000;
  std::vector<iovec> out(130, iovec{nullptr, 7});
  CHECK(area.pieces(area.entry(mine), 0, 1000, out.data()) == 64);
  CHECK(out[64].iov_len == 7);

  const iovec whole{area.memory, 256};
  const std::uint32_t one = area.insert_vector(3, {&whole, 1}), other = area.insert_vector(4, {&whole, 1});
  std::vector<RegionSpan> spans;
  for (std::uint64_t i = 0; i < RegionView::kMaxRegionPieces; ++i) spans.push_back({2 * i, 1});
  const RegionSpan far{200, 10};
  area.table.set_spans(one, spans);
  area.table.set_spans(other, {&far, 1});
  CHECK(area.entry(other).spans_block == area.entry(one).spans_block + 1);
  area.entry(one).spans = 1000;
  const ContextRights rights{};
  const auto verdict = [&](std::uint32_t entry, std::uint64_t key) {
    std::uint64_t offset = 0;
    return area.judge(area.entry(entry), {key, 0, OpCode::read, 200, 1}, {rights, 0}, offset);
  };
  CHECK(verdict(one, 3) == Errc::bounds);
  CHECK(verdict(other, 4) == Errc::ok);
}

TEST_CASE("a block of spans goes with the region that has it, and no other") {
  Area area;
  const iovec pieces[] = {{area.memory, 8}, {area.memory + 100, 8}};
  const RegionSpan span{0, 4};
  const std::uint32_t with = area.insert(1), without = area.insert(2);
  area.table.set_spans(with, {&span, 1});
  const std::uint32_t block = area.entry(with).spans_block;
  area.close(with);
  area.close(without);
  CHECK(area.entry(area.insert_vector(3, pieces)).piece_block == block);
  CHECK(area.entry(area.insert_vector(4, pieces)).piece_block != block);
}

TEST_CASE("an index full of nonsense has an end") {
  Area area;
  const std::uint32_t entry = area.insert(5);
  std::uint32_t right = 0;
  for (std::uint64_t place = 0; place < RegionView::kFirstIndexSlots; ++place)
    if (area.index(0)[place] != 0) right = area.index(0)[place];
  for (std::uint64_t place = 0; place < RegionView::kFirstIndexSlots; ++place) area.index(0)[place] = ~0u;
  CHECK(area.find(5) == -1);
  CHECK(area.find(6) == -1);
  // The one place that a probe comes to last.
  area.index(0)[(mix(5) - 1) & (RegionView::kFirstIndexSlots - 1)] = right;
  CHECK(area.find(5) == entry);
}

}  // namespace fab
