#include "base/crypto/tls.h"

#include <doctest/doctest.h>
#include <malloc.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <string>

#include "base/fd.h"

using namespace fab;

namespace {

struct Sockets {
  Sockets() {
    int ends[2];
    check_call(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends), "socketpair");
    caller = OwnFd(ends[0]);
    called = OwnFd(ends[1]);
  }
  OwnFd caller, called;
};

struct Ends : Sockets {
  Ends(const std::string& secret, std::vector<std::string> secrets)
      : one(Tls::call(caller.get(), secret, Tls::Records::here)),
        other(Tls::answer(called.get(), std::move(secrets), Tls::Records::here)) {}

  // The outcomes of both sides.
  std::pair<Tls::Step, Tls::Step> meet() const {
    Tls::Step first = Tls::Step::again, second = Tls::Step::again;
    for (int i = 0; i < 10; ++i) {
      if (first == Tls::Step::again) first = one->handshake();
      if (second == Tls::Step::again) second = other->handshake();
    }
    return {first, second};
  }

  std::unique_ptr<Tls> one, other;
};

constexpr std::pair kBothDone{Tls::Step::done, Tls::Step::done};

bool seal(Tls& tls, const std::string& text) {
  const std::span<std::byte> place = tls.place();
  REQUIRE(place.size() >= text.size());
  std::memcpy(place.data(), text.data(), text.size());
  return tls.seal(text.size());
}

std::string say(Tls& tls, const std::string& text) {
  REQUIRE(seal(tls, text));
  REQUIRE(tls.push());
  return text;
}

std::string hear(Tls& tls) {
  tls.begin_round();
  const std::span<const std::byte> content = tls.open();
  return {reinterpret_cast<const char*>(content.data()), content.size()};
}

}  // namespace

TEST_CASE("two ends with the same key understand each other, and know the same of their connection") {
  REQUIRE_MESSAGE(libssl() != nullptr, std::string(libssl_problem()));
  CHECK(libssl_problem().empty());
  const Ends ends("secret", {"another", "secret"}), others("secret", {"secret"});
  REQUIRE(ends.meet() == kBothDone);
  REQUIRE(others.meet() == kBothDone);
  CHECK(ends.one->binding() == ends.other->binding());
  CHECK(ends.one->binding() != others.one->binding());
  for (const auto& [from, to] :
       {std::pair(ends.one.get(), ends.other.get()), {ends.other.get(), ends.one.get()}})
    for (const std::size_t size : {std::size_t{1}, std::size_t{1000}, kMostInRecord}) {
      const std::string said = say(*from, std::string(size, 'x'));
      const bool heard = hear(*to) == said;
      CHECK(heard);
    }
  CHECK(hear(*ends.one).empty());
  CHECK_FALSE(ends.one->ended());
}

TEST_CASE("ends without a key in common part, and both know why") {
  const Ends ends("secret", {"another", "a third"});
  CHECK(ends.meet() == std::pair(Tls::Step::key_rejected, Tls::Step::key_rejected));
}

TEST_CASE("who says too much, or nonsense, before it has proven anything is not heard any longer") {
  const auto outcome_of = [](std::string said) {
    const Ends ends("secret", {"secret"});
    REQUIRE(::send(ends.caller.get(), said.data(), said.size(), 0) == static_cast<ssize_t>(said.size()));
    return ends.other->handshake();
  };
  // A record of 16 KiB with the beginning of a ClientHello of 64 KiB, of which not all has come.
  const std::string begun("\x16\x03\x01\x40\x00\x01\x00\xff\xfc", 9);
  CHECK(outcome_of(begun + std::string(1000, '\0')) == Tls::Step::again);
  CHECK(outcome_of(begun + std::string(TlsHandshake::kMostHeard, '\0')) == Tls::Step::nonsense);
  CHECK(outcome_of(std::string(100, 'x')) == Tls::Step::nonsense);
}

TEST_CASE("what a caller says first shows its key to nobody, and never the same twice") {
  const auto first_words = [] {
    const Ends ends("secret", {"secret"});
    CHECK(ends.one->handshake() == Tls::Step::again);
    std::string said(4096, '\0');
    said.resize(static_cast<std::size_t>(::recv(ends.called.get(), said.data(), said.size(), 0)));
    return said;
  };
  const std::string one = first_words(), other = first_words();
  CHECK(static_cast<unsigned char>(one[0]) == kTlsHandshakeRecord);
  CHECK(one.find("secret") == std::string::npos);
  // The name of the key stands before the last 35 bytes, which prove it.
  constexpr std::size_t kProof = 35, kAge = 4, kName = 48;
  CHECK(one.substr(one.size() - kProof - kAge - kName, kName) !=
        other.substr(other.size() - kProof - kAge - kName, kName));
}

TEST_CASE("nothing comes of a record that was changed, left out or repeated") {
  for (const char* change : {"flip", "leave out", "repeat", "none"}) {
    CAPTURE(change);
    const Ends ends("secret", {"secret"});
    const Sockets apart;  // the other side's connection, between which somebody stands
    REQUIRE(ends.meet() == kBothDone);
    std::string records[2];
    for (std::string& record : records) {
      say(*ends.one, "the same text");
      record.resize(4096);
      record.resize(static_cast<std::size_t>(::recv(ends.called.get(), record.data(), record.size(), 0)));
      CHECK(record.find("same") == std::string::npos);
    }
    CHECK(records[0] != records[1]);
    std::string changed = records[0] + records[1];
    if (change == std::string("flip")) changed[20] ^= 1;
    if (change == std::string("leave out")) changed = records[1];
    if (change == std::string("repeat")) changed = records[0] + records[0];
    REQUIRE(::send(ends.caller.get(), changed.data(), changed.size(), 0) ==
            static_cast<ssize_t>(changed.size()));
    const bool first_is_whole = change == std::string("repeat") || change == std::string("none");
    CHECK(hear(*ends.other) == (first_is_whole ? "the same text" : ""));
    if (change == std::string("none")) {
      CHECK(hear(*ends.other) == "the same text");
      continue;
    }
    CHECK(hear(*ends.other).empty());
    REQUIRE(ends.other->ended());
    CHECK(*ends.other->ended() == Tls::Step::nonsense);
    CHECK(hear(*ends.other).empty());  // and never again
  }
}

TEST_CASE("what a full socket does not take waits, and is bounded") {
  const Ends ends("secret", {"secret"});
  REQUIRE(ends.meet() == kBothDone);
  std::string sent, heard;
  char next = 'a';
  while (!ends.one->place().empty()) {
    const std::string text(kMostInRecord, next++);
    REQUIRE(seal(*ends.one, text));
    sent += text;
  }
  CHECK(ends.one->unsent());
  for (std::string part; heard.size() < sent.size(); heard += part) {
    REQUIRE(ends.one->push());
    part = hear(*ends.other);
    REQUIRE_FALSE(ends.other->ended());
  }
  const bool same = heard == sent;
  CHECK(same);
  CHECK_FALSE(ends.one->unsent());
}

TEST_CASE("the end of the connection is told after all that came before it") {
  Ends ends("secret", {"secret"});
  REQUIRE(ends.meet() == kBothDone);
  say(*ends.one, "last words");
  ends.caller.reset();
  CHECK(hear(*ends.other) == "last words");
  CHECK(hear(*ends.other).empty());
  REQUIRE(ends.other->ended());
  CHECK(*ends.other->ended() == Tls::Step::gone);
}

TEST_CASE(
    "the called side says no more than its part of the handshake: there are no tickets to come back with") {
  const Ends ends("secret", {"secret"});
  REQUIRE(ends.meet() == kBothDone);
  char more;
  CHECK(::recv(ends.caller.get(), &more, 1, 0) == -1);
  CHECK(errno == EAGAIN);
}

TEST_CASE("what is said to an end that is gone fails, and ends no process") {
  Ends ends("secret", {"secret"});
  REQUIRE(ends.meet() == kBothDone);
  ends.called.reset();
  CHECK(seal(*ends.one, "word"));
  CHECK_FALSE(ends.one->push());  // where SIGPIPE would end it
}

TEST_CASE("other users of the library find no error of these connections") {
  const Ends ends("secret", {"secret"}), met("secret", {"secret"});
  REQUIRE(::send(ends.caller.get(), "nonsense, and enough of it", 26, 0) == 26);
  CHECK(ends.other->handshake() == Tls::Step::nonsense);
  REQUIRE(met.meet() == kBothDone);
  const std::string record = std::string("\x17\x03\x03\0\x20", 5) + std::string(32, 'x');
  REQUIRE(::send(met.caller.get(), record.data(), record.size(), 0) == 37);
  CHECK(hear(*met.other).empty());
  CHECK(met.other->ended() == Tls::Step::nonsense);
  CHECK(libssl()->last_error() == 0);
}

TEST_CASE("what is no record of a connection ends it") {
  const auto outcome_of = [](const std::string& said) {
    const Ends ends("secret", {"secret"});
    REQUIRE(ends.meet() == kBothDone);
    REQUIRE(::send(ends.caller.get(), said.data(), said.size(), 0) == static_cast<ssize_t>(said.size()));
    CHECK(hear(*ends.other).empty());
    char told[64];
    const bool alert = ::recv(ends.caller.get(), told, sizeof told, 0) == kRecordHeader + 2 + kRecordTrailer;
    CHECK(alert == ends.other->ended().has_value());
    return ends.other->ended();
  };
  CHECK(outcome_of(std::string("\x17\x03\x03\x41\x00", 5)) == std::nullopt);         // the longest
  CHECK(outcome_of(std::string("\x17\x03\x03\x41\x01", 5)) == Tls::Step::nonsense);  // too long
  CHECK(outcome_of(std::string("\x17\x03\x03\x00\x00", 5)) == Tls::Step::nonsense);  // without a type
  CHECK(outcome_of(std::string("\x16\x03\x03\x00\x20", 5)) == Tls::Step::nonsense);  // not sealed
  CHECK(outcome_of(std::string("\x14\x03\x03\x00\x01\x01", 6)) ==
        Tls::Step::nonsense);  // later than it may come
}

TEST_CASE("what the socket has taken is let go") {
  const Ends ends("secret", {"secret"});
  REQUIRE(ends.meet() == kBothDone);
  const std::string text(kMostInRecord, 'x');
  const auto exchange = [&](int times) {
    for (int i = 0; i < times; ++i) {
      say(*ends.one, text);
      while (!hear(*ends.other).empty()) continue;
    }
    const struct mallinfo2 memory = ::mallinfo2();  // zeros under a sanitizer
    return memory.uordblks + memory.hblkhd;
  };
  const std::size_t before = exchange(20);
  CHECK(exchange(500) < before + (1 << 20));
}
