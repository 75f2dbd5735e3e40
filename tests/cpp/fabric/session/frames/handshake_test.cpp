#include "fabric/session/frames/handshake.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include "base/bytes/wire.h"
#include "handshake_sides.h"

namespace fab::test {
namespace {

std::string with(std::string message, std::size_t at, char flip = 1) {
  message[at] = static_cast<char>(message[at] ^ flip);
  return message;
}

HelloType type_of(const std::string& message) {
  return HelloHeader::parse(std::string_view(message).substr(0, kHelloHeader))->type;
}

std::string body_of(const std::string& message) { return message.substr(kHelloHeader); }

// Where the fields of the messages begin.
constexpr std::size_t kVersions = kHelloHeader, kCapabilities = kVersions + 4, kFrom = kCapabilities + 8,
                      kProofsKey = kHelloHeader + 64;

}  // namespace

TEST_CASE("both sides arrive, with and without keys of either kind, and know what the other one has proven") {
  for (const std::string secret : {"", "secret"})
    for (const bool from_bound : {false, true})
      for (const bool to_bound : {false, true}) {
        CAPTURE(secret);
        CAPTURE(from_bound);
        CAPTURE(to_bound);
        Side a({secret}, from_bound), b({secret}, to_bound);
        Exchange call(a, b);
        CHECK(call.run() == Errc::ok);
        CHECK(call.caller.done());
        CHECK(call.acceptor.done());
        CHECK(call.caller.peer_stream() == kAcceptorsStream);
        CHECK(call.caller.peer_id() == b.identity.id);
        CHECK(call.acceptor.hello().stream == kCallersStream);
        CHECK(call.acceptor.hello().from == a.identity.id);
        CHECK(call.acceptor.peer_key() == a.identity.binding.key);
        CHECK(call.caller.peer_key() == b.identity.binding.key);
        CHECK((call.acceptor.peer_key() == kNoPublicKey) == !from_bound);
      }
}

TEST_CASE("each endpoint of a domain has an id of its own, under one public key") {
  const auto pair = KeyPair::make();
  Identity a, b;
  a.take_id(pair, "tcp.0", 0, {});
  b.take_id(pair, "tcp.0", 0, {});
  CHECK(a.id != b.id);
  CHECK(a.binding.key == b.binding.key);
  CHECK(bound_id(a.binding, "tcp.1", 0) != a.id);
  CHECK(bound_id(a.binding, "tcp.0", 1) != a.id);
  CHECK(bound_id(a.binding, "tcp.0", 0) == a.id);
}

TEST_CASE("a caller that knows no more than an address learns who answers") {
  Side a({"secret"}), b({"secret"});
  CallerHandshake caller(a.identity, 0, {.id = kAnybody, .network = {}, .addresses = {kAddress}},
                         kCallersStream);
  AcceptorHandshake acceptor(b.identity, kPlace);
  const auto proof = caller.receive(acceptor.receive(caller.hello()).answer);
  CHECK(acceptor.receive(proof.answer).error == Errc::ok);
  CHECK(caller.receive(acceptor.welcome(kAcceptorsStream)).error == Errc::ok);
  CHECK(caller.done());
  CHECK(caller.peer_id() == b.identity.id);
}

TEST_CASE("where names tell who is meant, neither side takes anybody") {
  Side a({"secret"}), b({"secret"});
  const EndpointAddress anybody{.id = kAnybody, .network = {}, .addresses = {}};
  CallerHandshake stranger(a.identity, 0, anybody, kCallersStream);
  b.identity.by_address = false;
  CHECK(AcceptorHandshake(b.identity, kPlace).receive(stranger.hello()).error == Errc::unreachable);
  a.identity.by_address = false;
  b.identity.by_address = true;
  CallerHandshake caller(a.identity, 0, anybody, kCallersStream);
  AcceptorHandshake acceptor(b.identity, kPlace);
  CHECK(caller.receive(acceptor.receive(caller.hello()).answer).error == Errc::unreachable);
}

TEST_CASE("nobody calls under the id of somebody else") {
  Side a({""}), b({""}), stranger({""});
  SUBCASE("which is bound to a key that the caller has not") {
    stranger.steal(a);
    Exchange call(stranger, b);
    const auto step = call.acceptor.receive(call.proof());
    CHECK(step.error == Errc::key_rejected);
    CHECK(type_of(step.answer) == HelloType::refuse);
    CHECK(call.acceptor.peer_key() == kNoPublicKey);
  }
  SUBCASE("with the caller's own key") {
    const IdBinding own = stranger.identity.binding;
    stranger.steal(a);
    stranger.identity.binding = own;
    CHECK(Exchange(stranger, b).run() == Errc::protocol);
  }
  SUBCASE("with the number of the caller's own endpoint") {
    const std::uint64_t own = stranger.identity.binding.number;
    stranger.steal(a);
    stranger.identity.binding.number = own;
    CHECK(Exchange(stranger, b).run() == Errc::protocol);
  }
  SUBCASE("without any key, as if it were an address: nothing is proven") {
    stranger.steal(a);
    stranger.identity.kind = IdKind::address;
    stranger.identity.key_pair = nullptr;
    stranger.identity.binding = {};
    SUBCASE("in the part of the name that says so") { CHECK(Exchange(stranger, b).run() == Errc::protocol); }
    SUBCASE("in one that says it is no key") {
      stranger.identity.part.bytes = stranger.where().encode();
      Exchange call(stranger, b);
      CHECK(call.run() == Errc::ok);
      CHECK(call.acceptor.hello().from == a.identity.id);
      CHECK(call.acceptor.peer_key() == kNoPublicKey);
    }
  }
}

TEST_CASE("a stranger that listens where a peer was gets no proof to guess a key from") {
  Side a({"secret"}), b({"secret"}), stranger({"guess"});
  const auto asked = [&] {
    CallerHandshake caller(a.identity, 0, b.where(), kCallersStream);
    AcceptorHandshake called(stranger.identity, kPlace);
    const auto challenged = called.receive(caller.hello());
    const auto step = caller.receive(challenged.answer);
    CHECK(step.answer.empty());
    return step.error;
  };
  SUBCASE("with another id") { CHECK(asked() == Errc::unreachable); }
  SUBCASE("under the id and public key of the peer") {
    stranger.steal(b);
    CHECK(asked() == Errc::key_rejected);
  }
  SUBCASE("under the id of the peer, without a key") {
    stranger.steal(b);
    stranger.identity.key_pair = nullptr;
    stranger.identity.binding = {};
    CHECK(asked() == Errc::key_rejected);
  }
  SUBCASE("under the id of the peer, with a key of its own") {
    const IdBinding own = stranger.identity.binding;
    stranger.steal(b);
    stranger.identity.binding = own;
    CHECK(asked() == Errc::protocol);
  }
  SUBCASE("with a challenge that the peer has made for another call") {
    Exchange earlier(a, b);
    const std::string challenge = earlier.challenge();
    CallerHandshake caller(a.identity, 0, b.where(), kCallersStream);
    const auto step = caller.receive(challenge);
    CHECK(step.error == Errc::key_rejected);
    CHECK(step.answer.empty());
  }
}

TEST_CASE("the called side finds out which of its keys was proven, and proves the same") {
  Side a({"x", "second"}), b({"first", "second"});
  Exchange call(a, b, 1);
  CHECK(call.run() == Errc::ok);
  CHECK(call.acceptor.auth_index() == 1);
  Exchange other(a, b, 0);
  CHECK(other.run() == Errc::key_rejected);
  CHECK_FALSE(other.acceptor.done());
}

TEST_CASE("a key on one side only is refused before anything is proven") {
  Side keyed({"secret"}), open({""});
  for (const bool caller_keyed : {true, false}) {
    Exchange call(caller_keyed ? keyed : open, caller_keyed ? open : keyed);
    const auto step = call.acceptor.receive(call.caller.hello());
    CHECK(step.error == Errc::key_rejected);
    CHECK(type_of(step.answer) == HelloType::refuse);
    CHECK(call.caller.receive(step.answer).error == Errc::key_rejected);
  }
}

TEST_CASE("who is called by another's name says so") {
  Side a({""}), b({""}), c({""});
  Exchange call(a, b);
  AcceptorHandshake other(c.identity, kPlace);
  const auto step = other.receive(call.caller.hello());
  CHECK(step.error == Errc::unreachable);
  CHECK(call.caller.receive(step.answer).error == Errc::unreachable);
}

TEST_CASE("a proof that is wrong in any byte is refused, and there is no second try") {
  Side a({"secret"}), b({"secret"});
  Exchange call(a, b);
  const std::string proof = call.proof();
  for (std::size_t at = kHelloHeader; at < proof.size(); at += 5) {
    Exchange fresh(a, b);
    const auto step = fresh.acceptor.receive(with(fresh.proof(), at));
    CHECK(step.error == Errc::key_rejected);
    CHECK(type_of(step.answer) == HelloType::refuse);
  }
  CHECK(call.acceptor.receive(with(proof, kProofsKey)).error == Errc::key_rejected);
  const auto again = call.acceptor.receive(proof);
  CHECK(again.error == Errc::protocol);
  CHECK(again.answer.empty());
  CHECK_FALSE(call.acceptor.done());
}

TEST_CASE("a called side that cannot prove the key is not believed") {
  Side a({"secret"}), b({"secret"});
  Exchange call(a, b);
  const std::string proof = call.proof();
  CHECK(call.acceptor.receive(proof).error == Errc::ok);
  const std::string welcome = call.acceptor.welcome(kAcceptorsStream);
  SUBCASE("another stream than it has proven") {
    CHECK(call.caller.receive(with(welcome, kHelloHeader)).error == Errc::key_rejected);
  }
  SUBCASE("another proof") {
    CHECK(call.caller.receive(with(welcome, welcome.size() - 1)).error == Errc::key_rejected);
  }
  SUBCASE("the caller's own proof, reflected") {
    Welcome reflected{.stream = kAcceptorsStream, .key = {}};
    std::copy_n(proof.begin() + kProofsKey, reflected.key.size(), reflected.key.begin());
    CHECK(call.caller.receive(reflected.encode()).error == Errc::key_rejected);
  }
  SUBCASE("the stream 0") { CHECK(call.caller.receive(call.acceptor.welcome(0)).error == Errc::protocol); }
  SUBCASE("a welcome without any challenge") {
    CHECK(Exchange(a, b).caller.receive(welcome).error == Errc::protocol);
  }
  CHECK_FALSE(call.caller.done());
}

TEST_CASE("a called side without a key proves nothing, and says nothing where a proof would be") {
  Side a({""}), b({""});
  Exchange call(a, b);
  const std::string proof = call.proof();
  Exchange second(a, b);
  CHECK(second.acceptor.receive(with(second.proof(), kProofsKey)).error == Errc::key_rejected);
  CHECK(call.acceptor.receive(proof).error == Errc::ok);
  const std::string welcome = call.acceptor.welcome(kAcceptorsStream);
  CHECK(call.caller.receive(with(welcome, welcome.size() - 1)).error == Errc::key_rejected);
}

TEST_CASE("a caller answers one challenge") {
  Side a({"secret"}), b({"secret"});
  Exchange call(a, b);
  const std::string challenge = call.challenge();
  CHECK(call.caller.receive(challenge).error == Errc::ok);
  const auto second = call.caller.receive(challenge);
  CHECK(second.error == Errc::protocol);
  CHECK(second.answer.empty());
}

TEST_CASE("a proof is good for its own exchange only") {
  Side a({"secret"}), b({"secret"}), other({"secret"});
  Exchange call(a, b);
  const std::string proof = call.proof();
  CHECK(call.acceptor.receive(proof).error == Errc::ok);
  SUBCASE("replayed to the same endpoint") {
    AcceptorHandshake again(b.identity, kPlace);
    again.receive(call.caller.hello());
    CHECK(again.receive(proof).error == Errc::key_rejected);  // its nonce is another one
  }
  SUBCASE("to another endpoint, whose challenge is passed on") {
    // The name says that the other endpoint is meant, so the caller finds out.
    Exchange relayed(a, other);
    CHECK(Exchange(a, b).caller.receive(relayed.challenge()).error == Errc::unreachable);
  }
  SUBCASE("of another stream of the same caller") {
    Exchange second(a, b);
    AcceptorHandshake acceptor(b.identity, kPlace);
    CallerHandshake later(a.identity, 0, b.where(), kCallersStream + 1);
    CHECK(second.caller.receive(acceptor.receive(later.hello()).answer).error == Errc::key_rejected);
  }
}

TEST_CASE("nobody in between changes what was said without both sides noticing") {
  Side a({"secret"}), b({"secret"});
  SUBCASE("capabilities and versions of the hello") {
    for (const std::size_t at : {kVersions + 3, kCapabilities, kCapabilities + 7}) {
      CAPTURE(at);
      Exchange call(a, b);
      const auto challenged = call.acceptor.receive(with(call.caller.hello(), at, '\2'));
      REQUIRE(challenged.error == Errc::ok);
      CHECK(call.caller.receive(challenged.answer).error == Errc::key_rejected);
    }
  }
  SUBCASE("who calls") {
    Exchange call(a, b);
    CHECK(call.acceptor.receive(with(call.caller.hello(), kFrom)).error == Errc::protocol);
  }
  SUBCASE("any byte of the challenge") {
    const std::size_t size = Exchange(a, b).challenge().size();
    for (std::size_t at = kHelloHeader; at < size; ++at) {
      Exchange call(a, b);
      const auto step = call.caller.receive(with(call.challenge(), at));
      CHECK(step.error != Errc::ok);
      CHECK(step.answer.empty());
    }
  }
  SUBCASE("and where the ids are addresses, the key tells") {
    Side c({"secret"}, false), d({"secret"}, false);
    Exchange call(c, d);
    const auto challenged = call.acceptor.receive(with(call.caller.hello(), kCapabilities));
    const auto proof = call.caller.receive(challenged.answer);
    CHECK(call.acceptor.receive(proof.answer).error == Errc::key_rejected);
  }
}

TEST_CASE("proofs are made as it is documented, each for its own purpose") {
  Side a({"secret"}), b({"secret"});
  Exchange call(a, b);
  const std::string hello = call.caller.hello(), challenge = call.challenge();
  const auto asked = *Challenge::parse(body_of(challenge));
  CHECK(verify(b.identity.binding.key, text_of_proof(ProofKind::called_id, hello + asked.signed_fields()),
               asked.signature));
  const std::string proof = call.caller.receive(challenge).answer;
  const auto proven = *Proof::parse(body_of(proof));
  CHECK(verify(a.identity.binding.key, text_of_proof(ProofKind::caller_id, hello + challenge),
               proven.signature));
  CHECK(proven.key == hmac_sha256("secret", text_of_proof(ProofKind::caller_key, hello + challenge)));
  REQUIRE(call.acceptor.receive(proof).error == Errc::ok);
  const auto welcome = *Welcome::parse(body_of(call.acceptor.welcome(5)));
  CHECK(welcome.key == hmac_sha256("secret", text_of_proof(ProofKind::called_key,
                                                           hello + challenge + proof +
                                                               WireWriter().put(std::uint64_t{5}).bytes())));
  std::vector<std::string> texts;
  for (const auto kind :
       {ProofKind::called_id, ProofKind::caller_id, ProofKind::caller_key, ProofKind::called_key})
    texts.push_back(text_of_proof(kind, "said"));
  std::ranges::sort(texts);
  CHECK(std::ranges::adjacent_find(texts) == texts.end());
  CHECK(text_of_proof(ProofKind::called_id, "said") != text_of_proof(ProofKind::called_id, "sai"));
}

TEST_CASE("two that speak different versions are told so") {
  Side a({""}), b({""});
  Exchange call(a, b);
  std::string hello = call.caller.hello();
  hello[4] = 4;  // the version in the header
  const auto step = call.acceptor.receive(hello);
  CHECK(step.error == Errc::not_supported);
  const auto refusal = *Refusal::parse(body_of(step.answer));
  CHECK(refusal.reason == Errc::not_supported);
  CHECK(refusal.versions == kOurVersions);
  CHECK(call.caller.receive(step.answer).error == Errc::not_supported);
  CHECK_FALSE(call.caller.other_versions());  // it speaks ours

  Exchange later(a, b);
  std::string refused =
      Refusal{.reason = Errc::not_supported, .versions = {.lowest = 4, .highest = 5}}.encode();
  refused[4] = 5;
  CHECK(later.caller.receive(refused).error == Errc::not_supported);
  CHECK(later.caller.other_versions() == WireVersions{4, 5});

  Exchange odd(a, b);
  CHECK(odd.acceptor.receive(with(odd.caller.hello(), kVersions, 4)).error == Errc::protocol);  // 7 to 3
  Exchange other(a, b);
  std::string challenge = other.challenge();
  challenge[4] = 4;
  CHECK(other.caller.receive(challenge).error == Errc::protocol);
}

TEST_CASE("what is cut, too long or out of turn ends the exchange") {
  Side a({"secret"}), b({"secret"});
  const std::string hello = Exchange(a, b).caller.hello();
  for (std::size_t size = 0; size < hello.size(); ++size) {
    AcceptorHandshake acceptor(b.identity, kPlace);
    CHECK(acceptor.receive(hello.substr(0, size)).error == Errc::protocol);
    CHECK(missing_of_message(hello.substr(0, size)) ==
          (size < kHelloHeader ? kHelloHeader : hello.size()) - size);
  }
  CHECK_FALSE(missing_of_message(hello + "x"));
  CHECK_FALSE(missing_of_message(with(hello, 0)));
  AcceptorHandshake acceptor(b.identity, kPlace);
  CHECK(acceptor.receive(hello + "x").error == Errc::protocol);
  for (std::size_t cut = 1; cut <= 96; cut += 5) {
    Exchange call(a, b);
    const std::string proof = call.proof();
    CHECK(call.acceptor.receive(proof.substr(0, proof.size() - cut)).error == Errc::protocol);
  }
  AcceptorHandshake eager(b.identity, kPlace);
  CHECK(eager.receive(Proof{}.encode()).error == Errc::protocol);
  Exchange greeting(a, b);
  greeting.proof();
  CHECK(greeting.acceptor.receive(greeting.caller.hello()).error == Errc::protocol);
  Exchange done(a, b);
  CHECK(done.run() == Errc::ok);
  CHECK(done.caller.receive(Challenge{}.encode()).error == Errc::protocol);
  CHECK(done.acceptor.receive(Proof{}.encode()).error == Errc::protocol);
  Exchange refused(a, b);
  CHECK(refused.caller.receive(Refusal{.reason = Errc::no_memory}.encode()).error == Errc::no_memory);
  CHECK(refused.caller.receive(refused.challenge()).error == Errc::protocol);
}

TEST_CASE("a caller that hears a hello has not reached anybody") {
  Side a({""}), b({""});
  Exchange call(a, b);
  CHECK(call.caller.receive(call.caller.hello()).error == Errc::unreachable);
  CHECK_FALSE(call.caller.done());
}

TEST_CASE("who is called in the place of another endpoint gains nothing by handing all messages on") {
  Side a({"secret"}), b({"secret"});
  EndpointAddress crafted = b.where();  // b's id, and the address of somebody in between
  crafted.addresses = {SocketAddress::from_bytes({"\x7f\0\0\1", 4}, 4712)};
  SUBCASE("who has made up a name") {}
  SUBCASE("who is known by his address only") { crafted.id = kAnybody; }
  CallerHandshake caller(a.identity, 0, crafted, kCallersStream);
  AcceptorHandshake called(b.identity, kPlace);
  const auto step = called.receive(caller.hello());
  CHECK(step.error == Errc::unreachable);
  CHECK(caller.receive(step.answer).error == Errc::unreachable);
}

TEST_CASE("a signature of no key ends the call") {
  Side a({"secret"}, false), b({"secret"});
  Exchange call(a, b);
  std::string proof = call.caller.receive(call.acceptor.receive(call.caller.hello()).answer).answer;
  proof[kHelloHeader + 63] ^= 1;
  CHECK(call.acceptor.receive(proof).error == Errc::protocol);
  CHECK_FALSE(call.acceptor.done());
}

}  // namespace fab::test
