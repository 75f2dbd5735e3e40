#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "fabric/types/types.h"

namespace fab {

// Keys as bytes (fi_mr_raw_attr(3)). Where every peer has to map a key before it uses it (MRMode RAW), they
// are kRawKeyBytes long, do not read as the key, and carry a checksum; elsewhere they are the key itself,
// little-endian.
inline constexpr std::size_t kRawKeyBytes = 16;

// Bytes of a key in a domain of these modes, whose keys have `key_size` bytes.
constexpr std::size_t raw_key_size(std::uint32_t modes, std::uint32_t key_size) noexcept {
  return modes & mr_mode::kRaw ? kRawKeyBytes : key_size;
}

std::string encode_raw_key(std::uint64_t key, std::size_t size);
// No value for bytes that encode_raw_key() cannot have made.
std::optional<std::uint64_t> decode_raw_key(std::string_view bytes) noexcept;

}  // namespace fab
