#include "fabric/session/frames/handshake.h"

#include <utility>

#include "base/bytes/random.h"
#include "base/bytes/wire.h"

namespace fab {
namespace {

struct HelloMessage {
  HelloType type;
  std::string_view body;
};

// Returns nothing if this is not exactly one message.
std::optional<HelloMessage> parse_message(std::string_view message) {
  if (missing_of_message(message) != 0) return {};
  const auto header = HelloHeader::parse(message.substr(0, kHelloHeader));
  if (!header) return {};
  return HelloMessage{header->type, message.substr(kHelloHeader)};
}

template <std::size_t N>
std::string_view text_of(const std::array<std::uint8_t, N>& bytes) noexcept {
  return {reinterpret_cast<const char*>(bytes.data()), N};
}

}  // namespace

Digest proof_of(Role role, const std::string& key, const Hello& hello, const Nonce& challenge,
                std::uint64_t accepted, const EndpointId& called) {
  WireWriter text;
  text.raw("pyfab tcp proof 1").put(static_cast<std::uint8_t>(role));
  text.raw(text_of(hello.nonce)).raw(text_of(challenge)).raw(text_of(hello.from)).raw(text_of(hello.to));
  text.put(hello.stream).put(accepted).raw(text_of(called));
  return hmac_sha256(key, text.bytes());
}

// --- the caller

CallerHandshake::CallerHandshake(const Identity& self, std::size_t auth_index, const EndpointId& called,
                                 std::uint64_t stream)
    : Handshake(self, State::welcome), secret_((*self.keys)[auth_index].secret) {
  hello_.from = self.id;
  hello_.to = called;
  hello_.stream = stream;
  hello_.keyed = !secret_.empty();
  hello_.part = self.part;
  fill_random(hello_.nonce.data(), hello_.nonce.size());
}

Handshake::Step CallerHandshake::receive(std::string_view message) {
  const auto parsed = parse_message(message);
  if (!parsed || state_ != State::welcome) return fail(Errc::protocol);
  switch (parsed->type) {
    case HelloType::challenge:
      return on_challenge(parsed->body);
    case HelloType::welcome:
      return on_welcome(parsed->body);
    case HelloType::refuse:
      return fail(parse_refuse(parsed->body).value_or(Errc::protocol));
    case HelloType::hello:
      // A hello came from another caller instead of an answer from the side that is called. The kernel may
      // give the port that is called to this very call, which then hears itself (simultaneous open, RFC
      // 9293).
      return fail(Errc::unreachable);
    default:
      return fail(Errc::protocol);
  }
}

Handshake::Step CallerHandshake::on_challenge(std::string_view body) {
  const auto challenge = parse_challenge(body);
  if (!challenge || challenge_) return fail(Errc::protocol);
  if (!hello_.keyed) return fail(Errc::key_rejected);
  challenge_ = challenge;
  return {.answer = encode_proof(proof_of(Role::initiator, secret_, hello_, *challenge_, 0, hello_.to))};
}

Handshake::Step CallerHandshake::on_welcome(std::string_view body) {
  const auto welcome = Welcome::parse(body);
  const bool anybody = self_.by_address && hello_.to == kAnybody;
  const bool meant = welcome && (anybody || hello_.to == welcome->id);
  if (!meant || welcome->stream == 0) return fail(Errc::protocol);
  if (hello_.keyed &&
      (!challenge_ || !same(welcome->proof, proof_of(Role::acceptor, secret_, hello_, *challenge_,
                                                     welcome->stream, welcome->id))))
    return fail(Errc::key_rejected);
  peer_stream_ = welcome->stream;
  state_ = State::done;
  return {};
}

// --- the called side

Handshake::Step AcceptorHandshake::receive(std::string_view message) {
  const auto parsed = parse_message(message);
  if (parsed && state_ == State::hello && parsed->type == HelloType::hello) return on_hello(parsed->body);
  if (parsed && state_ == State::proof && parsed->type == HelloType::proof) return on_proof(parsed->body);
  return fail(Errc::protocol);
}

Handshake::Step AcceptorHandshake::on_hello(std::string_view body) {
  auto hello = Hello::parse(body);
  if (!hello || hello->stream == 0) return fail(Errc::protocol);
  hello_ = std::move(*hello);
  const bool anybody = self_.by_address && hello_.to == kAnybody;
  // The caller means another endpoint, which had this address before.
  if (!anybody && hello_.to != self_.id) return refuse(Errc::unreachable);
  if (hello_.keyed == self_.keys->front().secret.empty()) return refuse(Errc::key_rejected);
  if (!hello_.keyed) {
    state_ = State::done;
    return {};
  }
  fill_random(challenge_.emplace().data(), challenge_->size());
  state_ = State::proof;
  return {.answer = encode_challenge(*challenge_)};
}

Handshake::Step AcceptorHandshake::on_proof(std::string_view body) {
  const auto proof = parse_proof(body);
  if (!proof) return fail(Errc::protocol);
  const auto index = proven_key(*self_.keys, *proof, [this](const std::string& secret) {
    return proof_of(Role::initiator, secret, hello_, *challenge_, 0, hello_.to);
  });
  if (!index) return refuse(Errc::key_rejected);
  auth_index_ = *index;
  state_ = State::done;
  return {};
}

Handshake::Step AcceptorHandshake::refuse(Errc reason) {
  Step step = fail(reason);
  step.answer = encode_refuse(reason);
  return step;
}

std::string AcceptorHandshake::welcome(std::uint64_t stream) const {
  Welcome welcome{.stream = stream, .id = self_.id, .proof = {}};
  if (hello_.keyed && challenge_)
    welcome.proof =
        proof_of(Role::acceptor, (*self_.keys)[auth_index_].secret, hello_, *challenge_, stream, self_.id);
  return welcome.encode();
}

}  // namespace fab
