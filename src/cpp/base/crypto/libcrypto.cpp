#include "base/crypto/libcrypto.h"

#include "base/crypto/opened_library.h"
#include "base/locks/fork_gate.h"

namespace fab {
namespace {

bool find_all(FunctionFinder& load, LibCrypto& all) {
  load("EVP_PKEY_new_raw_private_key", all.new_raw_private_key);
  load("EVP_PKEY_new_raw_public_key", all.new_raw_public_key);
  load("EVP_PKEY_get_raw_public_key", all.get_raw_public_key);
  load("EVP_PKEY_free", all.free_key);
  load("EVP_MD_CTX_new", all.new_context);
  load("EVP_MD_CTX_free", all.free_context);
  load("EVP_DigestSignInit", all.sign_init);
  load("EVP_DigestSign", all.sign);
  load("EVP_DigestVerifyInit", all.verify_init);
  load("EVP_DigestVerify", all.verify);
  load("EVP_sha256", all.sha256);
  load("PKCS5_PBKDF2_HMAC", all.pbkdf2);
  load("ERR_set_mark", all.set_error_mark);
  load("ERR_pop_to_mark", all.pop_errors_to_mark);
  return load.complete();
}

// A library in a restricted mode may have all functions and yet refuse this kind of key.
bool makes_keys(const LibCrypto& library) {
  const QuietLibCrypto quiet(library);
  const LibCrypto::Bytes seed[32] = {1};
  LibCrypto::Key* const key = library.new_raw_private_key(LibCrypto::kEd25519, nullptr, seed, sizeof seed);
  if (key) library.free_key(key);
  return key != nullptr;
}

using OpenedCrypto = OpenedLibrary<LibCrypto>;

OpenedCrypto open_libcrypto() {
  static constexpr LibraryName kNames[] = {{"libcrypto.so.3", "libcrypto.so.3 makes no Ed25519 keys"},
                                           {"libcrypto.so.1.1", "libcrypto.so.1.1 makes no Ed25519 keys"}};
  return open_first_of<LibCrypto>(
      kNames, "neither libcrypto.so.3 nor libcrypto.so.1.1 can be opened (Debian: libssl3)",
      [](FunctionFinder& load, LibCrypto& all) { return find_all(load, all) && makes_keys(all); });
}

const OpenedCrypto& opened_crypto() {
  static constinit MadeOnce<const OpenedCrypto> opened;
  return opened.get(open_libcrypto);
}

}  // namespace

const LibCrypto* libcrypto() noexcept { return opened_crypto().get(); }

std::string_view libcrypto_problem() noexcept { return opened_crypto().problem; }

}  // namespace fab
