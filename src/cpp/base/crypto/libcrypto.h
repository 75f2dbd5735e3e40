#pragma once

#include <cstddef>
#include <string_view>

#include "base/locks/fork_gate.h"

// The functions of the system's libcrypto that are used here. The library is opened on first use, so neither
// the build nor a machine needs it. Its headers are not needed either: what is declared here is the same in
// all versions from 1.1.1 on.
namespace fab {

struct LibCrypto {
  struct Key;      // EVP_PKEY
  struct Context;  // EVP_MD_CTX
  using Bytes = unsigned char;
  static constexpr int kEd25519 = 1087;  // EVP_PKEY_ED25519

  Key* (*new_raw_private_key)(int type, void* engine, const Bytes* key, std::size_t length) = nullptr;
  Key* (*new_raw_public_key)(int type, void* engine, const Bytes* key, std::size_t length) = nullptr;
  int (*get_raw_public_key)(const Key* key, Bytes* out, std::size_t* length) = nullptr;
  void (*free_key)(Key* key) = nullptr;
  Context* (*new_context)() = nullptr;
  void (*free_context)(Context* context) = nullptr;
  int (*sign_init)(Context*, void* key_context, const void* digest, void* engine, Key*) = nullptr;
  int (*sign)(Context*, Bytes* out, std::size_t* length, const Bytes* text,
              std::size_t text_length) = nullptr;
  int (*verify_init)(Context*, void* key_context, const void* digest, void* engine, Key*) = nullptr;
  int (*verify)(Context*, const Bytes* signature, std::size_t length, const Bytes* text,
                std::size_t text_length) = nullptr;
  const void* (*sha256)() = nullptr;
  int (*pbkdf2)(const char* password, int length, const Bytes* salt, int salt_length, int rounds,
                const void* digest, int out_length, Bytes* out) = nullptr;
  int (*set_error_mark)() = nullptr;
  int (*pop_errors_to_mark)() = nullptr;
};

// Null where the system has no libcrypto that can make Ed25519 signatures; libcrypto_problem() says why.
const LibCrypto* libcrypto() noexcept;
// One clause; empty where there is a library.
std::string_view libcrypto_problem() noexcept;

// Around calls of the library. It keeps errors per thread, and other users of it in the process shall not
// find ours there; and it has locks, which a child of fork() shall not find locked.
class QuietLibCrypto {
 public:
  explicit QuietLibCrypto(const LibCrypto& library) : library_(library) { library_.set_error_mark(); }
  ~QuietLibCrypto() { library_.pop_errors_to_mark(); }
  QuietLibCrypto(const QuietLibCrypto&) = delete;
  QuietLibCrypto& operator=(const QuietLibCrypto&) = delete;

 private:
  const ForkGate gate_;
  const LibCrypto& library_;
};

}  // namespace fab
