// Systems without OpenSSL, with one that makes no Ed25519 keys, and one that runs out of memory.

#include <dlfcn.h>
#include <doctest/doctest.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <new>
#include <string>
#include <string_view>

#include "base/crypto/key_pair.h"
#include "base/crypto/libcrypto.h"
#include "base/crypto/libssl.h"
#include "base/crypto/stretched_key.h"
#include "base/crypto/tls_records.h"
#include "child.h"

using namespace fab;
using test::status_of_child;

namespace {

const char* missing_library = nullptr;   // libraries whose names begin so are not there
const char* missing_function = nullptr;  // a function that no library has
const char* failing_function = nullptr;  // one that is there, and fails

template <class Function>
struct Failing;
template <class Result, class... Arguments>
struct Failing<Result (*)(Arguments...)> {
  static Result call(Arguments...) { return Result{}; }
};

template <class Library, class Result, class... Arguments>
struct Failing<Result (*Library::*)(Arguments...)> : Failing<Result (*)(Arguments...)> {};

template <auto kMember>
void* failing() {
  return reinterpret_cast<void*>(&Failing<decltype(kMember)>::call);
}

void* failing_instead_of(const std::string& name) {
  if (name == "EVP_PKEY_new_raw_private_key") return failing<&LibCrypto::new_raw_private_key>();
  if (name == "EVP_PKEY_new_raw_public_key") return failing<&LibCrypto::new_raw_public_key>();
  if (name == "EVP_PKEY_get_raw_public_key") return failing<&LibCrypto::get_raw_public_key>();
  if (name == "EVP_MD_CTX_new") return failing<&LibCrypto::new_context>();
  if (name == "EVP_DigestSignInit") return failing<&LibCrypto::sign_init>();
  if (name == "EVP_DigestSign") return failing<&LibCrypto::sign>();
  if (name == "EVP_DigestVerifyInit") return failing<&LibCrypto::verify_init>();
  if (name == "EVP_CIPHER_CTX_get_params") return failing<&LibSsl::get_of_cipher>();
  if (name == "EVP_CIPHER_CTX_set_params") return failing<&LibSsl::set_of_cipher>();
  if (name == "PKCS5_PBKDF2_HMAC") return failing<&LibCrypto::pbkdf2>();
  FAIL("no stand-in for " << name);
  return nullptr;
}

bool holds(std::string_view text, const char* part) { return text.find(part) != std::string_view::npos; }

template <class Call>
bool lacks_memory(const Call& call) {
  try {
    call();
  } catch (const std::bad_alloc&) {
    return true;
  }
  return false;
}

}  // namespace

extern "C" {
void* __real_dlopen(const char* name, int flags);
void* __real_dlsym(void* library, const char* name);

void* __wrap_dlopen(const char* name, int flags) {
  const bool missing =
      missing_library && std::strncmp(name, missing_library, std::strlen(missing_library)) == 0;
  return missing ? nullptr : __real_dlopen(name, flags);
}
// The address sanitizer's own start calls it, too.
__attribute__((no_sanitize("address", "undefined"))) void* __wrap_dlsym(void* library, const char* name) {
  if (missing_function && std::strcmp(name, missing_function) == 0) return nullptr;
  if (failing_function && std::strcmp(name, failing_function) == 0) return failing_instead_of(name);
  return __real_dlsym(library, name);
}
}

TEST_CASE(
    "without a libcrypto there are no key pairs, nothing verifies, and encryption says what to install") {
  CHECK(status_of_child([] {
          missing_library = "libcrypto";
          return !libcrypto() && holds(libcrypto_problem(), "neither libcrypto.so.3") && !KeyPair::make() &&
                 !verify(PublicKey{3}, "text", {}) && !libssl() && !libssl_problem().empty();
        }) == 0);
  CHECK(status_of_child([] {
          missing_library = "libssl";
          return libcrypto() && KeyPair::make() && !libssl() && holds(libssl_problem(), "libssl");
        }) == 0);
}

TEST_CASE("a libcrypto that lacks a function, or that refuses this kind of key, is named") {
  for (const char* const function : {"EVP_PKEY_new_raw_private_key", "ERR_pop_to_mark"}) {
    CHECK(status_of_child([&] {
            missing_function = function;
            return !libcrypto() && holds(libcrypto_problem(), "makes no Ed25519 keys") && !KeyPair::make();
          }) == 0);
  }
  CHECK(status_of_child([] {
          failing_function = "EVP_PKEY_new_raw_private_key";
          return !libcrypto() && holds(libcrypto_problem(), "makes no Ed25519 keys");
        }) == 0);
}

TEST_CASE("a key is stretched to the same with and without a libcrypto, so such peers know each other") {
  // Each child has a library of its own state; what they write is compared here, where nothing was opened
  // yet.
  int ends[2];
  REQUIRE(::pipe(ends) == 0);
  const auto stretched_in_child = [&](const char* missing, const char* fails) {
    CHECK(status_of_child([&] {
            missing_library = missing;
            failing_function = fails;
            const std::string key = stretched_key("a key of both sides");
            return key == stretched_key("a key of both sides") &&
                   ::write(ends[1], key.data(), key.size()) == static_cast<ssize_t>(key.size());
          }) == 0);
    char key[33];
    const ssize_t size = ::read(ends[0], key, sizeof key);
    return std::string(key, static_cast<std::size_t>(std::max<ssize_t>(size, 0)));
  };
  const std::string usual = stretched_in_child(nullptr, nullptr);
  CHECK(usual.size() == 32);
  CHECK(stretched_in_child("libcrypto", nullptr) == usual);
  CHECK(stretched_in_child(nullptr, "PKCS5_PBKDF2_HMAC") == usual);
  ::close(ends[0]);
  ::close(ends[1]);
}

TEST_CASE("records are sealed and opened where tags cannot be asked for in the quick way") {
  // Old libraries do not have it, and it fails for ciphers of an engine.
  for (const char* const function : {"EVP_CIPHER_CTX_get_params", "EVP_CIPHER_CTX_set_params"}) {
    for (const char** const how : {&missing_function, &failing_function}) {
      CAPTURE(std::string(function));
      CHECK(status_of_child([&] {
              *how = function;
              RecordKey ours(RecordKey::Use::sealing, Digest{1}), theirs(RecordKey::Use::opening, Digest{1});
              std::byte record[kRecordOverhead + 4] = {};
              return ours.seal(record, 4, RecordType::data) == sizeof record &&
                     theirs.open(record, sizeof record).has_value();
            }) == 0);
    }
  }
}

TEST_CASE("signatures for which the library has no memory are a lack of memory, and no signature verifies") {
  for (const char* const function : {"EVP_MD_CTX_new", "EVP_DigestSignInit", "EVP_DigestSign"}) {
    CAPTURE(std::string(function));
    CHECK(status_of_child([&] {
            failing_function = function;
            const auto pair = KeyPair::make();
            return pair && lacks_memory([&] { static_cast<void>(pair->sign("text")); });
          }) == 0);
  }
  CHECK(status_of_child([] {
          failing_function = "EVP_PKEY_get_raw_public_key";
          return lacks_memory(KeyPair::make);
        }) == 0);
  for (const char* const function : {"EVP_PKEY_new_raw_public_key", "EVP_DigestVerifyInit"}) {
    CAPTURE(std::string(function));
    CHECK(status_of_child([&] {
            failing_function = function;
            const auto pair = KeyPair::make();
            return !verify(pair->public_key(), "text", pair->sign("text"));
          }) == 0);
  }
}
