#include <doctest/doctest.h>

#include <cstring>
#include <vector>

#include "fabric/session/frames/reader.h"

using namespace fab;

// Where a reader wants the next bytes: long payloads in their places, and beside them no more than what
// leaves the next long one a place of its own.
namespace {

using Bytes = std::vector<std::byte>;
using Sizes = std::vector<std::size_t>;

constexpr std::size_t kStaged = 64 * 1024;  // the reader's own memory

struct Fed {
  Reader reader;
  Bytes memory = Bytes(100'000);

  // So many pieces of `memory`, one behind the other with a gap of a byte.
  std::vector<iovec> pieces(const Sizes& sizes) {
    std::vector<iovec> all;
    std::byte* at = memory.data();
    for (const std::size_t size : sizes) {
      all.push_back({at, size});
      at += size + 1;
    }
    return all;
  }
  void comes(const FrameHeader& header) {
    std::byte bytes[kHeaderBytes];
    encode(header, bytes);
    comes(bytes, sizeof bytes);
  }
  void comes(const std::byte* bytes, std::size_t length) {
    iovec place[2];
    REQUIRE(reader.input(place, 2) == 1);
    REQUIRE(place[0].iov_len >= length);
    std::memcpy(place[0].iov_base, bytes, length);
    reader.arrived(length);
  }
  // What it shows: the places in `memory`, and behind them its own as a negative number.
  std::vector<long> shows(std::size_t max) {
    std::vector<iovec> out(max + 1, iovec{nullptr, 77});
    const std::size_t count = reader.input(out.data(), max);
    CHECK(count >= 1);
    CHECK(count <= max);
    CHECK(out[max].iov_len == 77);
    std::vector<long> all;
    for (std::size_t i = 0; i < count; ++i) {
      const auto* at = static_cast<const std::byte*>(out[i].iov_base);
      const bool own = at < memory.data() || at >= memory.data() + memory.size();
      all.push_back(own ? -static_cast<long>(out[i].iov_len) : static_cast<long>(out[i].iov_len));
    }
    return all;
  }
};

FrameHeader put_of(std::uint32_t length, bool last = true) {
  return {.type = FrameType::write,
          .flags = last ? frame_flag::kLast : std::uint8_t{0},
          .length = length,
          .total = last ? length : length + std::uint64_t{1}};
}
FrameHeader data_of(std::uint32_t length, bool last = false) {
  return {.type = FrameType::data, .flags = last ? frame_flag::kLast : std::uint8_t{0}, .length = length};
}

constexpr long kHeader = kHeaderBytes;

}  // namespace

TEST_CASE("a payload is received in place where its pieces are long enough") {
  struct Case {
    bool region;
    Sizes pieces;
    std::size_t max;
    std::vector<long> shown;
  };
  constexpr long kOwnAfterPut = -kHeader, kOwnAfterData = -2 * kHeader, kAll = -static_cast<long>(kStaged);
  const Case cases[] = {
      {true, {20'000}, 2, {20'000, kOwnAfterPut}},
      {true, {50'000}, 8, {20'000, kOwnAfterPut}},
      {true, {8192, 11'808}, 2, {8192}},
      {true, {8192, 11'808}, 8, {8192}},
      {true, {8191, 11'809}, 8, {kAll}},
      {true, {2000, 2000, 16'000}, 8, {kAll}},
      {false, {20'000}, 2, {20'000, kOwnAfterData}},
      {false, {8192, 11'808}, 2, {8192}},
      {false, {8191, 11'809}, 2, {kAll}},
      {false, {2000, 2000, 16'000}, 2, {kAll}},
      {false, {2000, 2000, 16'000}, 3, {2000, 2000}},
      {false, {2000, 2000, 16'000}, 4, {2000, 2000, 16'000, kOwnAfterData}},
      {false, {2000, 2000, 50'000}, 8, {2000, 2000, 16'000, kOwnAfterData}},
      {false, {1024, 18'976}, 8, {1024, 18'976, kOwnAfterData}},
      {false, {1023, 18'977}, 8, {kAll}},
      {false, {2000, 1023, 16'977}, 8, {2000}},
      {false, {19'500, 500}, 8, {19'500, 500, kOwnAfterData}},  // the end may be as short as it is
  };
  for (const Case& one : cases) {
    CAPTURE(one.region);
    CAPTURE(one.pieces[0]);
    CAPTURE(one.max);
    Fed fed;
    fed.comes(one.region ? put_of(20'000) : data_of(20'000));
    REQUIRE(fed.reader.next() == Reader::Event::frame);
    const auto pieces = fed.pieces(one.pieces);
    const PieceCursor where(pieces.data(), pieces.size());
    one.region ? fed.reader.store_in_region(where) : fed.reader.land(where);
    REQUIRE(fed.reader.next() == Reader::Event::nothing);
    CHECK(fed.shows(one.max) == one.shown);
  }
}

TEST_CASE("a payload that is not long is told of when all of it has come") {
  for (const std::uint32_t length : {8192u, 8193u}) {
    Fed fed;
    fed.comes(put_of(length));
    CHECK((fed.reader.next() == Reader::Event::frame) == (length > 8192));
    const Bytes payload(length);
    if (length > 8192) continue;
    fed.comes(payload.data(), length - 1);
    CHECK(fed.reader.next() == Reader::Event::nothing);
    fed.comes(payload.data(), 1);
    CHECK(fed.reader.next() == Reader::Event::frame);
  }
}

TEST_CASE("beside long payloads only headers are looked for, and all that comes otherwise") {
  const auto after = [](const std::vector<FrameHeader>& frames) {
    Fed fed;
    for (const FrameHeader& frame : frames) {
      fed.comes(frame);
      REQUIRE(fed.reader.next() == Reader::Event::frame);
      const Bytes payload(frame.length);
      for (std::size_t at = 0; at < payload.size();) {
        iovec place[2];
        REQUIRE(fed.reader.input(place, 2) >= 1);
        const std::size_t part = std::min(place[0].iov_len, payload.size() - at);
        fed.reader.arrived(part);
        at += part;
        fed.reader.next();
      }
      if (payload.empty() && frame.type != FrameType::ack) CHECK(fed.reader.next() == Reader::Event::payload);
      CHECK(fed.reader.next() == Reader::Event::nothing);
    }
    const long whole = -fed.shows(2).at(0);
    const Bytes some(10);
    fed.comes(some.data(), some.size());  // of the next header
    CHECK(fed.reader.next() == Reader::Event::nothing);
    CHECK(-fed.shows(2).at(0) == whole - 10);
    return whole;
  };
  constexpr long kAll = kStaged;
  const FrameHeader ack{.type = FrameType::ack, .total = 1};
  CHECK(after({ack}) == kAll);
  CHECK(after({put_of(16'383)}) == kAll);
  CHECK(after({put_of(16'384)}) == kHeader);
  CHECK(after({put_of(16'384), ack}) == kAll);            // that put is over
  CHECK(after({put_of(16'384, false), ack}) == kHeader);  // more of it will come
  CHECK(after({put_of(16'384, false), ack, put_of(20'000), ack}) == kAll);
  CHECK(after({data_of(16'384)}) == 2 * kHeader);  // the end of an answer, and what is behind it
  CHECK(after({data_of(16'384), data_of(0, true)}) == 2 * kHeader);
  CHECK(after({data_of(16'384), data_of(9'000, true)}) == kAll);
  CHECK(after({data_of(16'384), data_of(0, true), ack}) == kAll);
}

TEST_CASE("its own memory is used from its beginning again once all in it was read") {
  Fed fed;
  iovec first[2], again[2];
  REQUIRE(fed.reader.input(first, 2) == 1);
  CHECK(first[0].iov_len == kStaged);
  for (int round = 0; round < 3; ++round) {
    fed.comes({.type = FrameType::ack, .total = 1});
    if (round == 2)
      fed.reader.clear();
    else
      CHECK(fed.reader.next() == Reader::Event::frame);
    REQUIRE(fed.reader.input(again, 2) == 1);
    CHECK(again[0].iov_base == first[0].iov_base);
    CHECK(again[0].iov_len == first[0].iov_len);
  }
}

TEST_CASE("a fault is of what is shown, not of what has come") {
  Fed fed;
  fed.comes(put_of(20'000));
  REQUIRE(fed.reader.next() == Reader::Event::frame);
  fed.reader.store_in_region(PieceCursor(fed.memory.data()));
  REQUIRE(fed.reader.next() == Reader::Event::nothing);
  CHECK(fed.shows(2).at(0) == 20'000);
  fed.reader.arrived(100);
  CHECK_FALSE(fed.reader.fault());
  CHECK_FALSE(fed.reader.faulted());
  CHECK(fed.shows(2).at(0) == 19'900);
  CHECK(fed.reader.fault());
  CHECK(fed.reader.faulted());
}
