#include "fabric/session/frames/handshake.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <iterator>
#include <string>
#include <vector>

namespace fab::test {
namespace {

AuthKeys keys_of(const std::vector<std::string>& secrets) {
  AuthKeys keys;
  for (const std::string& secret : secrets) keys.push_back({.secret = secret});
  return keys;
}

// An endpoint that calls, or is called.
struct Side {
  Side(std::uint8_t number, const std::vector<std::string>& secrets) : keys(keys_of(secrets)) {
    identity.id.fill(number);
    identity.keys = &keys;
    identity.by_address = true;
    const EndpointAddress where{
        .id = identity.id, .network = {}, .addresses = {SocketAddress::from_bytes({"\x7f\0\0\1", 4}, 4711)}};
    identity.part = {"tcp.0", 0, where.encode()};
  }
  Side(const Side&) = delete;
  AuthKeys keys;
  Identity identity;
};

constexpr std::uint64_t kCallersStream = 11, kAcceptorsStream = 22;

// A call of one endpoint by another, message by message.
struct Exchange {
  Exchange(const Side& from, const Side& to, std::size_t auth_index = 0)
      : caller(from.identity, auth_index, to.identity.id, kCallersStream), acceptor(to.identity) {}

  // As far as it goes without lies; the error of whoever gives up first, the refused one otherwise.
  Errc run() {
    std::string out = caller.hello();
    for (int i = 0; i < 10; ++i) {
      const auto heard = acceptor.receive(out);
      std::string back = acceptor.done() ? acceptor.welcome(kAcceptorsStream) : heard.answer;
      if (back.empty()) return heard.error;
      const auto answered = caller.receive(back);
      if (answered.error != Errc::ok || caller.done()) return answered.error;
      out = answered.answer;
    }
    return Errc::protocol;
  }
  // Up to the proof, which is returned and not yet handed over.
  std::string proof() {
    const auto challenged = acceptor.receive(caller.hello());
    REQUIRE(challenged.error == Errc::ok);
    const auto proven = caller.receive(challenged.answer);
    REQUIRE(proven.error == Errc::ok);
    return proven.answer;
  }
  CallerHandshake caller;
  AcceptorHandshake acceptor;
};

std::string with(std::string message, std::size_t at, char flip = 1) {
  message[at] = static_cast<char>(message[at] ^ flip);
  return message;
}

HelloType type_of(const std::string& message) {
  return HelloHeader::parse(std::string_view(message).substr(0, kHelloHeader))->type;
}

}  // namespace

TEST_CASE("both sides arrive, with and without a key, and know each other's stream") {
  for (const std::string secret : {"", "secret"}) {
    CAPTURE(secret);
    Side a(1, {secret}), b(2, {secret});
    Exchange call(a, b);
    CHECK(call.run() == Errc::ok);
    CHECK(call.caller.done());
    CHECK(call.acceptor.done());
    CHECK(call.caller.peer_stream() == kAcceptorsStream);
    CHECK(call.acceptor.hello().stream == kCallersStream);
    CHECK(call.acceptor.hello().from == a.identity.id);
  }
}

TEST_CASE("a caller that knows no more than an address learns who answers") {
  Side a(1, {"secret"}), b(2, {"secret"});
  CallerHandshake caller(a.identity, 0, kAnybody, kCallersStream);
  AcceptorHandshake acceptor(b.identity);
  const auto proof = caller.receive(acceptor.receive(caller.hello()).answer);
  CHECK(acceptor.receive(proof.answer).error == Errc::ok);
  CHECK(caller.receive(acceptor.welcome(kAcceptorsStream)).error == Errc::ok);
  CHECK(caller.done());
}

TEST_CASE("where names tell who is meant, neither side takes anybody") {
  Side a(1, {"secret"}), b(2, {"secret"});
  CallerHandshake stranger(a.identity, 0, kAnybody, kCallersStream);
  b.identity.by_address = false;
  CHECK(AcceptorHandshake(b.identity).receive(stranger.hello()).error == Errc::unreachable);
  a.identity.by_address = false;
  b.identity.by_address = true;
  CallerHandshake caller(a.identity, 0, kAnybody, kCallersStream);
  AcceptorHandshake acceptor(b.identity);
  const auto proof = caller.receive(acceptor.receive(caller.hello()).answer);
  CHECK(acceptor.receive(proof.answer).error == Errc::ok);
  CHECK(caller.receive(acceptor.welcome(kAcceptorsStream)).error == Errc::protocol);
}

TEST_CASE("the called side finds out which of its keys was proven, and proves the same") {
  Side a(1, {"x", "second"}), b(2, {"first", "second"});
  Exchange call(a, b, 1);
  CHECK(call.run() == Errc::ok);
  CHECK(call.acceptor.auth_index() == 1);
  Exchange other(a, b, 0);
  CHECK(other.run() == Errc::key_rejected);
  CHECK_FALSE(other.acceptor.done());
}

TEST_CASE("a key on one side only is refused before anything is proven") {
  Side keyed(1, {"secret"}), open(2, {""});
  for (const bool caller_keyed : {true, false}) {
    Exchange call(caller_keyed ? keyed : open, caller_keyed ? open : keyed);
    const auto step = call.acceptor.receive(call.caller.hello());
    CHECK(step.error == Errc::key_rejected);
    CHECK(type_of(step.answer) == HelloType::refuse);
    CHECK(call.caller.receive(step.answer).error == Errc::key_rejected);
  }
}

TEST_CASE("who is called by another's name says so") {
  Side a(1, {""}), b(2, {""}), c(3, {""});
  Exchange call(a, b);
  AcceptorHandshake other(c.identity);
  const auto step = other.receive(call.caller.hello());
  CHECK(step.error == Errc::unreachable);
  CHECK(call.caller.receive(step.answer).error == Errc::unreachable);
}

TEST_CASE("a wrong proof is refused, and there is no second try") {
  Side a(1, {"secret"}), b(2, {"secret"});
  Exchange call(a, b);
  const std::string proof = call.proof();
  for (std::size_t at = kHelloHeader; at < proof.size(); at += 7) {
    Exchange fresh(a, b);
    const auto step = fresh.acceptor.receive(with(fresh.proof(), at));
    CHECK(step.error == Errc::key_rejected);
    CHECK(type_of(step.answer) == HelloType::refuse);
  }
  CHECK(call.acceptor.receive(with(proof, kHelloHeader)).error == Errc::key_rejected);
  const auto again = call.acceptor.receive(proof);
  CHECK(again.error == Errc::protocol);
  CHECK(again.answer.empty());
  CHECK_FALSE(call.acceptor.done());
}

TEST_CASE("a called side that cannot prove the key is not believed") {
  Side a(1, {"secret"}), b(2, {"secret"});
  Exchange call(a, b);
  CHECK(call.acceptor.receive(call.proof()).error == Errc::ok);
  const std::string welcome = call.acceptor.welcome(kAcceptorsStream);
  SUBCASE("another stream than it has proven") {
    CHECK(call.caller.receive(with(welcome, kHelloHeader)).error == Errc::key_rejected);
  }
  SUBCASE("another proof") {
    CHECK(call.caller.receive(with(welcome, welcome.size() - 1)).error == Errc::key_rejected);
  }
  SUBCASE("the caller's own proof, reflected") {
    Exchange other(a, b);
    const std::string proof = other.proof();
    Welcome reflected{.stream = kAcceptorsStream, .id = b.identity.id, .proof = {}};
    std::copy_n(proof.begin() + kHelloHeader, reflected.proof.size(), reflected.proof.begin());
    CHECK(other.caller.receive(reflected.encode()).error == Errc::key_rejected);
  }
  SUBCASE("a welcome without any challenge") {
    Exchange other(a, b);
    CHECK(other.caller.receive(welcome).error == Errc::key_rejected);
  }
  SUBCASE("another endpoint") {
    CHECK(call.caller.receive(Welcome{.stream = 5, .id = a.identity.id, .proof = {}}.encode()).error ==
          Errc::protocol);
  }
  CHECK_FALSE(call.caller.done());
}

TEST_CASE("a caller answers one challenge, and none without a key") {
  Side a(1, {"secret"}), b(2, {"secret"}), open(3, {""});
  Exchange call(a, b);
  call.proof();
  const auto second = call.caller.receive(encode_challenge(Nonce{}));
  CHECK(second.error == Errc::protocol);
  CHECK(second.answer.empty());
  Exchange keyless(open, b);
  const auto step = keyless.caller.receive(encode_challenge(Nonce{}));
  CHECK(step.error == Errc::key_rejected);
  CHECK(step.answer.empty());
}

TEST_CASE("a proof is good for its own exchange only") {
  Side a(1, {"secret"}), b(2, {"secret"}), other(3, {"secret"});
  Exchange call(a, b);
  const std::string proof = call.proof();
  CHECK(call.acceptor.receive(proof).error == Errc::ok);
  SUBCASE("replayed to the same endpoint") {
    AcceptorHandshake again(b.identity);
    again.receive(call.caller.hello());
    CHECK(again.receive(proof).error == Errc::key_rejected);  // its nonce is another one
  }
  SUBCASE("for the endpoint of another link") {
    // The hello says that the other endpoint is meant, as it must, and the challenge is passed on.
    Exchange relayed(a, other);
    const auto challenged = relayed.acceptor.receive(relayed.caller.hello());
    Exchange victim(a, b);
    const auto passed = victim.caller.receive(challenged.answer);
    CHECK(relayed.acceptor.receive(passed.answer).error == Errc::key_rejected);
  }
  SUBCASE("of another stream of the same caller") {
    CallerHandshake second(a.identity, 0, b.identity.id, kCallersStream + 1);
    AcceptorHandshake acceptor(b.identity);
    const auto challenged = acceptor.receive(second.hello());
    const auto passed = Exchange(a, b).caller.receive(challenged.answer);
    CHECK(acceptor.receive(passed.answer).error == Errc::key_rejected);
  }
}

TEST_CASE("a proof is over all that is said, in the documented order") {
  Hello hello;
  hello.from.fill(1);
  hello.to.fill(2);
  hello.stream = kCallersStream;
  hello.nonce.fill(7);
  Nonce challenge;
  challenge.fill(8);
  const EndpointId called = hello.to;
  const Digest proof = proof_of(Role::acceptor, "secret", hello, challenge, kAcceptorsStream, called);
  // Computed by Python's hmac from docs/wire.md.
  const Digest::value_type documented[] = {0x8b, 0x0c, 0x45, 0x35, 0x21, 0x29, 0xa2, 0x5d};
  CHECK(std::equal(std::begin(documented), std::end(documented), proof.begin()));

  std::vector<Digest> others;
  const auto add = [&](const Hello& of) {
    others.push_back(proof_of(Role::acceptor, "secret", of, challenge, kAcceptorsStream, called));
  };
  for (const auto change : {+[](Hello& of) { of.from.fill(3); }, +[](Hello& of) { of.to.fill(3); },
                            +[](Hello& of) { ++of.stream; }, +[](Hello& of) { of.nonce.fill(3); }}) {
    Hello changed = hello;
    change(changed);
    add(changed);
  }
  others.push_back(proof_of(Role::initiator, "secret", hello, challenge, kAcceptorsStream, called));
  others.push_back(proof_of(Role::acceptor, "secrets", hello, challenge, kAcceptorsStream, called));
  others.push_back(proof_of(Role::acceptor, "secret", hello, Nonce{}, kAcceptorsStream, called));
  others.push_back(proof_of(Role::acceptor, "secret", hello, challenge, kAcceptorsStream + 1, called));
  others.push_back(proof_of(Role::acceptor, "secret", hello, challenge, kAcceptorsStream, hello.from));
  for (const Digest& other : others) CHECK_FALSE(same(other, proof));
}

TEST_CASE("what is cut, too long or out of turn ends the exchange") {
  Side a(1, {"secret"}), b(2, {"secret"});
  const std::string hello = Exchange(a, b).caller.hello();
  for (std::size_t size = 0; size < hello.size(); ++size) {
    AcceptorHandshake acceptor(b.identity);
    CHECK(acceptor.receive(hello.substr(0, size)).error == Errc::protocol);
    CHECK(missing_of_message(hello.substr(0, size)) ==
          (size < kHelloHeader ? kHelloHeader : hello.size()) - size);
  }
  CHECK_FALSE(missing_of_message(hello + "x"));
  CHECK_FALSE(missing_of_message(with(hello, 0)));
  AcceptorHandshake acceptor(b.identity);
  CHECK(acceptor.receive(hello + "x").error == Errc::protocol);
  for (std::size_t cut = 1; cut <= 32; ++cut) {
    Exchange call(a, b);
    const std::string proof = call.proof();
    CHECK(call.acceptor.receive(proof.substr(0, proof.size() - cut)).error == Errc::protocol);
  }
  AcceptorHandshake eager(b.identity);
  CHECK(eager.receive(encode_proof({})).error == Errc::protocol);
  Exchange greeting(a, b);
  greeting.proof();
  CHECK(greeting.acceptor.receive(greeting.caller.hello()).error == Errc::protocol);
  Exchange done(a, b);
  CHECK(done.run() == Errc::ok);
  CHECK(done.caller.receive(encode_challenge(Nonce{})).error == Errc::protocol);
  CHECK(done.acceptor.receive(encode_proof({})).error == Errc::protocol);
}

TEST_CASE("a caller that hears a hello has not reached anybody") {
  Side a(1, {""}), b(2, {""});
  Exchange call(a, b);
  CHECK(call.caller.receive(call.caller.hello()).error == Errc::unreachable);
  CHECK_FALSE(call.caller.done());
}

}  // namespace fab::test
