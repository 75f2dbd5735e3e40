#include "fabric/session_output.h"

#include <doctest/doctest.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "base/mapping.h"

using namespace fab;

namespace {

using Lane = SessionOutput::Lane;
using Fault = SessionOutput::Fault;

std::vector<std::byte> counted_bytes(std::size_t size) {
  std::vector<std::byte> bytes(size);
  for (std::size_t i = 0; i < size; ++i) bytes[i] = static_cast<std::byte>(i * 7 + i / 251);
  return bytes;
}

void take_away(const Mapping& memory) { REQUIRE(::mprotect(memory.data(), memory.size(), PROT_NONE) == 0); }

struct Frame {
  FrameHeader header;
  std::vector<std::byte> payload;
};

struct Out {
  Mapping area = Mapping::anonymous(RegionView::kAreaBytes);
  RegionTable regions{area.data()};
  SessionOutput output{regions};
  std::string wire;

  std::uint32_t expose(const void* bytes, std::size_t length) {
    const iovec buffer{const_cast<void*>(bytes), length};
    return regions.insert({.key = kNoKey, .buffers = {&buffer, 1}, .access = access::kAll});
  }
  void put(const std::vector<std::byte>& bytes) {
    FrameHeader header{.type = FrameType::write,
                       .length = static_cast<std::uint32_t>(std::min<std::size_t>(bytes.size(), kMaxPayload)),
                       .total = bytes.size()};
    if (header.length == header.total) header.flags = frame_flag::kLast;
    output.append_header(Lane::requests, header);
    output.user_payload(header, PieceCursor(const_cast<std::byte*>(bytes.data())));
  }
  // Sends at most so many bytes of what is shown in at most `max` pieces.
  std::size_t send(std::size_t most = ~std::size_t{0}, std::size_t max = 16) {
    std::vector<iovec> pieces(max + 1, iovec{nullptr, 77});
    const std::size_t count = output.output(pieces.data(), max);
    REQUIRE(count <= max);
    CHECK(pieces[max].iov_len == 77);
    std::size_t sent = 0;
    for (std::size_t i = 0; i < count && sent < most; ++i) {
      CHECK(pieces[i].iov_len != 0);
      const std::size_t part = std::min(pieces[i].iov_len, most - sent);
      wire.append(static_cast<const char*>(pieces[i].iov_base), part);
      sent += part;
    }
    output.sent(sent);
    return sent;
  }
  void send_all(std::size_t max = 16) {
    while (!output.empty()) REQUIRE(send(~std::size_t{0}, max) != 0);
  }
  std::vector<Frame> frames() {
    std::vector<Frame> all;
    for (std::size_t at = 0; at < wire.size();) {
      Frame& frame = all.emplace_back();
      REQUIRE(at + kHeaderBytes <= wire.size());
      REQUIRE(decode(reinterpret_cast<const std::byte*>(wire.data()) + at, frame.header));
      at += kHeaderBytes;
      REQUIRE(at + frame.header.length <= wire.size());
      const auto* payload = reinterpret_cast<const std::byte*>(wire.data()) + at;
      frame.payload.assign(payload, payload + frame.header.length);
      at += frame.header.length;
    }
    wire.clear();
    return all;
  }
};

}  // namespace

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
  for (int i = 0; i < 200; ++i) out.output.region_payload(region, 0, 300);
  const auto large = counted_bytes(5'000'000);
  out.put(large);
  out.send(10, 1000);
  out.send_all(1000);
  const auto frames = out.frames();
  std::size_t answers = 0, ends = 0;
  for (const Frame& frame : frames) {
    if (frame.header.type != FrameType::data) continue;
    ++answers;
    ends += frame.header.flags == frame_flag::kLast && frame.header.length == 0;
    if (frame.header.length != 0) CHECK(frame.payload == bytes);
  }
  CHECK(answers == 400);
  CHECK(ends == 200);
  CHECK(frames.size() == 402);
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
  out.send_all();
  CHECK_FALSE(out.output.holds(first));
  CHECK_FALSE(out.output.holds(second));
  const auto frames = out.frames();
  REQUIRE(frames.size() == 3);
  CHECK(frames[0].payload == bytes);
}

TEST_CASE(
    "a region that goes is not read any more: what has begun ends from a copy, the rest with a reason") {
  for (const std::size_t sent : {std::size_t{0}, std::size_t{20}, kHeaderBytes, kHeaderBytes + 100,
                                 kHeaderBytes + 9'999, kHeaderBytes + 10'000}) {
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
    REQUIRE(out.send(sent) == sent);
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
