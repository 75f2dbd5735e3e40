#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/bytes/sha256.h"
#include "base/crypto/key_pair.h"
#include "base/network/tcp_socket.h"
#include "fabric/types/auth_key.h"
#include "fabric/types/error.h"
#include "fabric/types/name.h"
#include "fabric/types/versions.h"

// What network links exchange outside of sessions: a part of a name, and the messages of the handshake
// (docs/wire.md), whose order handshake.h knows. Parsers take bytes that nobody vouches for, and return
// nothing where something is wrong.
namespace fab {

using EndpointId = std::array<std::uint8_t, 16>;
using Nonce = std::array<std::uint8_t, 32>;

// What an id is made of, and so what its owner can prove.
enum class IdKind : std::uint8_t {
  address = 0,  // a place, or nothing: whoever listens there has the id
  key = 1,      // a public key: see bound_id()
};

// Where an endpoint of a network link is. Encoded, this is the link's part of the endpoint's name.
struct EndpointAddress {
  EndpointId id{};
  IdKind kind = IdKind::address;
  // Hash of network_identity(): whose loopback addresses these are; zero where none of them is one.
  std::array<std::uint8_t, 16> network{};
  std::vector<SocketAddress> addresses{};
  // Of verbs: the addresses are those of tcp, and take exchanges of queue pairs (providers/verbs/exchange).
  bool by_exchange = false;

  std::string encode() const;
  static std::optional<EndpointAddress> parse(std::string_view bytes);
  static bool valid(std::string_view bytes) noexcept;  // whether parse() takes these bytes
  // What Domain::part_check() says of a part of this link.
  static PartVerdict judge(const PartView& part);
};
std::array<std::uint8_t, 16> this_network();

// The public key of an endpoint's domain, and a random number that tells the endpoint from others of the
// domain. An id of kind `key` is made of it. Beside an id that is an address it proves nothing of the id, but
// shows that two calls come from the same caller. Zero where there is no key.
struct IdBinding {
  PublicKey key{};
  std::uint64_t number = 0;
  auto operator<=>(const IdBinding&) const = default;
  bool none() const noexcept { return key == kNoPublicKey; }
};
// The id that belongs to a public key. Nobody else can have it, because nobody finds another key with the
// same hash.
EndpointId bound_id(const IdBinding& binding, std::string_view link, std::uint16_t context);

enum class HelloType : std::uint8_t { hello = 1, challenge = 2, proof = 3, welcome = 4, refuse = 5 };
inline constexpr std::size_t kHelloHeader = 12;
inline constexpr std::size_t kMaxHelloBody = 4096;

// The versions of the wire, handshake and frames, that this side speaks.
struct WireVersions {
  std::uint16_t lowest = 0, highest = 0;
  friend bool operator==(const WireVersions&, const WireVersions&) = default;
};
inline constexpr std::uint16_t kWireVersion = versions::kWire;
inline constexpr WireVersions kOurVersions{kWireVersion, kWireVersion};
inline constexpr std::uint64_t kOurCapabilities = 0;  // none is defined

// Magic, version, type and length of the body. The header is the same in all versions, as are the body of a
// refusal and the versions with which a hello begins, so that two sides can tell each other what they speak.
// parse() returns nothing for a header of another protocol.
struct HelloHeader {
  std::uint16_t version = 0;
  HelloType type{};  // of another version: any value
  std::uint32_t length = 0;
  static std::optional<HelloHeader> parse(std::string_view bytes);
};
// Whether these bytes are the beginning of a message of the handshake.
bool begins_hello(std::string_view begun) noexcept;
// Whether these bytes are the beginning of what a caller says who encrypts its links.
bool begins_tls(std::string_view begun) noexcept;
// The number of bytes that are missing of the message which begins with `begun`, or of the first record of
// TLS. Returns nothing if no message begins so, or if the message ends before `begun` does.
std::optional<std::size_t> missing_of_message(std::string_view begun);

// The first message, which the caller sends. `to` is kAnybody if the caller knows only the address.
inline constexpr EndpointId kAnybody{};
struct Hello {
  WireVersions versions = kOurVersions;
  std::uint64_t capabilities = kOurCapabilities;
  EndpointId from{}, to{};
  // The sender's number for the stream. A stream with another number from the same caller replaces it.
  std::uint64_t stream = 0;
  Nonce nonce{};
  bool keyed = false;
  IdBinding binding{};
  // The socket address that was called, as place_of() writes it. The called side takes no other than its own:
  // who is called in its place, and hands all messages on, would have the stream in the end.
  std::string place{};
  Part part{};              // of the sender's name
  EndpointAddress where{};  // what `part` says: parse() sets it, and encode() does not look at it

  std::string encode() const;
  // Nothing as well if `from`, `binding` and the part do not belong together where the id is bound to a key.
  static std::optional<Hello> parse(std::string_view body);
};

std::string place_of(const SocketAddress& called);

struct Challenge {
  std::uint64_t capabilities = kOurCapabilities;
  Nonce nonce{};
  EndpointId id{};  // of the side that answers: the caller may have known no more than an address
  IdBinding binding{};
  std::string link{};  // these and `binding` make the id
  std::uint16_t context = 0;
  Signature signature{};  // over the hello and what stands above; zero without a binding

  std::string signed_fields() const;  // all but the signature
  std::string encode() const;
  // Nothing as well if `id` and `binding` do not belong together.
  static std::optional<Challenge> parse(std::string_view body);
};

struct Proof {
  Signature signature{};  // zero without a binding
  Digest key{};           // an HMAC; zero where there is no authorization key

  std::string encode() const;
  static std::optional<Proof> parse(std::string_view body);
};

struct Welcome {
  std::uint64_t stream = 0;
  Digest key{};  // an HMAC; zero where there is no authorization key

  std::string encode() const;
  static std::optional<Welcome> parse(std::string_view body);
};

struct Refusal {
  Errc reason = Errc::protocol;
  WireVersions versions = kOurVersions;  // of the side that refuses

  std::string encode() const;
  static std::optional<Refusal> parse(std::string_view body);
};

}  // namespace fab
