#include "fabric/session/frames/reader.h"

#include <doctest/doctest.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <vector>

#include "base/memory/fault_guard.h"
#include "base/memory/mapping.h"

using namespace fab;

namespace {

using Bytes = std::vector<std::byte>;

struct Sent {
  FrameHeader header;
  Bytes payload;
  Bytes landed{};  // where it goes, if it goes anywhere
};

Bytes random_bytes(std::mt19937& random, std::size_t size) {
  Bytes bytes(size);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
  return bytes;
}

Sent some_frame(std::mt19937& random) {
  constexpr std::uint32_t kSizes[] = {0, 1, 8, 300, 8 * 1024, 8 * 1024 + 1, 20'000, 70'000};
  const std::uint32_t size = kSizes[random() % std::size(kSizes)];
  FrameHeader header{};
  switch (random() % 4) {
    case 0:
      header = {.type = FrameType::ack, .total = 1 + random() % 100};
      break;
    case 1:
      header = {.type = FrameType::message, .length = std::min<std::uint32_t>(size, kMaxMessage)};
      header.total = header.length;
      break;
    case 2:
      header = {.type = FrameType::data, .flags = frame_flag::kLast, .length = size};
      break;
    default:
      header = {.type = FrameType::write, .flags = frame_flag::kLast, .length = size, .total = size};
  }
  Sent sent{header, random_bytes(random, header.length)};
  if (header.type == FrameType::write || header.type == FrameType::data) sent.landed.resize(header.length);
  return sent;
}

void put_on_wire(const Sent& sent, Bytes& wire) {
  std::byte header[kHeaderBytes];
  encode(sent.header, header);
  wire.insert(wire.end(), header, header + kHeaderBytes);
  wire.insert(wire.end(), sent.payload.begin(), sent.payload.end());
}

// As much of the wire as goes into what the reader shows, or less. Returns how much that was.
std::size_t feed(Reader& reader, std::span<const std::byte> wire, std::size_t most, std::size_t pieces) {
  iovec places[8];
  const std::size_t count = reader.input(places, pieces);
  std::size_t done = 0;
  for (std::size_t i = 0; i < count && done < std::min(most, wire.size()); ++i) {
    REQUIRE(places[i].iov_len != 0);
    const std::size_t part = std::min({places[i].iov_len, most - done, wire.size() - done});
    std::memcpy(places[i].iov_base, wire.data() + done, part);
    done += part;
  }
  reader.arrived(done);
  return done;
}

}  // namespace

TEST_CASE("however a stream is cut, its frames and payloads are the same") {
  arm_fault_guard();
  for (unsigned seed = 1; seed <= 300; ++seed) {
    CAPTURE(seed);
    std::mt19937 random(seed);
    std::vector<Sent> frames(1 + random() % 12);
    Bytes wire;
    for (Sent& frame : frames) put_on_wire(frame = some_frame(random), wire);

    Reader reader;
    std::size_t at = 0, next = 0;
    bool in_payload = false;
    iovec cut[2];  // the payload goes to two pieces
    while (next < frames.size()) {
      const auto event = reader.next();
      if (event == Reader::Event::nothing) {
        REQUIRE(at < wire.size());
        at += feed(reader, std::span(wire).subspan(at), 1 + random() % (random() % 2 ? 100 : 100'000),
                   2 + random() % 7);
        continue;
      }
      Sent& frame = frames[next];
      if (event == Reader::Event::frame) {
        REQUIRE_FALSE(in_payload);
        REQUIRE(reader.frame().type == frame.header.type);
        REQUIRE(reader.frame().length == frame.header.length);
        if (frame.header.type == FrameType::message)
          CHECK(std::equal(frame.payload.begin(), frame.payload.end(), reader.content()));
        in_payload = frame.header.type == FrameType::write || frame.header.type == FrameType::data;
        if (in_payload) {
          const std::size_t half = frame.landed.size() / 3;
          cut[0] = {frame.landed.data(), half};
          cut[1] = {frame.landed.data() + half, frame.landed.size() - half};
          const PieceCursor where(cut, 2);
          frame.header.type == FrameType::write ? reader.store_in_region(where) : reader.land(where);
        }
      } else {
        REQUIRE(event == Reader::Event::payload);
        REQUIRE(std::exchange(in_payload, false));
        CHECK_FALSE(reader.faulted());
        CHECK(frame.landed == frame.payload);
      }
      if (!in_payload) ++next;
    }
    CHECK(reader.frames() == frames.size());
    CHECK(at == wire.size());
    CHECK(reader.next() == Reader::Event::nothing);
  }
}

TEST_CASE("a payload for memory that is not there is thrown away, and the next frame is read") {
  arm_fault_guard();
  for (const std::uint32_t size : {100u, 60'000u}) {
    for (const bool direct : {false, true}) {
      CAPTURE(size);
      CAPTURE(direct);
      void* const gone = ::mmap(nullptr, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
      REQUIRE(gone != MAP_FAILED);
      std::mt19937 random(1);
      const Sent put{{.type = FrameType::write, .flags = frame_flag::kLast, .length = size, .total = size},
                     random_bytes(random, size)};
      const Sent after{{.type = FrameType::ack, .total = 3}, {}};
      Bytes wire;
      put_on_wire(put, wire);
      Reader reader;
      // The header alone, or with all that the reader's own memory holds.
      std::size_t at = feed(reader, wire, direct ? kHeaderBytes : wire.size(), 2);
      REQUIRE((reader.next() == Reader::Event::frame) == (!direct || size > 8 * 1024));
      if (direct && size <= 8 * 1024) {  // such a frame comes as a whole
        at += feed(reader, std::span(wire).subspan(at), wire.size(), 2);
        REQUIRE(reader.next() == Reader::Event::frame);
      }
      reader.store_in_region(PieceCursor(static_cast<std::byte*>(gone)));
      CHECK(reader.in_region());
      auto event = reader.next();
      if (event == Reader::Event::nothing) {
        iovec places[2];
        reader.input(places, 2);
        CHECK(places[0].iov_base == gone);
        CHECK(reader.fault());  // as the kernel tells whoever reads into it
        CHECK_FALSE(reader.fault());
        CHECK_FALSE(reader.in_region());
        while (event == Reader::Event::nothing) {
          REQUIRE(at < wire.size());
          at += feed(reader, std::span(wire).subspan(at), wire.size(), 2);
          event = reader.next();
        }
      }
      CHECK(event == Reader::Event::payload);
      CHECK(reader.faulted());
      wire.clear();
      put_on_wire(after, wire);
      feed(reader, wire, wire.size(), 2);
      CHECK(reader.next() == Reader::Event::frame);
      CHECK(reader.frame().type == FrameType::ack);
      ::munmap(gone, size);
    }
  }
}

TEST_CASE("what no peer may send is told, and what came of a stream that is gone is forgotten") {
  Reader reader;
  Bytes wire(kHeaderBytes, std::byte{0xff});
  feed(reader, wire, wire.size(), 2);
  CHECK(reader.next() == Reader::Event::nonsense);
  reader.clear();
  CHECK(reader.next() == Reader::Event::nothing);
  std::mt19937 random(3);
  wire.clear();
  put_on_wire({{.type = FrameType::ack, .total = 1}, {}}, wire);
  feed(reader, wire, wire.size(), 2);
  CHECK(reader.next() == Reader::Event::frame);
  CHECK(reader.next() == Reader::Event::nothing);
}

TEST_CASE("while long payloads come, only headers go through the reader's own memory") {
  arm_fault_guard();
  for (const auto type : {FrameType::write, FrameType::data}) {
    CAPTURE(static_cast<int>(type));
    std::mt19937 random(5);
    Bytes wire;
    constexpr std::uint32_t kParts = 6, kLength = 40'000;
    const Bytes content = random_bytes(random, kLength);
    for (std::uint32_t i = 0; i < kParts; ++i) {
      const bool last = i + 1 == kParts;
      // The last part of a put is a short one, the end of an answer has no payload.
      const std::uint32_t length = !last ? kLength : type == FrameType::write ? 100 : 0;
      FrameHeader header{.type = type, .flags = last ? frame_flag::kLast : std::uint8_t{0}, .length = length};
      if (type == FrameType::write) header.total = std::uint64_t{kParts - 1} * kLength + 100;
      put_on_wire({header, Bytes(content.begin(), content.begin() + length)}, wire);
    }
    put_on_wire({{.type = FrameType::ack, .total = 1}, {}}, wire);
    Reader reader;
    Bytes landed(kLength);
    std::size_t at = 0, frames = 0, own = 0;
    while (frames <= kParts) {
      const auto event = reader.next();
      REQUIRE(event != Reader::Event::nonsense);
      if (event == Reader::Event::frame) {
        ++frames;
        if (reader.frame().type == type) reader.land(PieceCursor(landed.data()));
      } else if (event == Reader::Event::nothing) {
        iovec places[3];
        const std::size_t count = reader.input(places, 3);
        std::size_t room = 0;
        for (std::size_t i = 0; i < count; ++i) {
          const auto* place = static_cast<const std::byte*>(places[i].iov_base);
          const bool direct = place >= landed.data() && place < landed.data() + landed.size();
          if (!direct && frames > 0) own += std::min(places[i].iov_len, wire.size() - at - room);
          room += places[i].iov_len;
        }
        REQUIRE(at < wire.size());
        at += feed(reader, std::span(wire).subspan(at), wire.size(), 3);
      }
    }
    // What was shown beside the memory of the payloads: a header each, and what the first look brought.
    CHECK(own <= (kParts + 1) * 2 * kHeaderBytes + 100);
  }
}

TEST_CASE("a payload goes where its own frame says, and nowhere if nobody says it") {
  arm_fault_guard();
  std::mt19937 random(7);
  for (const std::uint32_t size : {64u, 30'000u}) {
    CAPTURE(size);
    const FrameHeader put{
        .type = FrameType::write, .flags = frame_flag::kLast, .length = size, .total = size};
    Bytes wire, landed(size);
    const Sent first{put, random_bytes(random, size)}, second{put, random_bytes(random, size)};
    put_on_wire(first, wire);
    put_on_wire(second, wire);
    put_on_wire(first, wire);
    put_on_wire({{.type = FrameType::ack, .total = 1}, {}}, wire);
    Reader reader;
    std::size_t at = 0;
    const auto next = [&] {
      for (;;) {
        const auto event = reader.next();
        if (event != Reader::Event::nothing) return event;
        REQUIRE(at < wire.size());
        at += feed(reader, std::span(wire).subspan(at), wire.size(), 2);
      }
    };
    CHECK(next() == Reader::Event::frame);
    reader.store_in_region(PieceCursor(landed.data()));
    CHECK(next() == Reader::Event::payload);
    CHECK(landed == first.payload);
    CHECK(next() == Reader::Event::frame);  // of the second, which nobody wants
    CHECK(next() == Reader::Event::payload);
    CHECK(landed == first.payload);
    CHECK(next() == Reader::Event::frame);
    Bytes part(size / 2);  // memory that is shorter than the payload
    const iovec shorter{part.data(), part.size()};
    reader.store_in_region(PieceCursor(&shorter, 1));
    CHECK(next() == Reader::Event::payload);
    CHECK(std::memcmp(part.data(), first.payload.data(), part.size()) == 0);
    CHECK(next() == Reader::Event::frame);
    CHECK(reader.frame().type == FrameType::ack);
  }
}

TEST_CASE("a reader that is cleared in the middle of a payload reads the next stream from its beginning") {
  arm_fault_guard();
  for (const std::uint32_t size : {6'000u, 30'000u}) {
    std::mt19937 random(9);
    // Not the last part: behind it, more of the same put would be looked for.
    const Sent put{{.type = FrameType::write, .length = size, .total = size + 1}, random_bytes(random, size)};
    Bytes wire, landed(size);
    put_on_wire(put, wire);
    wire.resize(wire.size() - 1);
    Reader reader;
    std::size_t at = feed(reader, wire, kHeaderBytes, 2);
    if (reader.next() == Reader::Event::frame) reader.store_in_region(PieceCursor(landed.data()));
    while (at < wire.size()) {
      at += feed(reader, std::span(wire).subspan(at), wire.size(), 2);
      reader.next();
    }
    reader.clear();
    CHECK_FALSE(reader.in_region());
    wire.clear();
    put_on_wire({{.type = FrameType::ack, .total = 5}, {}}, wire);
    iovec places[2];
    CHECK(reader.input(places, 2) == 1);
    CHECK(feed(reader, wire, wire.size(), 2) == wire.size());
    CHECK(reader.next() == Reader::Event::frame);
    CHECK(reader.frame().total == 5);
    CHECK(reader.next() == Reader::Event::nothing);
  }
}
