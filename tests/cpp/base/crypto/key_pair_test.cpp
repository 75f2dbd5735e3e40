#include "base/crypto/key_pair.h"

#include <doctest/doctest.h>

#include <string>

using namespace fab;

TEST_CASE("a signature is good for its text and its key, and for no other") {
  REQUIRE_MESSAGE(libcrypto() != nullptr, libcrypto_problem());
  CHECK(libcrypto_problem().empty());
  const auto pair = KeyPair::make(), other = KeyPair::make();
  CHECK(pair->public_key() != other->public_key());
  CHECK(pair->public_key() != kNoPublicKey);
  for (const std::string text :
       {"", "text", "a longer text, which is longer than any block of a hash has bytes in it"}) {
    const Signature signature = pair->sign(text);
    CHECK(verify(pair->public_key(), text, signature));
    CHECK_FALSE(verify(other->public_key(), text, signature));
    CHECK_FALSE(verify(kNoPublicKey, text, signature));
    CHECK_FALSE(verify(pair->public_key(), text + " ", signature));
    for (std::size_t i = 0; i < signature.size(); ++i) {
      Signature wrong = signature;
      wrong[i] ^= 1;
      CHECK_FALSE(verify(pair->public_key(), text, wrong));
    }
    CHECK_FALSE(verify(pair->public_key(), text, {}));
  }
}

TEST_CASE("a signature is what RFC 8032 says") {
  // Test 2 of its section 7.1.
  const auto bytes = [](const std::string& hex, auto out) {
    for (std::size_t i = 0; i < out.size(); ++i)
      out[i] = static_cast<std::uint8_t>(std::stoul(hex.substr(2 * i, 2), nullptr, 16));
    return out;
  };
  const auto key = bytes("3d4017c3e843895a92b70aa74d1b7ebc9c982ccf2ec4968cc0cd55f12af4660c", PublicKey{});
  const auto signature = bytes(
      "92a009a9f0d4cab8720e820b5f642540a2b27b5416503f8fb3762223ebdb69da"
      "085ac1e43e15996e458f3613d0f11d8c387b2eaeb4302aeeb00d291612bb0c00",
      Signature{});
  CHECK(verify(key, "\x72", signature));
  CHECK_FALSE(verify(key, "\x73", signature));
}
