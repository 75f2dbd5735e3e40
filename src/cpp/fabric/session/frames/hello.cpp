#include "fabric/session/frames/hello.h"

#include <algorithm>

#include "base/bytes/wire.h"
#include "base/crypto/tls.h"
#include "base/process/identity.h"
#include "fabric/types/versions.h"

namespace fab {
namespace {

constexpr std::uint32_t kHelloMagic = 0x31746670;  // "pft1"
constexpr std::size_t kMaxAddresses = 64;

template <std::size_t N>
std::string_view view(const std::array<std::uint8_t, N>& bytes) noexcept {
  return {reinterpret_cast<const char*>(bytes.data()), N};
}

template <std::size_t N>
void take(WireReader& in, std::array<std::uint8_t, N>& out) noexcept {
  const auto bytes = in.raw(N);
  std::copy(bytes.begin(), bytes.end(), out.begin());
}

std::string frame(HelloType type, const WireWriter& body) {
  WireWriter out;
  out.put(kHelloMagic).put(versions::kWire).put(static_cast<std::uint8_t>(type)).put(std::uint8_t{0});
  out.put_bytes(body.bytes());
  return out.take();
}

void put(WireWriter& out, const IdBinding& binding) { out.put(binding.number).raw(view(binding.key)); }

IdBinding take_binding(WireReader& in) noexcept {
  IdBinding binding;
  binding.number = in.get<std::uint64_t>();
  take(in, binding.key);
  return binding;
}

WireVersions take_versions(WireReader& in) noexcept {
  WireVersions versions;
  versions.lowest = in.get<std::uint16_t>();
  versions.highest = in.get<std::uint16_t>();
  return versions;
}

}  // namespace

std::string EndpointAddress::encode() const {
  WireWriter out;
  out.put(by_exchange ? versions::kExchangePart : versions::kEndpointPart)
      .put(static_cast<std::uint8_t>(kind))
      .raw(view(id))
      .raw(view(network))
      .put(static_cast<std::uint8_t>(addresses.size()));
  for (const SocketAddress& address : addresses)
    out.put(static_cast<std::uint8_t>(address.v6() ? 6 : 4)).put(address.port()).raw(address.bytes());
  return out.take();
}

namespace {

// Calls `found` with the bytes and the port of each address. Returns false if the part is not valid.
template <class Found>
bool read_part(std::string_view bytes, IdKind& kind, EndpointId& id, std::array<std::uint8_t, 16>& network,
               Found&& found) {
  WireReader in(bytes);
  const auto version = in.get<std::uint8_t>();
  if (version != versions::kEndpointPart && version != versions::kExchangePart) return false;
  const auto kind_of_id = in.get<std::uint8_t>();
  if (kind_of_id > 1) return false;
  kind = static_cast<IdKind>(kind_of_id);
  take(in, id);
  take(in, network);
  const auto count = in.get<std::uint8_t>();
  if (count == 0 || count > kMaxAddresses) return false;
  for (unsigned i = 0; i < count && in.ok(); ++i) {
    const auto family = in.get<std::uint8_t>();
    const auto port = in.get<std::uint16_t>();
    if ((family != 4 && family != 6) || port == 0) return false;
    const auto raw = in.raw(family == 4 ? 4 : 16);
    if (in.ok()) found(raw, port);
  }
  return in.at_end();
}

}  // namespace

std::optional<EndpointAddress> EndpointAddress::parse(std::string_view bytes) {
  EndpointAddress where;
  const auto found = [&](std::string_view raw, std::uint16_t port) {
    where.addresses.push_back(SocketAddress::from_bytes(raw, port));
  };
  const bool valid = read_part(bytes, where.kind, where.id, where.network, found);
  where.by_exchange = valid && static_cast<std::uint8_t>(bytes.front()) == versions::kExchangePart;
  return valid ? std::optional(std::move(where)) : std::nullopt;
}

bool EndpointAddress::valid(std::string_view bytes) noexcept {
  IdKind kind;
  EndpointId id;
  std::array<std::uint8_t, 16> network;
  return read_part(bytes, kind, id, network, [](std::string_view, std::uint16_t) {});
}

PartVerdict EndpointAddress::judge(const PartView& part) {
  if (valid(part.bytes))
    return {.usable = true, .found = {}, .proven = part.bytes[1] == static_cast<char>(IdKind::key)};
  const auto version = static_cast<std::uint8_t>(part.bytes.empty() ? 0 : part.bytes.front());
  if (version == versions::kEndpointPart || version == versions::kExchangePart || version == 0)
    throw Error(Errc::invalid,
                "an address is not valid: its " + std::string(part.link) + " part cannot be read");
  return {.found = other_version(part.link, version, versions::kEndpointPart)};
}

std::array<std::uint8_t, 16> this_network() {
  const Digest digest = sha256(network_identity());
  std::array<std::uint8_t, 16> network;
  std::copy_n(digest.begin(), network.size(), network.begin());
  return network;
}

EndpointId bound_id(const IdBinding& binding, std::string_view link, std::uint16_t context) {
  WireWriter text;
  text.raw("pyfab endpoint 2").raw(view(binding.key)).put(binding.number).put_bytes(link).put(context);
  const Digest digest = sha256(text.bytes());
  EndpointId id;
  std::copy_n(digest.begin(), id.size(), id.begin());
  return id;
}

std::optional<HelloHeader> HelloHeader::parse(std::string_view bytes) {
  WireReader in(bytes);
  const bool ours = in.get<std::uint32_t>() == kHelloMagic;
  const auto version = in.get<std::uint16_t>();
  const auto type = in.get<std::uint8_t>();
  const auto zero = in.get<std::uint8_t>();
  const auto length = in.get<std::uint32_t>();
  if (!in.at_end() || !ours || type == 0 || zero != 0 || length > kMaxHelloBody) return {};
  if (version == kWireVersion && type > static_cast<std::uint8_t>(HelloType::refuse)) return {};
  return HelloHeader{version, static_cast<HelloType>(type), length};
}

bool begins_hello(std::string_view begun) noexcept {
  return !begun.empty() && static_cast<std::uint8_t>(begun.front()) == (kHelloMagic & 0xff);
}

bool begins_tls(std::string_view begun) noexcept {
  return !begun.empty() && static_cast<std::uint8_t>(begun.front()) == kTlsHandshakeRecord;
}

std::optional<std::size_t> missing_of_message(std::string_view begun) {
  if (begun.size() < kHelloHeader) return kHelloHeader - begun.size();
  if (begins_tls(begun)) {
    const std::size_t size = length_of_record(std::as_bytes(std::span(begun)));
    const bool taken = begun.size() <= size && size <= kHelloHeader + kMaxHelloBody;
    return taken ? std::optional(size - begun.size()) : std::nullopt;
  }
  const auto header = HelloHeader::parse(begun.substr(0, kHelloHeader));
  const std::size_t size = kHelloHeader + (header ? header->length : 0);
  return header && begun.size() <= size ? std::optional(size - begun.size()) : std::nullopt;
}

std::string Hello::encode() const {
  WireWriter body;
  body.put(versions.lowest).put(versions.highest).put(capabilities);
  body.raw(view(from)).raw(view(to)).put(stream).raw(view(nonce)).put(static_cast<std::uint8_t>(keyed));
  put(body, binding);
  body.put_bytes(place);
  body.put_bytes(part.link).put(part.context).put_bytes(part.bytes);
  return frame(HelloType::hello, body);
}

std::optional<Hello> Hello::parse(std::string_view body) {
  WireReader in(body);
  Hello hello;
  hello.versions = take_versions(in);
  hello.capabilities = in.get<std::uint64_t>();
  take(in, hello.from);
  take(in, hello.to);
  hello.stream = in.get<std::uint64_t>();
  take(in, hello.nonce);
  const auto keyed = in.get<std::uint8_t>();
  hello.keyed = keyed != 0;
  hello.binding = take_binding(in);
  hello.place = in.get_bytes();
  hello.part.link = in.get_bytes();
  hello.part.context = in.get<std::uint16_t>();
  hello.part.bytes = in.get_bytes();
  if (!in.at_end() || keyed > 1) return {};
  auto where = EndpointAddress::parse(hello.part.bytes);
  if (!where || where->id != hello.from) return {};
  const bool bound =
      !hello.binding.none() && bound_id(hello.binding, hello.part.link, hello.part.context) == hello.from;
  if (where->kind == IdKind::key && !bound) return {};
  hello.where = std::move(*where);
  return hello;
}

std::string place_of(const SocketAddress& called) {
  return WireWriter().raw(called.bytes()).put(called.port()).take();
}

std::string Challenge::signed_fields() const {
  WireWriter fields;
  fields.put(capabilities).raw(view(nonce)).raw(view(id));
  put(fields, binding);
  fields.put_bytes(link).put(context);
  return fields.take();
}

std::string Challenge::encode() const {
  WireWriter body;
  body.raw(signed_fields()).raw(view(signature));
  return frame(HelloType::challenge, body);
}

std::optional<Challenge> Challenge::parse(std::string_view body) {
  WireReader in(body);
  Challenge challenge;
  challenge.capabilities = in.get<std::uint64_t>();
  take(in, challenge.nonce);
  take(in, challenge.id);
  challenge.binding = take_binding(in);
  challenge.link = in.get_bytes();
  challenge.context = in.get<std::uint16_t>();
  take(in, challenge.signature);
  if (!in.at_end()) return {};
  if (!challenge.binding.none() &&
      bound_id(challenge.binding, challenge.link, challenge.context) != challenge.id)
    return {};
  return challenge;
}

std::string Proof::encode() const {
  WireWriter body;
  body.raw(view(signature)).raw(view(key));
  return frame(HelloType::proof, body);
}

std::optional<Proof> Proof::parse(std::string_view body) {
  WireReader in(body);
  Proof proof;
  take(in, proof.signature);
  take(in, proof.key);
  return in.at_end() ? std::optional(proof) : std::nullopt;
}

std::string Welcome::encode() const {
  WireWriter body;
  body.put(stream).raw(view(key));
  return frame(HelloType::welcome, body);
}

std::optional<Welcome> Welcome::parse(std::string_view body) {
  WireReader in(body);
  Welcome welcome;
  welcome.stream = in.get<std::uint64_t>();
  take(in, welcome.key);
  return in.at_end() ? std::optional(welcome) : std::nullopt;
}

std::string Refusal::encode() const {
  WireWriter body;
  body.put(static_cast<std::uint32_t>(reason)).put(versions.lowest).put(versions.highest);
  return frame(HelloType::refuse, body);
}

std::optional<Refusal> Refusal::parse(std::string_view body) {
  WireReader in(body);
  const auto code = in.get<std::uint32_t>();
  const WireVersions versions = take_versions(in);
  if (!in.at_end() || code == 0 || code >= 1024) return {};
  return Refusal{static_cast<Errc>(code), versions};
}

}  // namespace fab
