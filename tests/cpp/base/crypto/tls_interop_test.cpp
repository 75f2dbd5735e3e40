#include <doctest/doctest.h>
#include <sys/socket.h>

#include <memory>
#include <optional>
#include <string>

#include "base/crypto/libssl_caller.h"
#include "base/crypto/tls.h"
#include "base/fd.h"

// The other end is libssl's, records and all, as it comes from the system.

using namespace fab;

namespace {

struct Ends {
  Ends() {
    int ends[2];
    check_call(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends), "socketpair");
    here = OwnFd(ends[0]);
    there = OwnFd(ends[1]);
    constexpr int kRoom = 1 << 20;
    for (const int end : ends) ::setsockopt(end, SOL_SOCKET, SO_SNDBUF, &kRoom, sizeof kRoom);
    caller.emplace(there.get());
    called = Tls::answer(here.get(), {test::kSecretOfCaller}, Tls::Records::here);
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
  std::optional<test::LibsslCaller> caller;
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
