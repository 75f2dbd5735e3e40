#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "base/lifetime.h"
#include "fabric/session/frames/hello.h"

// The handshake with which a stream begins, apart from the transport: it takes the messages of the peer and
// returns what is to be sent. The exchange is always hello → challenge → proof → welcome (docs/wire.md). The
// called side proves whose id it has before the caller says anything that depends on a secret.
namespace fab {

// Who this side is.
struct Identity {
  EndpointId id{};
  Part part;  // of its name
  const AuthKeys* keys = nullptr;
  // Whether a caller may know no more than an address (kAnybody). Where every name tells who is meant, it may
  // not.
  bool by_address = false;
  // Whether links are encrypted: then nothing is said or heard before the stream is.
  bool encrypts = false;
  bool kernel_tls = false;  // by the kernel, below the socket
  // Whether the id is bound to the pair, or an address, which nobody can prove to be his.
  IdKind kind = IdKind::address;
  // Null, and a binding of nothing: there is no pair.
  std::shared_ptr<const KeyPair> key_pair{};
  IdBinding binding{};

  // Gives the endpoint of this link and context an id. With a pair the id is bound to it, else it is
  // `address`.
  void take_id(std::shared_ptr<const KeyPair> pair, std::string link, std::uint16_t context,
               const EndpointId& address);
  // After take_id() without a pair: calls show that they come from one caller all the same.
  void show(std::shared_ptr<const KeyPair> pair);
};

// What is proven, and by whom. Each kind of proof is made for its own text, so none is good for another.
enum class ProofKind : std::uint8_t { called_id, caller_id, caller_key, called_key };
// What a signature or an HMAC of this kind is made for. `transcript`: all that was said before, message by
// message, and then what the maker of the proof says beside the proof.
std::string text_of_proof(ProofKind kind, std::string_view transcript);

// One side of the exchange. It is over with done() or with an error; whatever comes afterwards is an error.
class Handshake {
 public:
  // What one message leads to. With an answer and an error, the transport sends the answer and then gives up.
  struct Step {
    std::string answer{};   // to be sent now; empty: nothing is to be sent
    Errc error = Errc::ok;  // why the exchange has failed
  };
  bool done() const noexcept { return state_ == State::done; }
  // The stream is encrypted, and both ends know these bytes and nobody else does. All proofs are made over
  // them as well, so that none is good for another stream. To be told before anything is said.
  void encrypted(const std::array<std::uint8_t, 32>& binding) {
    note({reinterpret_cast<const char*>(binding.data()), binding.size()});
    encrypted_ = true;
  }

 protected:
  enum class State : std::uint8_t { hello, challenge, proof, welcome, done, failed };  // what comes next
  Handshake(const Identity& self, State first) : self_(self), state_(first) {}

  Step fail(Errc error) noexcept {
    state_ = State::failed;
    return {.error = error};
  }
  // What has been said becomes part of all later proofs.
  void note(std::string_view message) { transcript_ += message; }
  std::string text(ProofKind kind, std::string_view own = {}) const {
    return text_of_proof(kind, transcript_ + std::string(own));
  }

  const Identity& self_;
  State state_;
  Hello hello_;             // of the caller
  std::string transcript_;  // all messages so far
  bool encrypted_ = false;
};

// The caller's side. It answers one challenge: whoever is called cannot make it prove more than once.
class CallerHandshake final : public Handshake {
 public:
  // `auth_index`: of the authorization key to prove. `called`: who is meant; if its id is bound to a key, the
  // called side has to prove it. `stream`: this side's number for the stream, not 0.
  CallerHandshake(const Identity& self, std::size_t auth_index, const EndpointAddress& called,
                  std::uint64_t stream);

  // To be told before hello(), unless it is the first one of `called`: the address that has taken the call.
  void connected_to(const SocketAddress& called) { hello_.place = place_of(called); }
  std::string hello() const { return hello_.encode(); }                // the first message
  Step receive(std::string_view message);                              // a whole message of the called side
  std::uint64_t peer_stream() const noexcept { return peer_stream_; }  // once done()
  // Once done(): the called side, and the public key that it proved to have; kNoPublicKey: it proved none.
  const EndpointId& peer_id() const noexcept { return challenge_.id; }
  const PublicKey& peer_key() const noexcept FAB_LIFETIME_BOUND { return peer_key_; }
  // The secret with which the key is proven.
  const std::string& secret() const noexcept FAB_LIFETIME_BOUND { return secret_; }
  // What the side that refused speaks, if it speaks nothing that this side does.
  const std::optional<WireVersions>& other_versions() const noexcept FAB_LIFETIME_BOUND {
    return other_versions_;
  }

 private:
  Step on_challenge(std::string_view message, std::string_view body);
  Step on_welcome(std::string_view body);
  Step on_refusal(std::string_view body);
  Errc judge(const Challenge& challenge) const;  // ok if the side that was called is the one that is meant

  const std::string secret_;  // a copy, because the key may be replaced meanwhile
  const bool bound_;          // the id that is called is bound to a key
  Challenge challenge_;
  PublicKey peer_key_{};
  std::uint64_t peer_stream_ = 0;
  std::optional<WireVersions> other_versions_;
};

// The called side. Once done(), its owner sends welcome(), or drops the caller.
class AcceptorHandshake final : public Handshake {
 public:
  // `place`: of the address at which this side was called.
  explicit AcceptorHandshake(const Identity& self, std::string place)
      : Handshake(self, State::hello), place_(std::move(place)) {}

  Step receive(std::string_view message);  // a whole message of the caller
  // What the caller has said. Nothing is proven before done().
  const Hello& hello() const noexcept { return hello_; }
  // Once done(): the index of the authorization key that the caller proved, and with which secret.
  std::size_t auth_index() const noexcept { return proven_key_.index; }
  const std::string& secret() const noexcept { return proven_key_.secret; }
  // Once done(): the public key that the caller proved to have, that of Hello::binding. kNoPublicKey: none.
  const PublicKey& peer_key() const noexcept FAB_LIFETIME_BOUND { return peer_key_; }
  // Once done(): whether the caller has proven that Hello::from is its own. If not, nothing is known of who
  // calls, whatever the hello says, but that callers with one public key are one.
  bool proven() const noexcept { return peer_key_ != kNoPublicKey && hello_.where.kind == IdKind::key; }
  // The last message. `stream`: this side's number for the stream, not 0.
  std::string welcome(std::uint64_t stream) const;

 private:
  Step on_hello(std::string_view message, std::string_view body);
  Step on_proof(std::string_view message, std::string_view body);
  Step refuse(Errc reason);

  const std::string place_;
  ProvenKey proven_key_;
  PublicKey peer_key_{};
};

}  // namespace fab
