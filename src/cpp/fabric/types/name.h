#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace fab {

// What one link contributes to a name or to a remote region. `link` is provider and ordinal ("tcp.0"), not a
// device name: devices are named differently on different hosts.
struct Part {
  std::string link;
  std::uint16_t context = 0;  // index of the context within the endpoint
  std::string bytes;
  friend bool operator==(const Part&, const Part&) = default;
};

// A Part within the bytes of an encoded name.
struct PartView {
  std::string_view link;
  std::uint16_t context = 0;
  std::string_view bytes;
  bool operator==(const Part& part) const noexcept {
    return link == part.link && context == part.context && bytes == part.bytes;
  }
};

// What the links of a domain say of a part. One that none of them can use is kept with the address and left
// alone: another kind of link, or a version that this library does not know, hinders no other part.
struct PartVerdict {
  bool usable = false;
  std::string found;    // of a part that one of them knows as its own and cannot use: its version, in words
  bool proven = false;  // who calls under this part has proven that it is its own
};
// Throws Error(invalid) for a part of a known version that cannot be read.
using PartCheck = std::function<PartVerdict(const PartView&)>;
// "tcp.0 in version 7 (this library has version 1)"
std::string other_version(std::string_view link, std::uint64_t found, std::uint64_t ours);

// What a peer needs to reach an endpoint: one part per link and context. It is encoded with magic, version,
// total length and checksum; decode() takes bytes that are not trusted.
struct Name {
  std::vector<Part> parts;

  const Part* find(std::string_view link, std::uint16_t context) const noexcept;
  std::uint16_t contexts() const noexcept;  // 1 + the highest index, 0 if empty
  std::string encode() const;
  static Name decode(std::string_view bytes);  // throws Error(invalid)
  // Decodes without copying; the views are valid as long as `bytes`.
  static void decode(std::string_view bytes, std::vector<PartView>& parts);
};

// What a peer needs to use a region, and nothing more. The key is valid on every link unless a part says
// otherwise.
struct RemoteRegion {
  std::uint64_t key = 0;
  std::uint64_t base = 0;    // what peers add to an offset: 0, or the address under VIRT_ADDR
  std::uint64_t length = 0;  // bytes
  std::uint32_t access = 0;
  std::vector<Part> parts;

  std::string encode() const;
  static RemoteRegion decode(std::string_view bytes);  // throws Error(invalid)
};

std::uint32_t crc32(std::string_view bytes) noexcept;

}  // namespace fab
