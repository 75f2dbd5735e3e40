#pragma once

#include <string>
#include <string_view>

#include "base/bytes/sha256.h"

namespace fab {

// What is used of an authorization key in place of the key itself: 32 bytes that depend on all of its bytes
// and on its length, so that a key with zero bytes behind it is another key. They take about 20 ms to compute
// once per process and key (the last thousand or so), which makes guesses at a weak key from a proof
// expensive. Empty for an empty key. Safe from any thread.
std::string stretched_key(const std::string& key);

// PBKDF2 with HMAC-SHA-256 (RFC 8018), its first block: what a libcrypto does, where there is none.
Digest pbkdf2_sha256(std::string_view password, std::string_view salt, int rounds);

}  // namespace fab
