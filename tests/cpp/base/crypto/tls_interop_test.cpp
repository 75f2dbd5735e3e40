#include <dlfcn.h>
#include <doctest/doctest.h>
#include <sys/socket.h>

#include <cstring>
#include <string>

#include "base/bytes/sha256.h"
#include "base/crypto/tls.h"
#include "base/fd.h"

// The other end is libssl's, records and all, as it comes from the system.

using namespace fab;

namespace {

void* const kLibrary = [] {
  void* const newer = ::dlopen("libssl.so.3", RTLD_NOW | RTLD_LOCAL);
  return newer ? newer : ::dlopen("libssl.so.1.1", RTLD_NOW | RTLD_LOCAL);
}();

template <class Result, class... Arguments>
Result call_library(const char* name, Arguments... arguments) {
  void* const function = ::dlsym(kLibrary, name);
  REQUIRE_MESSAGE(function, name);
  return reinterpret_cast<Result (*)(Arguments...)>(function)(arguments...);
}

const std::string kSecret = "secret";

std::string text_of(const Digest& digest) {
  return {reinterpret_cast<const char*>(digest.data()), digest.size()};
}

// The caller's key: 48 bytes name it.
int use_key(LibSsl::Stream* stream, const LibSsl::Digest*, const LibSsl::Bytes** name, std::size_t* length,
            LibSsl::Session** session) {
  static const std::string identity =
      std::string(16, 'n') +
      text_of(
          hmac_sha256(text_of(hmac_sha256(kSecret, "pyfab 3 names of keys of tls")), std::string(16, 'n')));
  const Digest key = hmac_sha256(kSecret, "pyfab 3 key of tls");
  constexpr LibSsl::Bytes kSuite[] = {0x13, 0x01};
  *session = libssl()->new_session();
  libssl()->set_session_key(*session, key.data(), key.size());
  libssl()->set_session_suite(*session, libssl()->find_suite(stream, kSuite));
  libssl()->set_session_version(*session, LibSsl::kTls13);
  *name = reinterpret_cast<const LibSsl::Bytes*>(identity.data());
  *length = identity.size();
  return 1;
}

class Caller {
 public:
  explicit Caller(int socket) {
    settings_ = libssl()->new_settings(libssl()->method());
    libssl()->on_use(settings_, &use_key);
    stream_ = libssl()->new_stream(settings_);
    call_library<int>("SSL_set_fd", stream_, socket);
    libssl()->calls(stream_);
  }
  ~Caller() {
    libssl()->free_stream(stream_);
    call_library<void>("SSL_CTX_free", settings_);
  }
  Caller(const Caller&) = delete;
  Caller& operator=(const Caller&) = delete;

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

struct Ends {
  Ends() {
    int ends[2];
    check_call(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends), "socketpair");
    here = OwnFd(ends[0]);
    there = OwnFd(ends[1]);
    constexpr int kRoom = 1 << 20;
    for (const int end : ends) ::setsockopt(end, SOL_SOCKET, SO_SNDBUF, &kRoom, sizeof kRoom);
    caller.emplace(there.get());
    called = Tls::answer(here.get(), {kSecret});
    bool done = false;
    Tls::Step step = Tls::Step::again;
    for (int i = 0; i < 10 && !(done && step == Tls::Step::done); ++i) {
      done = done || caller->handshake();
      if (step == Tls::Step::again) step = called->handshake();
    }
    REQUIRE(done);
    REQUIRE(step == Tls::Step::done);
  }
  void exchange(const std::string& text) {
    caller->say(text);
    std::string heard;
    called->begin_round();
    for (;;) {
      const std::span<const std::byte> part = called->open();
      if (part.empty()) break;
      heard.append(reinterpret_cast<const char*>(part.data()), part.size());
    }
    bool same = heard == text;
    CHECK(same);
    for (std::size_t at = 0; at < text.size();) {
      const std::span<std::byte> place = called->place();
      const std::size_t count = text.copy(reinterpret_cast<char*>(place.data()), place.size(), at);
      REQUIRE(called->seal(count));
      at += count;
    }
    REQUIRE(called->push());
    same = caller->hear(text.size()) == text;
    CHECK(same);
  }
  OwnFd here, there;
  std::optional<Caller> caller;
  std::unique_ptr<Tls> called;
};

}  // namespace

TEST_CASE("libssl understands what is sealed here, and the other way round") {
  Ends ends;
  for (const std::size_t size : {1, 8, 1000, 16384, 16385, 150000}) ends.exchange(std::string(size, 'x'));
}

TEST_CASE("keys are renewed as libssl does it, on one side or on both") {
  Ends ends;
  const auto handed = [&](const std::string& text) {
    const std::uint64_t before = ends.called->handed();
    ends.exchange(text);
    return ends.called->handed() - before;
  };
  const std::uint64_t one_record = handed("text");
  for (const bool both : {false, true, true, false}) {
    ends.caller->renew_key(both);
    CHECK((handed("text") > one_record) == both);  // the other key is announced
    CHECK(handed("text") == one_record);
  }
}

TEST_CASE("what libssl pads is read without its padding") {
  Ends ends;
  ends.caller->pad_to(512);
  for (const std::size_t size : {1, 511, 512, 5000}) ends.exchange(std::string(size, 'x'));
}

TEST_CASE("libssl's farewell is the end of the connection") {
  Ends ends;
  ends.caller->leave();
  ends.called->begin_round();
  CHECK(ends.called->open().empty());
  CHECK(ends.called->ended() == Tls::Step::gone);
}

TEST_CASE("a peer that does little but renew its key is not heard for ever") {
  for (const int updates_of_a_byte : {1000, 8}) {
    Ends ends;
    for (int i = 1; i <= 40; ++i) {
      ends.caller->renew_key(false);
      CHECK(ends.caller->handshake());  // which sends it
      if (i % updates_of_a_byte == 0) ends.caller->say("x");
    }
    ends.called->begin_round();
    while (!ends.called->open().empty()) continue;
    CHECK(ends.called->ended() == Tls::Step::nonsense);
  }
}
