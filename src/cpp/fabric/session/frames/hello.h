#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/bytes/sha256.h"
#include "base/network/tcp_socket.h"
#include "fabric/types/auth_key.h"
#include "fabric/types/error.h"
#include "fabric/types/name.h"

// What network links exchange outside of sessions: a part of a name, and the messages of the handshake
// (docs/wire.md), whose order handshake.h knows. Parsers take bytes that nobody vouches for, and return
// nothing where something is wrong.
namespace fab {

using EndpointId = std::array<std::uint8_t, 16>;
using Nonce = std::array<std::uint8_t, 32>;

// Where an endpoint of a network link is. Encoded, this is the link's part of the endpoint's name.
struct EndpointAddress {
  EndpointId id{};
  std::array<std::uint8_t, 16> network{};  // hash of network_identity(): whose loopback addresses these are
  std::vector<SocketAddress> addresses;

  std::string encode() const;
  static std::optional<EndpointAddress> parse(std::string_view bytes);
  static bool valid(std::string_view bytes) noexcept;  // whether parse() takes these bytes
  // What Domain::part_check() says of a part of this link.
  static PartVerdict judge(const PartView& part);
};
std::array<std::uint8_t, 16> this_network();

enum class HelloType : std::uint8_t { hello = 1, challenge = 2, proof = 3, welcome = 4, refuse = 5 };
inline constexpr std::size_t kHelloHeader = 12;
inline constexpr std::size_t kMaxHelloBody = 4096;

// Magic, version, type and length of the body. parse() returns nothing for a header of another protocol or of
// another version.
struct HelloHeader {
  HelloType type{};
  std::uint32_t length = 0;
  static std::optional<HelloHeader> parse(std::string_view bytes);
};
// The number of bytes that are missing of the message which begins with `begun`. Returns nothing if no
// message begins so, or if the message ends before `begun` does.
std::optional<std::size_t> missing_of_message(std::string_view begun);

// The first message, which the caller sends. `to` is kAnybody if the caller knows only the address.
inline constexpr EndpointId kAnybody{};
struct Hello {
  EndpointId from{}, to{};
  // The sender's number for the stream. A stream with another number from the same endpoint replaces it.
  std::uint64_t stream = 0;
  Nonce nonce{};
  bool keyed = false;
  Part part;              // of the sender's name
  EndpointAddress where;  // what `part` says: parse() sets it, and encode() does not look at it

  std::string encode() const;
  static std::optional<Hello> parse(std::string_view body);
};

struct Welcome {
  std::uint64_t stream = 0;
  EndpointId id{};  // of the side that answers: the caller may have known no more than an address
  Digest proof{};   // zero where there is no authorization key

  std::string encode() const;
  static std::optional<Welcome> parse(std::string_view body);
};

std::string encode_challenge(const Nonce& nonce);
std::optional<Nonce> parse_challenge(std::string_view body);
std::string encode_proof(const Digest& proof);
std::optional<Digest> parse_proof(std::string_view body);
std::string encode_refuse(Errc reason);
std::optional<Errc> parse_refuse(std::string_view body);

}  // namespace fab
