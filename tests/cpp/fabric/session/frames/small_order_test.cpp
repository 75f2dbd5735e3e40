#include <doctest/doctest.h>

#include <memory>
#include <string>
#include <utility>

#include "fabric/session/frames/handshake.h"

// Handshakes with a side that shows a public key under which anybody can sign.

namespace fab::test {
namespace {

const SocketAddress kAddress = SocketAddress::from_bytes({"\x7f\0\0\1", 4}, 4711);

struct Side {
  explicit Side(std::shared_ptr<const KeyPair> pair) {
    identity.keys = &keys;
    identity.by_address = true;
    identity.take_id(std::move(pair), "tcp.0", 0, EndpointId{7});
    identity.part.bytes = where().encode();
  }
  EndpointAddress where() const {
    return {.id = identity.id, .kind = identity.kind, .network = {}, .addresses = {kAddress}};
  }
  const AuthKeys keys{{.secret = ""}};
  Identity identity;
};

// Of order 1, so that this signature fits every text under it.
const IdBinding kNeutral{.key = {1}, .number = 5};
const std::string kForged = std::string(1, '\1') + std::string(63, '\0');

}  // namespace

TEST_CASE("a caller is nobody under a key that anybody can sign with") {
  const Side called(KeyPair::make());
  Side forger(nullptr);
  forger.identity.binding = kNeutral;
  CallerHandshake caller(forger.identity, 0, called.where(), 11);
  AcceptorHandshake acceptor(called.identity, place_of(kAddress));
  std::string proof = caller.receive(acceptor.receive(caller.hello()).answer).answer;
  REQUIRE(proof.size() > kHelloHeader + kForged.size());
  CHECK(acceptor.receive(proof.replace(kHelloHeader, kForged.size(), kForged)).error == Errc::key_rejected);
  CHECK_FALSE(acceptor.done());
}

TEST_CASE("a caller does not believe an id that is bound to such a key") {
  const Side calling(KeyPair::make());
  Side forger(nullptr);
  forger.identity.binding = kNeutral;
  forger.identity.kind = IdKind::key;
  forger.identity.id = bound_id(kNeutral, "tcp.0", 0);
  forger.identity.part.bytes = forger.where().encode();
  CallerHandshake caller(calling.identity, 0, forger.where(), 11);
  AcceptorHandshake acceptor(forger.identity, place_of(kAddress));
  std::string challenge = acceptor.receive(caller.hello()).answer;
  REQUIRE(challenge.size() > kForged.size());
  challenge.replace(challenge.size() - kForged.size(), kForged.size(), kForged);
  CHECK(caller.receive(challenge).error == Errc::key_rejected);
}

}  // namespace fab::test
