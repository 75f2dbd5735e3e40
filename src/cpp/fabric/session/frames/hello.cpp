#include "fabric/session/frames/hello.h"

#include <algorithm>

#include "base/bytes/wire.h"
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

template <std::size_t N>
std::optional<std::array<std::uint8_t, N>> exactly(std::string_view body) {
  WireReader in(body);
  std::array<std::uint8_t, N> bytes{};
  take(in, bytes);
  return in.at_end() ? std::optional(bytes) : std::nullopt;
}

}  // namespace

std::string EndpointAddress::encode() const {
  WireWriter out;
  out.put(versions::kEndpointPart)
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
bool read_part(std::string_view bytes, EndpointId& id, std::array<std::uint8_t, 16>& network, Found&& found) {
  WireReader in(bytes);
  if (in.get<std::uint8_t>() != versions::kEndpointPart) return false;
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
  const bool valid = read_part(bytes, where.id, where.network, [&](std::string_view raw, std::uint16_t port) {
    where.addresses.push_back(SocketAddress::from_bytes(raw, port));
  });
  return valid ? std::optional(std::move(where)) : std::nullopt;
}

bool EndpointAddress::valid(std::string_view bytes) noexcept {
  EndpointId id;
  std::array<std::uint8_t, 16> network;
  return read_part(bytes, id, network, [](std::string_view, std::uint16_t) {});
}

PartVerdict EndpointAddress::judge(const PartView& part) {
  if (valid(part.bytes)) return {.usable = true, .found = {}};
  const auto version = static_cast<std::uint8_t>(part.bytes.empty() ? 0 : part.bytes.front());
  if (version == versions::kEndpointPart || version == 0)
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

std::optional<HelloHeader> HelloHeader::parse(std::string_view bytes) {
  WireReader in(bytes);
  const bool ours = in.get<std::uint32_t>() == kHelloMagic && in.get<std::uint16_t>() == versions::kWire;
  const auto type = in.get<std::uint8_t>();
  const auto zero = in.get<std::uint8_t>();
  const auto length = in.get<std::uint32_t>();
  if (!in.at_end() || !ours || type < 1 || type > 5 || zero != 0 || length > kMaxHelloBody) return {};
  return HelloHeader{static_cast<HelloType>(type), length};
}

std::optional<std::size_t> missing_of_message(std::string_view begun) {
  if (begun.size() < kHelloHeader) return kHelloHeader - begun.size();
  const auto header = HelloHeader::parse(begun.substr(0, kHelloHeader));
  const std::size_t size = kHelloHeader + (header ? header->length : 0);
  return header && begun.size() <= size ? std::optional(size - begun.size()) : std::nullopt;
}

std::string Hello::encode() const {
  WireWriter body;
  body.raw(view(from)).raw(view(to)).put(stream).raw(view(nonce)).put(static_cast<std::uint8_t>(keyed));
  body.put_bytes(part.link).put(part.context).put_bytes(part.bytes);
  return frame(HelloType::hello, body);
}

std::optional<Hello> Hello::parse(std::string_view body) {
  WireReader in(body);
  Hello hello;
  take(in, hello.from);
  take(in, hello.to);
  hello.stream = in.get<std::uint64_t>();
  take(in, hello.nonce);
  const auto keyed = in.get<std::uint8_t>();
  hello.keyed = keyed != 0;
  hello.part.link = in.get_bytes();
  hello.part.context = in.get<std::uint16_t>();
  hello.part.bytes = in.get_bytes();
  if (!in.at_end() || keyed > 1) return {};
  auto where = EndpointAddress::parse(hello.part.bytes);
  if (!where || where->id != hello.from) return {};
  hello.where = std::move(*where);
  return hello;
}

std::string Welcome::encode() const {
  WireWriter body;
  body.put(stream).raw(view(id)).raw(view(proof));
  return frame(HelloType::welcome, body);
}

std::optional<Welcome> Welcome::parse(std::string_view body) {
  WireReader in(body);
  Welcome welcome;
  welcome.stream = in.get<std::uint64_t>();
  take(in, welcome.id);
  take(in, welcome.proof);
  return in.at_end() ? std::optional(welcome) : std::nullopt;
}

std::string encode_challenge(const Nonce& nonce) {
  WireWriter body;
  body.raw(view(nonce));
  return frame(HelloType::challenge, body);
}
std::optional<Nonce> parse_challenge(std::string_view body) { return exactly<32>(body); }

std::string encode_proof(const Digest& proof) {
  WireWriter body;
  body.raw(view(proof));
  return frame(HelloType::proof, body);
}
std::optional<Digest> parse_proof(std::string_view body) { return exactly<32>(body); }

std::string encode_refuse(Errc reason) {
  WireWriter body;
  body.put(static_cast<std::uint32_t>(reason));
  return frame(HelloType::refuse, body);
}

std::optional<Errc> parse_refuse(std::string_view body) {
  WireReader in(body);
  const auto code = in.get<std::uint32_t>();
  return in.at_end() && code != 0 && code < 1024 ? std::optional(static_cast<Errc>(code)) : std::nullopt;
}

}  // namespace fab
