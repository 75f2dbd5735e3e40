#pragma once

#include <doctest/doctest.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "base/memory/mapping.h"
#include "fabric/session/frames/output.h"

// What a session has to send, and the wire that it goes to.
namespace fab::test {

using Lane = SessionOutput::Lane;
using Fault = SessionOutput::Fault;

inline std::vector<std::byte> counted_bytes(std::size_t size) {
  std::vector<std::byte> bytes(size);
  for (std::size_t i = 0; i < size; ++i) bytes[i] = static_cast<std::byte>(i * 7 + i / 251);
  return bytes;
}

inline void take_away(const Mapping& memory) {
  REQUIRE(::mprotect(memory.data(), memory.size(), PROT_NONE) == 0);
}

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

}  // namespace fab::test
