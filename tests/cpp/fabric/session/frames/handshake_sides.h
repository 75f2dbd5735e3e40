#pragma once

#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "fabric/session/frames/handshake.h"

namespace fab::test {

inline AuthKeys keys_of(const std::vector<std::string>& secrets) {
  AuthKeys keys;
  for (const std::string& secret : secrets) keys.push_back({.secret = secret});
  return keys;
}

inline const SocketAddress kAddress = SocketAddress::from_bytes({"\x7f\0\0\1", 4}, 4711);
inline const std::string kPlace = place_of(kAddress);

// An endpoint that calls, or is called. Its id is bound to a key pair, or is an address.
struct Side {
  explicit Side(const std::vector<std::string>& secrets, bool bound = true) : keys(keys_of(secrets)) {
    identity.keys = &keys;
    identity.by_address = true;
    identity.take_id(bound ? KeyPair::make() : nullptr, "tcp.0", 0, EndpointId{7, ++made});
    identity.part.bytes = where().encode();
  }
  Side(const Side&) = delete;
  EndpointAddress where() const {
    return {.id = identity.id, .kind = identity.kind, .network = {}, .addresses = {kAddress}};
  }
  // Another endpoint that says it were this one, with all that is known of this one.
  void steal(const Side& victim) {
    identity.id = victim.identity.id;
    identity.binding = victim.identity.binding;
    identity.part = victim.identity.part;
  }
  static inline std::uint8_t made = 0;
  AuthKeys keys;
  Identity identity;
};

inline constexpr std::uint64_t kCallersStream = 11, kAcceptorsStream = 22;

// A call of one endpoint by another, message by message.
struct Exchange {
  Exchange(const Side& from, const Side& to, std::size_t auth_index = 0)
      : caller(from.identity, auth_index, to.where(), kCallersStream), acceptor(to.identity, kPlace) {}

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
    const auto proven = caller.receive(challenge());
    REQUIRE(proven.error == Errc::ok);
    return proven.answer;
  }
  std::string challenge() {
    const auto challenged = acceptor.receive(caller.hello());
    REQUIRE(challenged.error == Errc::ok);
    return challenged.answer;
  }
  CallerHandshake caller;
  AcceptorHandshake acceptor;
};

}  // namespace fab::test
