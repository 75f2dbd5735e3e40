#include "fabric/memory/raw_key.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "base/bytes/sha256.h"
#include "base/bytes/wire.h"

namespace fab {
namespace {

constexpr std::uint64_t kVeil = 0xA5C3'96E7'5A3C'691Eull;

std::uint64_t checksum(std::uint64_t key) noexcept {
  constexpr std::string_view kLabel = "pyfab raw key ";
  std::array<char, kLabel.size() + sizeof key> text;
  std::memcpy(text.data(), kLabel.data(), kLabel.size());
  std::memcpy(text.data() + kLabel.size(), &key, sizeof key);
  const Digest digest = sha256({text.data(), text.size()});
  std::uint64_t sum;
  std::memcpy(&sum, digest.data(), sizeof sum);
  return sum;
}

}  // namespace

std::string encode_raw_key(std::uint64_t key, std::size_t size) {
  WireWriter out;
  if (size != kRawKeyBytes) return out.put(key).take().substr(0, size);
  const std::uint64_t sum = checksum(key);
  return out.put(key ^ kVeil ^ sum).put(sum).take();
}

std::optional<std::uint64_t> decode_raw_key(std::string_view bytes) noexcept {
  WireReader in(bytes);
  if (bytes.size() == kRawKeyBytes) {
    const auto veiled = in.get<std::uint64_t>(), sum = in.get<std::uint64_t>();
    const std::uint64_t key = veiled ^ kVeil ^ sum;
    if (checksum(key) != sum) return std::nullopt;
    return key;
  }
  if (bytes.size() < 4 || bytes.size() > 8) return std::nullopt;
  std::uint64_t key = 0;
  for (std::size_t i = bytes.size(); i-- > 0;) key = key << 8 | static_cast<std::uint8_t>(bytes[i]);
  return key;
}

}  // namespace fab
