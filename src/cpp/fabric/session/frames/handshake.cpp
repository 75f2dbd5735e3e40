#include "fabric/session/frames/handshake.h"

#include <string>
#include <string_view>
#include <utility>

#include "base/bytes/random.h"
#include "base/bytes/wire.h"
#include "fabric/types/versions.h"

namespace fab {
namespace {

struct HelloMessage {
  std::uint16_t version;
  HelloType type;
  std::string_view body;
};

// Returns nothing if this is not exactly one message.
std::optional<HelloMessage> parse_message(std::string_view message) {
  if (missing_of_message(message) != 0) return {};
  const auto header = HelloHeader::parse(message.substr(0, kHelloHeader));
  if (!header) return {};
  return HelloMessage{header->version, header->type, message.substr(kHelloHeader)};
}

// What proves that its maker has the authorization key. Without a key it is zero.
Digest key_proof(const std::string& secret, const std::string& text) {
  return secret.empty() ? Digest{} : hmac_sha256(secret, text);
}

std::string_view purpose_of(ProofKind kind) noexcept {
  switch (kind) {
    case ProofKind::called_id:
      return "id of the called side";
    case ProofKind::caller_id:
      return "id of the caller";
    case ProofKind::caller_key:
      return "key of the caller";
    case ProofKind::called_key:
      break;
  }
  return "key of the called side";
}

}  // namespace

std::string text_of_proof(ProofKind kind, std::string_view transcript) {
  const Digest said = sha256(transcript);
  return WireWriter()
      .put_bytes("pyfab " + std::to_string(versions::kWire) + " " + std::string(purpose_of(kind)))
      .raw({reinterpret_cast<const char*>(said.data()), said.size()})
      .take();
}

void Identity::take_id(std::shared_ptr<const KeyPair> pair, std::string link, std::uint16_t context,
                       const EndpointId& address) {
  show(std::move(pair));
  kind = key_pair ? IdKind::key : IdKind::address;
  id = key_pair ? bound_id(binding, link, context) : address;
  part.link = std::move(link);
  part.context = context;
}

void Identity::show(std::shared_ptr<const KeyPair> pair) {
  key_pair = std::move(pair);
  if (key_pair) binding = {.key = key_pair->public_key(), .number = random_u64()};
}

// --- the caller

CallerHandshake::CallerHandshake(const Identity& self, std::size_t auth_index, const EndpointAddress& called,
                                 std::uint64_t stream)
    : Handshake(self, State::challenge),
      secret_((*self.keys)[auth_index].secret),
      bound_(called.kind == IdKind::key) {
  hello_.from = self.id;
  hello_.to = called.id;
  hello_.stream = stream;
  hello_.keyed = !secret_.empty();
  hello_.binding = self.binding;
  hello_.part = self.part;
  if (!called.addresses.empty()) connected_to(called.addresses.front());
  fill_random(hello_.nonce.data(), hello_.nonce.size());
}

Handshake::Step CallerHandshake::receive(std::string_view message) {
  const auto parsed = parse_message(message);
  const bool open = state_ == State::challenge || state_ == State::welcome;
  if (!parsed || !open) return fail(Errc::protocol);
  if (parsed->type == HelloType::refuse) return on_refusal(parsed->body);
  if (encrypted_ != self_.encrypts) return fail(Errc::not_encrypted);
  // A hello came from another caller instead of an answer from the side that is called. The kernel may give
  // the port that is called to this very call, which then hears itself (simultaneous open, RFC 9293).
  if (parsed->type == HelloType::hello) return fail(Errc::unreachable);
  if (parsed->version != kWireVersion) return fail(Errc::protocol);
  if (parsed->type == HelloType::challenge && state_ == State::challenge)
    return on_challenge(message, parsed->body);
  if (parsed->type == HelloType::welcome && state_ == State::welcome) return on_welcome(parsed->body);
  return fail(Errc::protocol);
}

Handshake::Step CallerHandshake::on_refusal(std::string_view body) {
  const auto refusal = Refusal::parse(body);
  if (!refusal) return fail(Errc::protocol);
  if (refusal->versions.lowest > kOurVersions.highest || refusal->versions.highest < kOurVersions.lowest)
    other_versions_ = refusal->versions;
  return fail(refusal->reason);
}

// Whoever cannot show that it is the endpoint that is meant gets no proof that depends on the key, because
// it could try keys on such a proof. Without a libcrypto here nothing can be looked at, and a name is no more
// than an address.
Errc CallerHandshake::judge(const Challenge& challenge) const {
  const bool anybody = self_.by_address && hello_.to == kAnybody;
  if (!anybody && challenge.id != hello_.to) return Errc::unreachable;
  if (!libcrypto()) return Errc::ok;
  if (challenge.binding.none()) return bound_ ? Errc::key_rejected : Errc::ok;
  const std::string proven = text(ProofKind::called_id, challenge.signed_fields());
  return verify(challenge.binding.key, proven, challenge.signature) ? Errc::ok : Errc::key_rejected;
}

Handshake::Step CallerHandshake::on_challenge(std::string_view message, std::string_view body) {
  const auto challenge = Challenge::parse(body);
  if (!challenge) return fail(Errc::protocol);
  note(hello_.encode());
  if (const Errc error = judge(*challenge); error != Errc::ok) return fail(error);
  challenge_ = *challenge;
  if (libcrypto()) peer_key_ = challenge_.binding.key;
  note(message);
  Proof proof;
  if (self_.key_pair) proof.signature = self_.key_pair->sign(text(ProofKind::caller_id));
  proof.key = key_proof(secret_, text(ProofKind::caller_key));
  Step step{.answer = proof.encode()};
  note(step.answer);
  state_ = State::welcome;
  return step;
}

Handshake::Step CallerHandshake::on_welcome(std::string_view body) {
  const auto welcome = Welcome::parse(body);
  if (!welcome || welcome->stream == 0) return fail(Errc::protocol);
  const std::string stream = WireWriter().put(welcome->stream).take();
  if (!same(welcome->key, key_proof(secret_, text(ProofKind::called_key, stream))))
    return fail(Errc::key_rejected);
  peer_stream_ = welcome->stream;
  state_ = State::done;
  return {};
}

// --- the called side

Handshake::Step AcceptorHandshake::receive(std::string_view message) {
  if (state_ == State::hello && begins_tls(message)) return refuse(Errc::not_encrypted);
  const auto parsed = parse_message(message);
  if (!parsed) return fail(Errc::protocol);
  if (state_ == State::hello && parsed->type == HelloType::hello) {
    if (parsed->version != kWireVersion) return refuse(Errc::not_supported);
    if (encrypted_ != self_.encrypts) return refuse(Errc::not_encrypted);
    return on_hello(message, parsed->body);
  }
  if (state_ == State::proof && parsed->type == HelloType::proof && parsed->version == kWireVersion)
    return on_proof(message, parsed->body);
  return fail(Errc::protocol);
}

Handshake::Step AcceptorHandshake::on_hello(std::string_view message, std::string_view body) {
  auto hello = Hello::parse(body);
  if (!hello || hello->stream == 0) return fail(Errc::protocol);
  if (hello->versions.lowest > kWireVersion || hello->versions.highest < kWireVersion)
    return fail(Errc::protocol);  // it does not say what it speaks
  hello_ = std::move(*hello);
  const bool anybody = self_.by_address && hello_.to == kAnybody;
  // The caller means another endpoint, which had this address before.
  if (!anybody && hello_.to != self_.id) return refuse(Errc::unreachable);
  // It has called somebody else, who hands its messages on.
  if (hello_.place != place_) return refuse(Errc::unreachable);
  if (hello_.keyed == self_.keys->front().secret.empty()) return refuse(Errc::key_rejected);
  note(message);
  Challenge challenge{.id = self_.id, .link = self_.part.link, .context = self_.part.context};
  if (self_.kind == IdKind::key) challenge.binding = self_.binding;
  fill_random(challenge.nonce.data(), challenge.nonce.size());
  if (!challenge.binding.none() && self_.key_pair)
    challenge.signature = self_.key_pair->sign(text(ProofKind::called_id, challenge.signed_fields()));
  Step step{.answer = challenge.encode()};
  note(step.answer);
  state_ = State::proof;
  return step;
}

Handshake::Step AcceptorHandshake::on_proof(std::string_view message, std::string_view body) {
  const auto proof = Proof::parse(body);
  // Without a key there is no signature: bytes that nothing vouches for are not let pass.
  if (!proof || (hello_.binding.none() && proof->signature != Signature{})) return fail(Errc::protocol);
  const std::string key_text = text(ProofKind::caller_key);
  auto proven = proven_key(*self_.keys, proof->key,
                           [&](const std::string& secret) { return key_proof(secret, key_text); });
  if (!proven) return refuse(Errc::key_rejected);
  if (!hello_.binding.none() && libcrypto()) {
    if (!verify(hello_.binding.key, text(ProofKind::caller_id), proof->signature))
      return refuse(Errc::key_rejected);
    peer_key_ = hello_.binding.key;
  }
  proven_key_ = std::move(*proven);
  note(message);
  state_ = State::done;
  return {};
}

Handshake::Step AcceptorHandshake::refuse(Errc reason) {
  Step step = fail(reason);
  step.answer = Refusal{.reason = reason}.encode();
  return step;
}

std::string AcceptorHandshake::welcome(std::uint64_t stream) const {
  const std::string told = WireWriter().put(stream).take();
  return Welcome{.stream = stream, .key = key_proof(secret(), text(ProofKind::called_key, told))}.encode();
}

}  // namespace fab
