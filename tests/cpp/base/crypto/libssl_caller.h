#pragma once

#include <dlfcn.h>
#include <doctest/doctest.h>

#include <cstring>
#include <string>

#include "base/bytes/sha256.h"
#include "base/crypto/libssl.h"

namespace fab::test {

inline void* const kLibrary = [] {
  void* const newer = ::dlopen("libssl.so.3", RTLD_NOW | RTLD_LOCAL);
  return newer ? newer : ::dlopen("libssl.so.1.1", RTLD_NOW | RTLD_LOCAL);
}();

template <class Result, class... Arguments>
Result call_library(const char* name, Arguments... arguments) {
  void* const function = ::dlsym(kLibrary, name);
  REQUIRE_MESSAGE(function, name);
  return reinterpret_cast<Result (*)(Arguments...)>(function)(arguments...);
}

inline const std::string kSecretOfCaller = "secret";

inline std::string text_of(const Digest& digest) {
  return {reinterpret_cast<const char*>(digest.data()), digest.size()};
}

// The caller's key: 48 bytes name it.
inline int use_key(LibSsl::Stream* stream, const LibSsl::Digest*, const LibSsl::Bytes** name,
                   std::size_t* length, LibSsl::Session** session) {
  static const std::string identity =
      std::string(16, 'n') +
      text_of(hmac_sha256(text_of(hmac_sha256(kSecretOfCaller, "pyfab 3 names of keys of tls")),
                          std::string(16, 'n')));
  const Digest key = hmac_sha256(kSecretOfCaller, "pyfab 3 key of tls");
  constexpr LibSsl::Bytes kSuite[] = {0x13, 0x01};
  *session = libssl()->new_session();
  libssl()->set_session_key(*session, key.data(), key.size());
  libssl()->set_session_suite(*session, libssl()->find_suite(stream, kSuite));
  libssl()->set_session_version(*session, LibSsl::kTls13);
  *name = reinterpret_cast<const LibSsl::Bytes*>(identity.data());
  *length = identity.size();
  return 1;
}

// The caller's end of a connection as libssl has it, records and all.
class LibsslCaller {
 public:
  explicit LibsslCaller(int socket) {
    settings_ = libssl()->new_settings(libssl()->method());
    libssl()->on_use(settings_, &use_key);
    stream_ = libssl()->new_stream(settings_);
    call_library<int>("SSL_set_fd", stream_, socket);
    libssl()->calls(stream_);
  }
  ~LibsslCaller() {
    libssl()->free_stream(stream_);
    call_library<void>("SSL_CTX_free", settings_);
  }
  LibsslCaller(const LibsslCaller&) = delete;
  LibsslCaller& operator=(const LibsslCaller&) = delete;

  bool handshake() { return libssl()->handshake(stream_) == 1; }
  void say(const std::string& text) {
    REQUIRE(call_library<int>("SSL_write", stream_, static_cast<const void*>(text.data()),
                              static_cast<int>(text.size())) == static_cast<int>(text.size()));
  }
  std::string hear(std::size_t count) {
    std::string all;
    while (all.size() < count) {
      char part[5000];
      const int got =
          call_library<int>("SSL_read", stream_, static_cast<void*>(part), static_cast<int>(sizeof part));
      if (got <= 0) break;
      all.append(part, static_cast<std::size_t>(got));
    }
    return all;
  }
  void renew_key(bool both) { REQUIRE(call_library<int>("SSL_key_update", stream_, both ? 1 : 0) == 1); }
  void pad_to(std::size_t block) { REQUIRE(call_library<int>("SSL_set_block_padding", stream_, block) == 1); }
  void leave() { call_library<int>("SSL_shutdown", stream_); }

 private:
  LibSsl::Settings* settings_ = nullptr;
  LibSsl::Stream* stream_ = nullptr;
};

}  // namespace fab::test
