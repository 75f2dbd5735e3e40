#pragma once

#include <doctest/doctest.h>

#include <initializer_list>
#include <string>
#include <vector>

#include "base/bytes/wire.h"
#include "fabric/session/pipe.h"

// A peer that a test plays itself: it writes frames, and reads those of the session at the other end.
namespace fab::test {

inline std::string frame_of(const FrameHeader& header, const std::string& payload = "") {
  std::string frame(kHeaderBytes, 0);
  encode(header, reinterpret_cast<std::byte*>(frame.data()));
  return frame + payload;
}

inline std::string words(std::initializer_list<std::uint64_t> values) {
  std::string bytes;
  for (const std::uint64_t value : values) {
    const std::uint64_t word = to_little(value);
    bytes.append(reinterpret_cast<const char*>(&word), sizeof word);
  }
  return bytes;
}

// What a side makes of bytes that come to it.
inline Errc hears(Side& side, const std::string& bytes) {
  return hears(side.session, bytes, [] { return false; });
}
inline Errc hears(Side& side, const FrameHeader& header, const std::string& payload = "") {
  return hears(side, frame_of(header, payload));
}

struct Said {
  FrameHeader header;
  std::string payload;
};

// All that a side has to say, without what it gathers until its turn ends.
inline std::vector<Said> says_now(Side& side) {
  std::string bytes;
  iovec out[16];
  while (const std::size_t count = side.session.output(out, 16)) {
    std::size_t sent = 0;
    for (std::size_t i = 0; i < count; ++i) {
      bytes.append(static_cast<const char*>(out[i].iov_base), out[i].iov_len);
      sent += out[i].iov_len;
    }
    side.session.sent(sent);
  }
  std::vector<Said> all;
  for (std::size_t at = 0; at < bytes.size();) {
    Said& said = all.emplace_back();
    REQUIRE(at + kHeaderBytes <= bytes.size());
    REQUIRE(decode(reinterpret_cast<const std::byte*>(bytes.data()) + at, said.header));
    at += kHeaderBytes;
    REQUIRE(at + said.header.length <= bytes.size());
    said.payload = bytes.substr(at, said.header.length);
    at += said.header.length;
  }
  return all;
}
inline std::vector<Said> says(Side& side) {
  side.session.end_turn();
  return says_now(side);
}

// The only frame that it has to say.
inline Said says_one(Side& side) {
  const auto all = says(side);
  REQUIRE(all.size() == 1);
  return all.front();
}

inline bool operator==(const FrameHeader& a, const FrameHeader& b) { return frame_of(a) == frame_of(b); }

inline std::string text_of(const void* bytes, std::size_t length) {
  return {static_cast<const char*>(bytes), length};
}

}  // namespace fab::test
