#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

// The functions of the system's libssl that are used here, and those of the libcrypto that belongs to it. The
// library is opened on first use, so neither the build nor a machine needs it or its headers: what is
// declared here is the same in all versions from 1.1.1 on.
namespace fab {

struct LibSsl {
  struct Method;     // SSL_METHOD
  struct Settings;   // SSL_CTX
  struct Stream;     // SSL
  struct Session;    // SSL_SESSION
  struct Suite;      // SSL_CIPHER
  struct Digest;     // EVP_MD
  struct Bio;        // BIO
  struct BioMethod;  // BIO_METHOD
  struct Cipher;     // EVP_CIPHER_CTX
  using Bytes = unsigned char;
  struct Parameter {  // OSSL_PARAM
    const char* name;
    unsigned int type;
    void* value;
    std::size_t size, found;
  };

  // Values of macros.
  static constexpr int kTls13 = 0x0304;                                        // TLS1_3_VERSION
  static constexpr int kSetCacheMode = 44, kSetLeast = 123, kSetMost = 124;    // SSL_CTRL_*
  static constexpr int kVerifyPeer = 1;                                        // SSL_VERIFY_PEER
  static constexpr int kSourceSink = 0x400;                                    // BIO_TYPE_SOURCE_SINK
  static constexpr int kRead = 0x01, kShouldRetry = 0x08, kRetryFlags = 0x0f;  // BIO_FLAGS_*
  static constexpr int kFlush = 11;                                            // BIO_CTRL_FLUSH
  static constexpr int kGetTag = 0x10, kSetTag = 0x11;                         // EVP_CTRL_AEAD_*
  static constexpr unsigned int kOctets = 5;                                   // OSSL_PARAM_OCTET_STRING

  const Method* (*method)() = nullptr;
  Settings* (*new_settings)(const Method*) = nullptr;
  long (*control)(Settings*, int command, long number, void*) = nullptr;
  int (*set_cipher_suites)(Settings*, const char*) = nullptr;
  int (*set_tickets)(Settings*, std::size_t) = nullptr;
  // Of a caller: which key it uses, and under what name. The callee of `find` looks a key up by its name.
  void (*on_use)(Settings*, int (*)(Stream*, const Digest*, const Bytes** name, std::size_t* length,
                                    Session**)) = nullptr;
  void (*on_find)(Settings*, int (*)(Stream*, const Bytes* name, std::size_t length, Session**)) = nullptr;

  Stream* (*new_stream)(Settings*) = nullptr;
  void (*free_stream)(Stream*) = nullptr;
  void (*set_bio)(Stream*, Bio* in, Bio* out) = nullptr;
  int (*set_data)(Stream*, int index, void*) = nullptr;
  void* (*get_data)(const Stream*, int index) = nullptr;
  // Tells secrets of a connection, as lines of text, once they are agreed on.
  void (*on_secret)(Settings*, void (*)(const Stream*, const char* line)) = nullptr;
  void (*set_verify)(Stream*, int mode, void* callback) = nullptr;
  void (*calls)(Stream*) = nullptr;
  void (*answers)(Stream*) = nullptr;
  int (*handshake)(Stream*) = nullptr;
  int (*key_was_used)(const Stream*) = nullptr;  // SSL_session_reused
  int (*export_key)(Stream*, Bytes* out, std::size_t length, const char* label, std::size_t label_length,
                    const Bytes* context, std::size_t context_length, int use_context) = nullptr;

  const Suite* (*find_suite)(Stream*, const Bytes*) = nullptr;
  Session* (*new_session)() = nullptr;
  void (*free_session)(Session*) = nullptr;
  int (*set_session_key)(Session*, const Bytes*, std::size_t) = nullptr;
  int (*set_session_suite)(Session*, const Suite*) = nullptr;
  int (*set_session_version)(Session*, int) = nullptr;

  BioMethod* (*new_bio_method)(int type, const char* name) = nullptr;
  int (*set_bio_write)(BioMethod*, int (*)(Bio*, const char*, int)) = nullptr;
  int (*set_bio_read)(BioMethod*, int (*)(Bio*, char*, int)) = nullptr;
  int (*set_bio_control)(BioMethod*, long (*)(Bio*, int, long, void*)) = nullptr;
  Bio* (*new_bio)(const BioMethod*) = nullptr;
  void (*set_bio_ready)(Bio*, int) = nullptr;
  void (*set_bio_data)(Bio*, void*) = nullptr;
  void* (*get_bio_data)(Bio*) = nullptr;
  void (*set_bio_flags)(Bio*, int) = nullptr;
  void (*clear_bio_flags)(Bio*, int) = nullptr;
  int (*test_bio_flags)(const Bio*, int) = nullptr;

  const void* (*aes_128_gcm)() = nullptr;
  Cipher* (*new_cipher)() = nullptr;
  void (*free_cipher)(Cipher*) = nullptr;
  int (*init_cipher)(Cipher*, const void* kind, void* engine, const Bytes* key, const Bytes* nonce,
                     int seals) = nullptr;
  int (*update_cipher)(Cipher*, Bytes* out, int* written, const Bytes* in, int count) = nullptr;
  int (*finish_cipher)(Cipher*, Bytes* out, int* written) = nullptr;
  int (*control_cipher)(Cipher*, int command, int number, void*) = nullptr;
  // What control_cipher() takes longer for. Null before 3.0; ciphers of an engine do not have them.
  int (*get_of_cipher)(Cipher*, Parameter*) = nullptr;
  int (*set_of_cipher)(Cipher*, const Parameter*) = nullptr;

  unsigned long (*last_error)() = nullptr;
  int (*set_error_mark)() = nullptr;
  int (*pop_errors_to_mark)() = nullptr;
};

// Null where the system has no libssl that speaks TLS 1.3; libssl_problem() says why.
const LibSsl* libssl() noexcept;
// One clause; empty where there is a library.
std::string_view libssl_problem() noexcept;

// Around calls of the library, which keeps errors per thread: other users of it shall not find ours there.
// Records are sealed and opened without it, which takes time: a wrong record leaves no error there.
class QuietLibSsl {
 public:
  QuietLibSsl() { libssl()->set_error_mark(); }
  ~QuietLibSsl() { libssl()->pop_errors_to_mark(); }
  QuietLibSsl(const QuietLibSsl&) = delete;
  QuietLibSsl& operator=(const QuietLibSsl&) = delete;
};

}  // namespace fab
