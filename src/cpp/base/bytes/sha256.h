#pragma once

#include <array>
#include <cstdint>
#include <string_view>

namespace fab {

using Digest = std::array<std::uint8_t, 32>;

Digest sha256(std::string_view bytes) noexcept;                               // FIPS 180-4
Digest hmac_sha256(std::string_view key, std::string_view message) noexcept;  // RFC 2104
// Compares in a time that does not depend on where the difference is.
bool equal_in_constant_time(std::string_view a, std::string_view b) noexcept;
bool same(const Digest& a, const Digest& b) noexcept;  // likewise

}  // namespace fab
