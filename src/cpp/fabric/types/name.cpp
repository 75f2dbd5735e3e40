#include "fabric/types/name.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "base/bytes/wire.h"
#include "fabric/types/error.h"
#include "fabric/types/versions.h"

namespace fab {
namespace {

constexpr std::uint32_t kNameMagic = 0x316E6670;    // "pfn1"
constexpr std::uint32_t kRegionMagic = 0x31726670;  // "pfr1"
constexpr std::size_t kMaxParts = 4096;
constexpr std::size_t kMaxBytes = 1 << 20;

// magic, version, length of the body, CRC of the body, body
std::string seal(std::uint32_t magic, std::uint16_t version, const std::string& body) {
  WireWriter out;
  out.put(magic).put(version).put_bytes(body).put(crc32(body));
  return out.take();
}

std::string_view unseal(std::uint32_t magic, std::uint16_t ours, std::string_view bytes, const char* what) {
  const auto refuse = [&](const std::string& why) -> std::string_view {
    throw Error(Errc::invalid,
                std::string(what) + " of " + std::to_string(bytes.size()) + " bytes is not valid: " + why);
  };
  if (bytes.size() > kMaxBytes) return refuse("longer than 1 MiB");
  WireReader in(bytes);
  if (in.get<std::uint32_t>() != magic) return refuse("it does not start like one");
  if (const auto version = in.get<std::uint16_t>(); version != ours)
    return refuse("version " + std::to_string(version) + ", this library reads version " +
                  std::to_string(ours));
  const auto body = in.get_bytes();
  const auto sum = in.get<std::uint32_t>();
  if (!in.at_end()) return refuse("its length does not match its contents");
  if (sum != crc32(body)) return refuse("its checksum is wrong");
  return body;
}

void put_parts(WireWriter& out, const std::vector<Part>& parts) {
  out.put(static_cast<std::uint16_t>(parts.size()));
  for (const Part& part : parts) out.put_bytes(part.link).put(part.context).put_bytes(part.bytes);
}

template <class P>
std::vector<P> get_parts(WireReader& in, std::vector<P> parts = {}) {
  const auto count = in.get<std::uint16_t>();
  for (std::size_t i = 0; i < count && i < kMaxParts && in.ok(); ++i) {
    P part;
    part.link = in.get_bytes();
    part.context = in.get<std::uint16_t>();
    part.bytes = in.get_bytes();
    if (in.ok()) parts.push_back(std::move(part));
  }
  return parts;
}

template <class P>
std::vector<P> parts_of_name(std::string_view bytes, std::vector<P> parts = {}) {
  WireReader in(unseal(kNameMagic, versions::kName, bytes, "an address"));
  parts = get_parts<P>(in, std::move(parts));
  if (!in.at_end() || parts.empty())
    throw Error(Errc::invalid, "an address is not valid: its parts do not fit its length");
  return parts;
}

}  // namespace

// Takes eight bytes at a time: kTable[k] is the effect of a byte that k more bytes follow.
std::uint32_t crc32(std::string_view bytes) noexcept {
  static constexpr auto kTable = [] {
    std::array<std::array<std::uint32_t, 256>, 8> t{};
    for (std::uint32_t i = 0; i < 256; ++i) {
      std::uint32_t value = i;
      for (int bit = 0; bit < 8; ++bit) value = (value >> 1) ^ ((value & 1) ? 0xEDB88320u : 0u);
      t[0][i] = value;
    }
    for (std::size_t k = 1; k < t.size(); ++k)
      for (std::size_t i = 0; i < 256; ++i) t[k][i] = (t[k - 1][i] >> 8) ^ t[0][t[k - 1][i] & 0xff];
    return t;
  }();
  std::uint32_t sum = ~0u;
  for (; bytes.size() >= 8; bytes.remove_prefix(8)) {
    std::uint64_t word;
    std::memcpy(&word, bytes.data(), 8);
    word = to_little(word) ^ sum;
    sum = 0;
    for (std::size_t k = 0; k < 8; ++k) sum ^= kTable[7 - k][(word >> (8 * k)) & 0xff];
  }
  for (const char c : bytes) sum = (sum >> 8) ^ kTable[0][(sum ^ static_cast<unsigned char>(c)) & 0xff];
  return ~sum;
}

std::string other_version(std::string_view link, std::uint64_t found, std::uint64_t ours) {
  return std::string(link) + " in version " + std::to_string(found) + " (this library has version " +
         std::to_string(ours) + ")";
}

const Part* Name::find(std::string_view link, std::uint16_t context) const noexcept {
  for (const Part& part : parts)
    if (part.link == link && part.context == context) return &part;
  return nullptr;
}

std::uint16_t Name::contexts() const noexcept {
  std::uint16_t count = 0;
  for (const Part& part : parts) count = std::max(count, static_cast<std::uint16_t>(part.context + 1));
  return count;
}

std::string Name::encode() const {
  WireWriter body;
  put_parts(body, parts);
  return seal(kNameMagic, versions::kName, body.bytes());
}

Name Name::decode(std::string_view bytes) { return {parts_of_name<Part>(bytes)}; }

void Name::decode(std::string_view bytes, std::vector<PartView>& parts) {
  parts.clear();
  parts = parts_of_name<PartView>(bytes, std::move(parts));
}

std::string RemoteRegion::encode() const {
  WireWriter body;
  body.put(key).put(base).put(length).put(access);
  put_parts(body, parts);
  return seal(kRegionMagic, versions::kRemoteRegion, body.bytes());
}

RemoteRegion RemoteRegion::decode(std::string_view bytes) {
  WireReader in(unseal(kRegionMagic, versions::kRemoteRegion, bytes, "a remote region"));
  RemoteRegion region;
  region.key = in.get<std::uint64_t>();
  region.base = in.get<std::uint64_t>();
  region.length = in.get<std::uint64_t>();
  region.access = in.get<std::uint32_t>();
  region.parts = get_parts<Part>(in);
  if (!in.at_end() || region.base + region.length < region.base)
    throw Error(Errc::invalid, "a remote region is not valid: its fields do not fit");
  return region;
}

}  // namespace fab
