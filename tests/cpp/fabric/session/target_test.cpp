#include <array>

#include "base/memory/mapping.h"
#include "fabric/session/by_hand.h"

using namespace fab;
using namespace fab::test;
using Bytes = std::vector<std::byte>;

// The target's side of a session: what it does for a peer that the test plays, and in which order it answers.
namespace {

FrameHeader put_of(std::uint64_t key, std::uint32_t length, std::uint64_t remote = 0) {
  return {.type = FrameType::write,
          .flags = frame_flag::kLast,
          .length = length,
          .key = key,
          .remote = remote,
          .total = length};
}

Errc outcome(const Said& said) {
  CHECK((said.header.type == FrameType::ack || said.header.type == FrameType::data ||
         said.header.type == FrameType::fail));
  return said.header.type == FrameType::fail ? static_cast<Errc>(said.header.data) : Errc::ok;
}

}  // namespace

TEST_CASE("a stripe is stored where it belongs, and judged as the whole that it is a part of") {
  Side side(1);
  Bytes memory(100), other(100);
  const auto key = side.expose({piece(memory), piece(other)});
  side.regions.bind_counter(side.last_region, 3);
  FrameHeader stripe = put_of(key, 4, 60);
  stripe.flags |= frame_flag::kStripe;
  stripe.data = 50;  // of the whole, which begins at 10
  stripe.id = 190;   // and ends with the region
  REQUIRE(hears(side, stripe, "text") == Errc::ok);
  CHECK(outcome(says_one(side)) == Errc::ok);
  CHECK(text_of(&memory[60], 4) == "text");
  CHECK(std::ranges::count(memory, std::byte{0}) == 96);
  CHECK(side.segment.counters()[3].value.load() == 0);  // a part does not count
  stripe.id = 191;                                      // one byte beyond it
  REQUIRE(hears(side, stripe, "next") == Errc::ok);
  CHECK(outcome(says_one(side)) == Errc::bounds);
  CHECK(text_of(&memory[60], 4) == "text");

  FrameHeader get{.type = FrameType::read,
                  .flags = frame_flag::kStripe,
                  .key = key,
                  .remote = 60,
                  .total = 4,
                  .data = 50};
  get.id = 190;
  REQUIRE(hears(side, get) == Errc::ok);
  CHECK(says_one(side).payload == "text");
  get.id = 191;
  REQUIRE(hears(side, get) == Errc::ok);
  CHECK(outcome(says_one(side)) == Errc::bounds);
}

TEST_CASE("who sends no remote data leaves no entry") {
  Side side(1);
  Bytes memory(100);
  const auto key = side.expose({piece(memory)});
  FrameHeader put = put_of(key, 4);
  put.data = 9;
  REQUIRE(hears(side, put, "text") == Errc::ok);
  Completion entry[1];
  CHECK(side.completions.read(entry) == 0);
  put.flags |= frame_flag::kRemoteData;
  REQUIRE(hears(side, put, "text") == Errc::ok);
  REQUIRE(side.completions.read(entry) == 1);
  CHECK(entry[0].data == 9);
  CHECK(entry[0].length == 4);
}

TEST_CASE("a region that closes in the middle of a put gets no more of it, and other puts go on") {
  for (const bool closes : {true, false}) {
    CAPTURE(closes);
    Side side(1);
    Bytes memory(40'000), other(100);
    const auto key = side.expose({piece(memory)});
    const auto region = side.last_region;
    const auto other_key = side.expose({piece(other)});
    const auto other_region = side.last_region;
    side.session.forget(region);  // of which nothing is under way
    const std::string frame = frame_of(put_of(key, 40'000), std::string(40'000, 'x'));
    REQUIRE(hears(side, frame.substr(0, kHeaderBytes + 20'000)) == Errc::ok);
    CHECK(memory[19'999] == std::byte{'x'});
    side.close(closes ? region : other_region);
    REQUIRE(hears(side, frame.substr(kHeaderBytes + 20'000)) == Errc::ok);
    CHECK(outcome(says_one(side)) == (closes ? Errc::key_rejected : Errc::ok));
    CHECK(memory[39'999] == (closes ? std::byte{0} : std::byte{'x'}));
    REQUIRE(hears(side, put_of(other_key, 4), "text") == Errc::ok);
    CHECK(outcome(says_one(side)) == (closes ? Errc::ok : Errc::key_rejected));
    CHECK_FALSE(side.session.broken());
  }
}

TEST_CASE("a put that was refused stays refused for its reason when its region closes") {
  Side side(1);
  Bytes memory(100);
  const auto key = side.expose({piece(memory)}, access::kRemoteRead);
  const std::string frame = frame_of(put_of(key, 20'000), std::string(20'000, 'x'));
  REQUIRE(hears(side, frame.substr(0, 1000)) == Errc::ok);
  side.close(side.last_region);
  REQUIRE(hears(side, frame.substr(1000)) == Errc::ok);
  CHECK(outcome(says_one(side)) == Errc::access);
}

TEST_CASE("a region that closes before its answer is sent is not read any more") {
  Side side(1);
  const Mapping memory = Mapping::anonymous(50'000);
  const auto key = side.expose({{memory.data(), 50'000}});
  REQUIRE(hears(side, {.type = FrameType::read, .key = key, .total = 50'000}) == Errc::ok);
  side.close(side.last_region);
  CHECK(outcome(says_one(side)) == Errc::key_rejected);
  CHECK_FALSE(side.session.broken());
}

TEST_CASE("answers come in the order of the requests, whichever way each is made") {
  Side side(1);
  Bytes memory(50'000);
  const auto key = side.expose({piece(memory)});
  const std::string put = frame_of(put_of(key, 4), "text");
  const auto rows = [&](std::uint64_t length) {
    const std::string ranges = words({0, length, 4, length});
    return frame_of({.type = FrameType::rows,
                     .length = static_cast<std::uint32_t>(ranges.size()),
                     .key = key,
                     .total = 2 * length},
                    ranges);
  };
  const auto get = [&](std::uint64_t length) {
    return frame_of({.type = FrameType::read, .key = key, .total = length});
  };
  REQUIRE(hears(side, put + get(8) + put + get(10'000) + put + rows(8) + put + rows(10'000) + put) ==
          Errc::ok);
  std::string order;
  std::size_t bytes = 0;
  for (const Said& said : says(side)) {
    bytes += said.payload.size();
    if (said.header.type == FrameType::data && !(said.header.flags & frame_flag::kLast)) continue;
    order += said.header.type == FrameType::ack ? 'p' : 'g';
    if (said.header.type == FrameType::ack) CHECK(said.header.total == 1);
  }
  CHECK(order == "pgpgpgpgp");
  CHECK(bytes == 8 + 10'000 + 16 + 20'000);
}

TEST_CASE("a region of no bytes can be described as well") {
  struct Device final : DeviceAccess {
    Errc describe(std::uint32_t, std::byte* out) noexcept override {
      std::memset(out, 'd', kDescriptionBytes);
      return Errc::ok;
    }
    void claim_atomics(std::uint32_t) noexcept override {}
  } device;
  Side side(1, {.device = &device});
  std::byte nothing{};
  for (const auto rights : {access::kRemoteRead, access::kRemoteWrite, access::kLocal}) {
    const auto key = side.expose({{&nothing, 0}}, rights);
    REQUIRE(hears(side, {.type = FrameType::describe, .key = key, .total = kDescriptionBytes}) == Errc::ok);
    const Said said = says_one(side);
    CHECK(outcome(said) == (rights == access::kLocal ? Errc::access : Errc::ok));
    if (rights != access::kLocal) CHECK(said.payload == std::string(kDescriptionBytes, 'd'));
  }
}

TEST_CASE("a read of a word must want its value") {
  Side side(1);
  alignas(8) std::uint64_t word = 5;
  const auto key = side.expose({{&word, 8}});
  FrameHeader frame{.type = FrameType::atomic,
                    .atomic_op = static_cast<std::uint8_t>(AtomicOp::atomic_read),
                    .data_type = static_cast<std::uint8_t>(DataType::u64),
                    .key = key,
                    .total = 8};
  REQUIRE(hears(side, frame) == Errc::ok);
  CHECK(outcome(says_one(side)) == Errc::invalid);
  frame.type = FrameType::fetch;
  REQUIRE(hears(side, frame) == Errc::ok);
  CHECK(says_one(side).payload == words({5}));
}

TEST_CASE("nothing of a stream that has ended is mistaken for a part of the next one") {
  Side side(1);
  Bytes memory(100);
  const auto key = side.expose({piece(memory)});
  const std::string put = frame_of(put_of(key, 4), "text");
  const auto begins_anew = [&] {
    side.session.fail(Errc::peer_lost);
    CHECK_FALSE(side.session.has_output());
    CHECK(says(side).empty());
    REQUIRE(hears(side, put) == Errc::ok);
    CHECK(outcome(says_one(side)) == Errc::ok);
  };
  REQUIRE(hears(side, put) == Errc::ok);  // gathered, and never told
  begins_anew();
  FrameHeader half = put_of(key, 4);
  half.flags = 0;
  half.total = 8;
  REQUIRE(hears(side, half, "text") == Errc::ok);  // half of a put
  begins_anew();
  REQUIRE(hears(side, put.substr(0, 20)) == Errc::ok);  // of a header
  begins_anew();
  REQUIRE(hears(side, put.substr(0, kHeaderBytes + 1)) == Errc::ok);  // of a payload
  begins_anew();
  REQUIRE(hears(side, {.type = FrameType::read, .key = key, .total = 50}) == Errc::ok);  // an answer
  begins_anew();

  // Gets in one request are asked for one by one, as before the end.
  Bytes landing(16);
  Probe first(OpCode::read, 5, 0, landing.data(), 8), second(OpCode::read, 5, 8, landing.data(), 8);
  const std::array batch = {first.transfer, second.transfer};
  REQUIRE(side.session.post(batch) == 2);
  CHECK(says_one(side).header.type == FrameType::rows);
  const auto out_of_bounds = static_cast<std::uint64_t>(Errc::bounds);
  REQUIRE(hears(side, {.type = FrameType::fail, .data = out_of_bounds}) == Errc::ok);
  CHECK(says(side).size() == 2);
  side.session.fail(Errc::bounds);  // that there is no room for what has ended, whatever the reason
  CHECK(first.error() == Errc::bounds);
  CHECK(side.session.requests().outstanding() == 0);
  CHECK_FALSE(side.session.has_output());
}
