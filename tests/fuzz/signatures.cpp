#include "signatures.h"

#include <cstdint>
#include <cstring>

#include "base/crypto/libcrypto.h"

// The linker (--wrap) leads all calls of fab::libcrypto() here.
extern "C" {
const fab::LibCrypto* __real__ZN3fab9libcryptoEv();
const fab::LibCrypto* __wrap__ZN3fab9libcryptoEv();
}

namespace fab {

// What LibCrypto leaves open.
struct LibCrypto::Key {
  Bytes bytes[32];  // public and private key are the same
};
struct LibCrypto::Context {
  const Key* key;
};

namespace {

using Bytes = LibCrypto::Bytes;
bool real = true;

// FNV-1a over key and text, spread over the signature.
void make_signature(const LibCrypto::Key& key, const Bytes* text, std::size_t length, Bytes (&out)[64]) {
  std::uint64_t sum = 0xcbf29ce484222325;
  const auto take = [&sum](const Bytes* bytes, std::size_t count) {
    for (std::size_t i = 0; i < count; ++i) sum = (sum ^ bytes[i]) * 0x100000001b3;
  };
  take(key.bytes, sizeof key.bytes);
  take(text, length);
  for (std::size_t i = 0; i < sizeof out; i += sizeof sum) {
    std::memcpy(out + i, &sum, sizeof sum);
    sum = sum * 0x100000001b3 + 1;
  }
}

LibCrypto::Key* key_of(int, void*, const Bytes* bytes, std::size_t length) {
  auto* const made = new LibCrypto::Key;
  std::memcpy(made->bytes, bytes, length);
  return made;
}

int use_key(LibCrypto::Context* context, void*, const void*, void*, LibCrypto::Key* key) {
  context->key = key;
  return 1;
}

const LibCrypto& stand_in() {
  static const LibCrypto made = [] {
    LibCrypto all = *__real__ZN3fab9libcryptoEv();  // stretched keys are made once
    all.new_raw_private_key = all.new_raw_public_key = key_of;
    all.get_raw_public_key = [](const LibCrypto::Key* key, Bytes* out, std::size_t* length) {
      std::memcpy(out, key->bytes, *length);
      return 1;
    };
    all.free_key = [](LibCrypto::Key* key) { delete key; };
    all.new_context = [] { return new LibCrypto::Context{}; };
    all.free_context = [](LibCrypto::Context* context) { delete context; };
    all.sign_init = all.verify_init = use_key;
    all.sign = [](LibCrypto::Context* context, Bytes* out, std::size_t*, const Bytes* text,
                  std::size_t length) {
      Bytes signature[64];
      make_signature(*context->key, text, length, signature);
      std::memcpy(out, signature, sizeof signature);
      return 1;
    };
    all.verify = [](LibCrypto::Context* context, const Bytes* signature, std::size_t, const Bytes* text,
                    std::size_t length) {
      Bytes right[64];
      make_signature(*context->key, text, length, right);
      return std::memcmp(signature, right, sizeof right) == 0 ? 1 : 0;
    };
    all.set_error_mark = all.pop_errors_to_mark = [] { return 1; };
    return all;
  }();
  return made;
}

}  // namespace

namespace test {

bool signatures_are_real() noexcept { return real; }
void signatures_are_real(bool wanted) noexcept { real = wanted; }

}  // namespace test
}  // namespace fab

const fab::LibCrypto* __wrap__ZN3fab9libcryptoEv() {
  const fab::LibCrypto* const system = __real__ZN3fab9libcryptoEv();
  return fab::real || !system ? system : &fab::stand_in();
}
