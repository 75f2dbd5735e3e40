#include <sys/mman.h>

#include <cerrno>

#include "base/memory/mapping.h"
#include "fabric/session/by_hand.h"
#include "fabric/session/link_requests.h"

using namespace fab;
using namespace fab::test;

// What is durable before it is answered, as the kernel is asked for it.
namespace {

struct Synced {
  const std::byte* start;
  std::size_t length;
};
std::vector<Synced> synced;
int fails_with = 0;

}  // namespace

// In place of the C library's.
extern "C" int msync(void* start, std::size_t length, int flags) {
  CHECK(flags == MS_SYNC);
  synced.push_back({static_cast<const std::byte*>(start), length});
  errno = fails_with;
  return fails_with ? -1 : 0;
}

namespace {

struct Durable {
  RailSide side;
  Mapping first = Mapping::anonymous(3 * 4096), second = Mapping::anonymous(3 * 4096);
  std::uint64_t key =
      side.expose({{at(4000), 8192}, {second.data() + 8, 4096}}, access::kAll, region_flag::kPersistent);

  Durable() {
    synced.clear();
    fails_with = 0;
    side.regions.bind_counter(side.last_region, 3);
  }
  std::byte* at(std::size_t offset) { return first.data() + offset; }
  std::uint64_t counted() { return side.segment.counters()[3].value.load(); }
  Said does(FrameHeader frame, std::size_t length, const std::string& payload) {
    frame.key = key;
    frame.length = static_cast<std::uint32_t>(payload.size());
    frame.total = length;
    synced.clear();
    REQUIRE(hears(side, frame, payload) == Errc::ok);
    return says_one(side);
  }
  // Whether all these bytes lie in what was made durable.
  bool covers(const std::byte* from, std::size_t length) {
    for (const Synced& one : synced) {
      CHECK(reinterpret_cast<std::uintptr_t>(one.start) % 4096 == 0);
      CHECK(one.length < length + 4096);  // and nothing far from it
      if (one.start <= from && from + length == one.start + one.length) return true;
    }
    return false;
  }
};

constexpr std::uint8_t kCommit = frame_flag::kCommit | frame_flag::kLast;

}  // namespace

TEST_CASE("a put that is to be durable is, page by page, in every buffer that it lies in") {
  Durable durable;
  const std::string text(300, 'x');
  durable.does({.type = FrameType::write, .flags = frame_flag::kLast}, 300, text);
  CHECK(synced.empty());  // nobody asked
  durable.does({.type = FrameType::write, .flags = kCommit}, 300, text);
  CHECK(synced.size() == 1);
  CHECK(durable.covers(durable.at(4000), 300));
  durable.does({.type = FrameType::write, .flags = kCommit, .remote = 8000}, 300, text);
  CHECK(synced.size() == 2);
  CHECK(durable.covers(durable.at(12'000), 192));
  CHECK(durable.covers(durable.second.data() + 8, 108));
}

TEST_CASE("an update that is to be durable is, and no other") {
  Durable durable;
  const FrameHeader add{.type = FrameType::atomic,
                        .atomic_op = static_cast<std::uint8_t>(AtomicOp::sum),
                        .data_type = static_cast<std::uint8_t>(DataType::u64)};
  durable.does(add, 8, words({1}));
  CHECK(synced.empty());
  FrameHeader committed = add;
  committed.flags = frame_flag::kCommit;
  durable.does(committed, 8, words({1}));
  CHECK(durable.covers(durable.at(4000), 8));
  CHECK(durable.counted() == 2);
}

TEST_CASE("what cannot be made durable has failed, and neither counts nor tells") {
  for (const auto& [error, expected] : {std::pair{ENOMEM, Errc::bounds}, std::pair{EIO, Errc::io}}) {
    Durable durable;
    fails_with = error;
    Said said =
        durable.does({.type = FrameType::write, .flags = kCommit | frame_flag::kRemoteData}, 4, "text");
    CHECK(said.header.data == static_cast<std::uint64_t>(expected));
    said = durable.does({.type = FrameType::atomic,
                         .flags = frame_flag::kCommit,
                         .atomic_op = static_cast<std::uint8_t>(AtomicOp::sum),
                         .data_type = static_cast<std::uint8_t>(DataType::u64)},
                        8, words({1}));
    CHECK(said.header.data == static_cast<std::uint64_t>(expected));
    CHECK(durable.counted() == 0);
    Completion entry[1];
    CHECK(durable.side.completions.read(entry) == 0);
  }
}

TEST_CASE("stripes are made durable together, at their end") {
  Durable durable;
  REQUIRE(hears(durable.side, {.type = FrameType::join, .key = 7, .remote = 1, .data = rail_number(0, 1)}) ==
          Errc::ok);
  says(durable.side);
  durable.does({.type = FrameType::write,
                .flags = kCommit | frame_flag::kStripe,
                .remote = 100,
                .data = 100,
                .id = 300},
               200, std::string(200, 'x'));
  CHECK(synced.empty());
  durable.does({.type = FrameType::write, .flags = kCommit | frame_flag::kStriped, .id = 1}, 300, "");
  CHECK(durable.covers(durable.at(4000), 300));
  CHECK(durable.counted() == 1);
}
