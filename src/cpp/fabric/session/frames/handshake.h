#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "fabric/session/frames/hello.h"

// The handshake with which a stream begins, apart from the transport: it takes the messages of the peer and
// returns what is to be sent. The exchange is hello → welcome or, with an authorization key, hello →
// challenge → proof → welcome (docs/wire.md). The caller proves itself first, so that a stranger learns
// nothing.
namespace fab {

// Who this side is.
struct Identity {
  EndpointId id{};
  Part part;  // of its name
  const AuthKeys* keys = nullptr;
  // Whether a caller may know no more than an address (kAnybody). Where every name tells who is meant, it may
  // not.
  bool by_address = false;
};

// What only a side with the key can say: an HMAC over both nonces, the roles of both sides and the stream.
// `called` is the endpoint that is called, as far as the maker of the proof knows it.
enum class Role : std::uint8_t { initiator = 1, acceptor = 2 };
Digest proof_of(Role role, const std::string& key, const Hello& hello, const Nonce& challenge,
                std::uint64_t accepted, const EndpointId& called);

// One side of the exchange. It is over with done() or with an error; whatever comes afterwards is an error.
class Handshake {
 public:
  // What one message leads to. With an answer and an error, the transport sends the answer and then gives up.
  struct Step {
    std::string answer{};   // to be sent now; empty: nothing is to be sent
    Errc error = Errc::ok;  // why the exchange has failed
  };
  bool done() const noexcept { return state_ == State::done; }

 protected:
  enum class State : std::uint8_t { hello, proof, welcome, done, failed };  // what comes next, or the end
  explicit Handshake(const Identity& self, State first) : self_(self), state_(first) {}

  Step fail(Errc error) noexcept {
    state_ = State::failed;
    return {.error = error};
  }

  const Identity& self_;
  State state_;
  Hello hello_;  // of the caller
  std::optional<Nonce> challenge_;
};

// The caller's side. It answers one challenge: whoever is called cannot make it prove more than once.
class CallerHandshake final : public Handshake {
 public:
  // `auth_index`: of the authorization key to prove. `stream`: this side's number for the stream, not 0.
  CallerHandshake(const Identity& self, std::size_t auth_index, const EndpointId& called,
                  std::uint64_t stream);

  std::string hello() const { return hello_.encode(); }                // the first message
  Step receive(std::string_view message);                              // a whole message of the called side
  std::uint64_t peer_stream() const noexcept { return peer_stream_; }  // once done()

 private:
  Step on_challenge(std::string_view body);
  Step on_welcome(std::string_view body);

  const std::string& secret_;
  std::uint64_t peer_stream_ = 0;
};

// The called side. Once done(), its owner sends welcome(), or drops the caller.
class AcceptorHandshake final : public Handshake {
 public:
  explicit AcceptorHandshake(const Identity& self) : Handshake(self, State::hello) {}

  Step receive(std::string_view message);  // a whole message of the caller
  // What the caller has said. Nothing is proven before done().
  const Hello& hello() const noexcept { return hello_; }
  // Of the key that the caller proved, once done().
  std::size_t auth_index() const noexcept { return auth_index_; }
  // The last message. `stream`: this side's number for the stream, not 0.
  std::string welcome(std::uint64_t stream) const;

 private:
  Step on_hello(std::string_view body);
  Step on_proof(std::string_view body);
  Step refuse(Errc reason);

  std::size_t auth_index_ = 0;
};

}  // namespace fab
