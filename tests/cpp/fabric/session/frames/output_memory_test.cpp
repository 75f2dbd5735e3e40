#include "fabric/session/frames/output_wire.h"

using namespace fab;
using namespace fab::test;

// Memory that goes while it is on its way.

TEST_CASE(
    "a region that goes is not read any more: what has begun ends from a copy, the rest with a reason") {
  for (const auto& [before, max] :
       std::vector<std::pair<std::size_t, std::size_t>>{{0, 16},
                                                        {0, 1},
                                                        {20, 16},
                                                        {20, 1},
                                                        {kHeaderBytes, 16},
                                                        {kHeaderBytes + 100, 16},
                                                        {kHeaderBytes + 9'999, 16},
                                                        {kHeaderBytes + 10'000, 16}}) {
    const std::size_t sent = before;
    CAPTURE(sent);
    Out out;
    const Mapping memory = Mapping::anonymous(12'000);
    const auto bytes = counted_bytes(12'000), kept = counted_bytes(500);
    std::memcpy(memory.data(), bytes.data(), bytes.size());
    const std::uint32_t region = out.expose(memory.data(), 12'000), other = out.expose(kept.data(), 500);
    out.output.region_payload(region, 0, 10'000);
    out.output.region_payload(other, 0, 500);
    out.output.region_payload(region, {{0, 10}, {5'000, 20}, {11'990, 10}}, 40);
    CHECK(out.output.waiting_ranges() == 3);
    REQUIRE(out.send(sent, max) == sent);
    REQUIRE(out.output.forget(region));
    take_away(memory);
    out.send_all();
    CHECK(out.output.waiting_ranges() == 0);
    const auto frames = out.frames();
    std::string order;  // d: data, e: the end of an answer, f: fail
    for (const Frame& frame : frames) {
      order += frame.header.type == FrameType::fail ? 'f' : frame.header.length ? 'd' : 'e';
      if (frame.header.type == FrameType::fail)
        CHECK(frame.header.data == static_cast<std::uint64_t>(Errc::key_rejected));
    }
    // The first answer ends behind the frame that has begun; one whose end was staged may come whole.
    CHECK((order == (sent == 0 ? "fdef" : "dfdef") || order == "dedef"));
    if (sent != 0) CHECK(frames[0].payload == std::vector(bytes.begin(), bytes.begin() + 10'000));
    CHECK(frames[frames.size() - 3].payload == kept);
  }
}

TEST_CASE("a region that goes leaves answers from others alone") {
  Out out;
  const auto bytes = counted_bytes(1'000);
  const std::uint32_t region = out.expose(bytes.data(), 1'000), other = out.expose(bytes.data(), 1'000);
  out.output.region_payload(other, 0, 1'000);
  out.output.region_payload(other, {{0, 10}, {20, 10}}, 20);
  out.send(100);
  REQUIRE(out.output.forget(region));
  out.send_all();
  for (const Frame& frame : out.frames()) CHECK(frame.header.type == FrameType::data);
}

TEST_CASE("memory that is not there is replaced by zeros, and its owner is told") {
  Out out;
  CHECK(out.output.fault() == Fault::none);
  out.output.append_header(Lane::answers, {.type = FrameType::pong});
  iovec pieces[4];
  REQUIRE(out.output.output(pieces, 4) == 1);
  CHECK(out.output.fault() == Fault::none);
  out.send_all();
  out.frames();
  const auto filled = [] {
    Mapping memory = Mapping::anonymous(5'000'000);
    std::memset(memory.data(), 5, 5'000'000);
    return memory;
  };
  SUBCASE("of a put, in this frame and in the next") {
    const Mapping memory = filled();
    FrameHeader header{.type = FrameType::write, .length = kMaxPayload, .total = 5'000'000};
    out.output.append_header(Lane::requests, header);
    out.output.user_payload(header, PieceCursor(memory.data()));
    CHECK(out.send(kHeaderBytes) == kHeaderBytes);
    out.send(0);
    take_away(memory);
    CHECK(out.output.fault() == Fault::request);
    out.send_all();
    const auto frames = out.frames();
    REQUIRE(frames.size() == 2);
    for (const Frame& frame : frames) {
      CHECK(frame.header.total == 5'000'000);
      CHECK(std::ranges::all_of(frame.payload, [](std::byte byte) { return byte == std::byte{0}; }));
    }
    CHECK(out.output.queued() == 0);
  }
  SUBCASE("of an answer, which ends with the reason") {
    const auto kept = counted_bytes(100);
    const std::uint32_t other = out.expose(kept.data(), 100);
    for (const bool message : {false, true}) {
      const Mapping memory = filled();
      const std::uint32_t region = out.expose(memory.data(), 5'000'000);
      if (message)
        out.output.message_payload(PieceCursor(memory.data()), 5'000'000);
      else
        out.output.region_payload(region, 0, 5'000'000);
      out.output.region_payload(other, 0, 100);
      CHECK(out.send(kHeaderBytes) == kHeaderBytes);
      out.send(0);
      take_away(memory);
      CHECK(out.output.fault() == Fault::answer);
      out.send_all();
      const auto frames = out.frames();
      REQUIRE(frames.size() == 4);
      CHECK(frames[0].payload == std::vector<std::byte>(kMaxPayload));
      CHECK(frames[1].header.type == FrameType::fail);
      CHECK(frames[1].header.data == static_cast<std::uint64_t>(Errc::bounds));
      CHECK(frames[2].payload == kept);
    }
  }
}

TEST_CASE("answers that have not begun end with the reason alone, however many and however short they are") {
  Out out;
  const auto bytes = counted_bytes(1'000);
  for (const bool shown : {false, true}) {
    CAPTURE(shown);
    const std::uint32_t region = out.expose(bytes.data(), 1'000);
    for (int i = 0; i < 100; ++i) out.output.region_payload(region, {{0, 1}, {5, 1}, {10, 20}}, 22);
    if (shown) out.send(0, 1000);
    REQUIRE(out.output.forget(region));
    REQUIRE(out.output.forget(region));  // what has ended ends once
    CHECK(out.output.waiting_ranges() == 0);
    out.send_all(1000);
    const auto frames = out.frames();
    CHECK(frames.size() == 100);
    for (const Frame& frame : frames) CHECK(frame.header.type == FrameType::fail);
  }
  CHECK(out.output.fault() == Fault::none);  // there is nothing any more
}
