#include "fabric/session/frames/output_wire.h"

using namespace fab;
using namespace fab::test;

TEST_CASE("a long put is cut into frames, and what is queued is what will be sent") {
  for (const std::size_t length : {std::size_t{1000}, std::size_t{kMaxPayload} - 1, std::size_t{kMaxPayload},
                                   std::size_t{kMaxPayload} + 1, std::size_t{3} * kMaxPayload}) {
    CAPTURE(length);
    Out out;
    const auto bytes = counted_bytes(length);
    out.put(bytes);
    const std::uint64_t queued = out.output.queued();
    CHECK(out.output.requests_sent() == 0);
    CHECK(out.send(100) == 100);
    CHECK(out.output.queued() == queued - 100);
    CHECK(out.output.requests_sent() == 100);
    out.send_all();
    CHECK(out.output.queued() == 0);
    CHECK(out.wire.size() == queued);
    std::vector<std::byte> got;
    const auto frames = out.frames();
    CHECK(frames.size() == (length + kMaxPayload - 1) / kMaxPayload);
    for (const Frame& frame : frames) {
      CHECK(frame.header.total == length);
      got.insert(got.end(), frame.payload.begin(), frame.payload.end());
      CHECK((frame.header.flags == frame_flag::kLast) == (got.size() == length));
    }
    CHECK(got == bytes);
  }
}

TEST_CASE("answers and requests take turns by frames, and copied ones that touch are one piece") {
  Out out;
  const auto bytes = counted_bytes(2000);
  const std::uint32_t region = out.expose(bytes.data(), bytes.size());
  for (int i = 0; i < 3; ++i) {
    out.put(bytes);
    out.output.region_payload(region, 0, 1000);
  }
  CHECK(out.output.waiting(Lane::answers) == 3);
  out.send_all();
  std::string order;
  for (const Frame& frame : out.frames()) order += frame.header.type == FrameType::write ? 'r' : 'a';
  CHECK(order == "arararaaa");

  for (int i = 0; i < 5; ++i) out.output.append_header(Lane::answers, {.type = FrameType::pong});
  CHECK(out.output.copied(Lane::answers) == 5 * kHeaderBytes);
  CHECK(out.output.copied(Lane::requests) == 0);
  iovec pieces[4];
  CHECK(out.output.output(pieces, 4) == 1);
  CHECK(pieces[0].iov_len == 5 * kHeaderBytes);
  out.output.append_header(Lane::answers, {.type = FrameType::ping});
  CHECK(out.output.output(pieces, 4) == 1);
  CHECK(pieces[0].iov_len == 6 * kHeaderBytes);
  out.output.append_header(Lane::requests, {.type = FrameType::ping});  // of another lane
  CHECK(out.output.output(pieces, 4) == 2);
  out.send_all();
  CHECK(out.output.copied(Lane::answers) == 0);
  CHECK(out.output.queued() == 0);
}

TEST_CASE("payload that means nothing is as long as it was asked for, and what follows comes behind it") {
  for (const std::size_t max : {1, 16}) {
    Out out;
    for (const std::uint64_t length : {std::uint64_t{1}, std::uint64_t{65'536}, std::uint64_t{200'000}}) {
      out.output.append_header(Lane::requests, {.type = FrameType::pong});
      out.output.zeros(length);
    }
    CHECK(out.output.queued() == 3 * kHeaderBytes + 265'537);
    out.output.append_header(Lane::requests, {.type = FrameType::ping});
    out.send_all(max);
    CHECK(out.output.queued() == 0);
    REQUIRE(out.wire.size() == 4 * kHeaderBytes + 265'537);
    FrameHeader last;
    REQUIRE(
        decode(reinterpret_cast<const std::byte*>(out.wire.data()) + out.wire.size() - kHeaderBytes, last));
    CHECK(last.type == FrameType::ping);
    const auto zero = [](char byte) { return byte == 0; };
    const auto end = out.wire.end() - static_cast<std::ptrdiff_t>(kHeaderBytes);
    CHECK(std::all_of(end - 200'000, end, zero));
  }
}

TEST_CASE("more answers than there are headers at a time") {
  Out out;
  const auto bytes = counted_bytes(300);
  const std::uint32_t region = out.expose(bytes.data(), bytes.size());
  for (std::uint64_t i = 0; i < 200; ++i) out.output.region_payload(region, i, 300 - i);
  const auto large = counted_bytes(5'000'000);
  out.put(large);
  while (!out.output.empty()) REQUIRE(out.send(700, 1000) != 0);
  const auto frames = out.frames();
  std::size_t whole = 0, ends = 0;
  for (const Frame& frame : frames) {
    if (frame.header.type != FrameType::data) continue;
    ends += frame.header.flags == frame_flag::kLast && frame.header.length == 0;
    if (frame.header.length != 0)
      whole += std::equal(frame.payload.begin(), frame.payload.end(),
                          bytes.begin() + static_cast<std::ptrdiff_t>(whole)) &&
               frame.payload.size() == 300 - whole;
  }
  CHECK(whole == 200);
  CHECK(ends == 200);
  CHECK(frames.size() == 402);
}

TEST_CASE("a long answer is what the region holds, from where it was asked for") {
  Out out;
  const auto bytes = counted_bytes(9'000'000);
  const std::uint32_t region = out.expose(bytes.data(), bytes.size());
  out.output.region_payload(region, 50, 8'900'000);
  out.send_all();
  std::vector<std::byte> got;
  for (const Frame& frame : out.frames()) got.insert(got.end(), frame.payload.begin(), frame.payload.end());
  CHECK(got.size() == 8'900'000);
  CHECK(std::equal(got.begin(), got.end(), bytes.begin() + 50));
}

TEST_CASE("a long message is what its pieces hold, one after the other") {
  Out out;
  const auto bytes = counted_bytes(9'000'000);
  auto* const at = const_cast<std::byte*>(bytes.data());
  const iovec pieces[] = {{at, 10}, {at + 10, 5'000'000}, {at + 5'000'010, 3'999'990}};
  out.output.message_payload(PieceCursor(pieces, 3), bytes.size());
  out.send_all();
  std::vector<std::byte> got;
  for (const Frame& frame : out.frames()) got.insert(got.end(), frame.payload.begin(), frame.payload.end());
  CHECK(got == bytes);
}

TEST_CASE("memory of a message is held until its last byte is sent") {
  Out out;
  const auto bytes = counted_bytes(5'000);
  const std::uint32_t first =
      out.output.message_payload(PieceCursor(const_cast<std::byte*>(bytes.data())), 5'000);
  const std::uint32_t second =
      out.output.message_payload(PieceCursor(const_cast<std::byte*>(bytes.data())), 0);
  CHECK(first != second);
  CHECK(out.output.holds(first));
  CHECK_FALSE(out.output.holds(first + 100));
  out.send(kHeaderBytes);
  CHECK(out.output.holds(first));
  out.send(4'999);
  CHECK(out.output.holds(first));
  out.send(1);
  CHECK_FALSE(out.output.holds(first));
  out.send_all();
  CHECK_FALSE(out.output.holds(second));
  const auto frames = out.frames();
  REQUIRE(frames.size() == 3);
  CHECK(frames[0].payload == bytes);
}

TEST_CASE("nothing is left of what was queued when the stream has ended") {
  Out out;
  const auto bytes = counted_bytes(300);
  const std::uint32_t region = out.expose(bytes.data(), bytes.size());
  for (int round = 0; round < 3; ++round) {
    out.put(bytes);
    out.output.append_header(Lane::answers, {.type = FrameType::pong});
    out.output.region_payload(region, {{0, 10}, {20, 10}}, 20);
    out.send(10);
    out.output.clear();
    CHECK(out.output.empty());
    CHECK(out.output.copied(Lane::answers) == 0);
    CHECK(out.output.copied(Lane::requests) == 0);
    CHECK(out.output.waiting_ranges() == 0);
    CHECK(out.send() == 0);
  }
}

TEST_CASE("puts whose later frames need more headers than there are at a time") {
  Out out;
  const auto bytes = counted_bytes(20);
  for (int i = 0; i < 100; ++i) {
    const FrameHeader first{.type = FrameType::write, .length = 5, .total = 20};
    out.output.append_header(Lane::requests, first);
    out.output.user_payload(first, PieceCursor(const_cast<std::byte*>(bytes.data())));
  }
  out.send_all(1000);
  const auto frames = out.frames();
  REQUIRE(frames.size() == 200);
  for (std::size_t i = 0; i < frames.size(); ++i)
    CHECK(std::equal(frames[i].payload.begin(), frames[i].payload.end(), bytes.begin() + (i % 2 ? 5 : 0)));
}

TEST_CASE("what was shown and has ended takes no room from what comes later") {
  Out out;
  const auto bytes = counted_bytes(600'000);
  for (int round = 0; round < 6; ++round) {
    const std::uint32_t region = out.expose(bytes.data(), bytes.size());
    out.output.region_payload(region, 0, bytes.size());
    out.send(0);
    if (round < 3) {
      REQUIRE(out.output.forget(region));
      out.send_all();
      CHECK(out.frames().size() == 1);
    } else {
      out.output.clear();
    }
  }
  // As many headers as there are, shown and never sent.
  const std::uint32_t region = out.expose(bytes.data(), bytes.size());
  for (int i = 0; i < 100; ++i) out.output.region_payload(region, 0, 10);
  out.send(0, 1000);
  out.output.clear();
  out.output.region_payload(region, 0, 10);
  out.send_all();
  CHECK(out.frames().size() == 2);
}
