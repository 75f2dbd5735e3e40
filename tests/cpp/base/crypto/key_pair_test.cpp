#include "base/crypto/key_pair.h"

#include <doctest/doctest.h>

#include <string>

using namespace fab;

TEST_CASE("a signature is good for its text and its key, and for no other") {
  REQUIRE_MESSAGE(libcrypto() != nullptr, std::string(libcrypto_problem()));
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

namespace {

// A signature that needs no private key: R is the neutral element and S is 0. It fits each text whose hash is
// a multiple of the order of the public key.
constexpr Signature kForged{1};

bool fits_in_libcrypto(const PublicKey& by, const std::string& text) {
  const LibCrypto& library = *libcrypto();
  const QuietLibCrypto quiet(library);
  const OwnKey key(library.new_raw_public_key(LibCrypto::kEd25519, nullptr, by.data(), by.size()));
  LibCrypto::Context* const context = library.new_context();
  const bool fits = library.verify_init(context, nullptr, nullptr, nullptr, key.get()) == 1 &&
                    library.verify(context, kForged.data(), kForged.size(),
                                   reinterpret_cast<const LibCrypto::Bytes*>(text.data()), text.size()) == 1;
  library.free_context(context);
  return fits;
}

// All bytes but the first and the last are alike.
PublicKey key_of(std::uint8_t first, std::uint8_t middle, std::uint8_t last) {
  PublicKey key;
  key.fill(middle);
  key.front() = first;
  key.back() = last;
  return key;
}

}  // namespace

TEST_CASE("a key of small order, under which anybody can sign, is refused in each of its encodings") {
  const PublicKey of_order_8 = {0x26, 0xe8, 0x95, 0x8f, 0xc2, 0xb2, 0x27, 0xb0, 0x45, 0xc3, 0xf4,
                                0x89, 0xf2, 0xef, 0x98, 0xf0, 0xd5, 0xdf, 0xac, 0x05, 0xd3, 0xc6,
                                0x33, 0x39, 0xb1, 0x38, 0x02, 0x88, 0x6d, 0x53, 0xfc, 0x05};
  PublicKey negative = of_order_8;  // p - y
  for (std::uint8_t& byte : negative) byte = static_cast<std::uint8_t>(0xff - byte);
  negative.front() = static_cast<std::uint8_t>(negative.front() - 0x12);
  negative.back() &= 0x7f;
  for (const PublicKey& y : {key_of(0, 0, 0), key_of(0xed, 0xff, 0x7f), key_of(1, 0, 0),
                             key_of(0xee, 0xff, 0x7f), key_of(0xec, 0xff, 0x7f), of_order_8, negative}) {
    for (const std::uint8_t sign : {std::uint8_t{0}, std::uint8_t{0x80}}) {
      PublicKey key = y;
      key.back() |= sign;
      CAPTURE(static_cast<int>(key.front()));
      CAPTURE(static_cast<int>(sign));
      CHECK(has_small_order(key));
      int fitting = 0;
      for (int number = 0; number < 200; ++number) {
        const std::string text = "text " + std::to_string(number);
        fitting += fits_in_libcrypto(key, text);
        CHECK_FALSE(verify(key, text, kForged));
      }
      CHECK(fitting > 0);  // or there would be nothing to refuse
    }
  }
  for (const PublicKey& other :
       {key_of(2, 0, 0), key_of(0xeb, 0xff, 0x7f), key_of(0xef, 0xff, 0x7f), KeyPair::make()->public_key()})
    CHECK_FALSE(has_small_order(other));
}
