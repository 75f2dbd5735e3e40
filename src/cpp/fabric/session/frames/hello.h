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
// (docs/wire.md), which handshake.h puts into their order. Parsers take bytes that nobody vouches for and
// give nothing where something is wrong.
namespace fab {

using EndpointId = std::array<std::uint8_t, 16>;
using Nonce = std::array<std::uint8_t, 32>;

// Where an endpoint of a network link is: its part of a name.
struct EndpointAddress {
  EndpointId id{};
  std::array<std::uint8_t, 16> network{};  // hash of network_identity(): whose loopback addresses are meant
  std::vector<SocketAddress> addresses;

  std::string encode() const;
  static std::optional<EndpointAddress> parse(std::string_view bytes);
  static bool valid(std::string_view bytes) noexcept;  // whether parse() takes them
};
std::array<std::uint8_t, 16> this_network();

enum class HelloType : std::uint8_t { hello = 1, challenge = 2, proof = 3, welcome = 4, refuse = 5 };
inline constexpr std::size_t kHelloHeader = 12;
inline constexpr std::size_t kMaxHelloBody = 4096;

// Magic, version, type and length of the body; nothing if it is no header of this protocol version.
struct HelloHeader {
  HelloType type{};
  std::uint32_t length = 0;
  static std::optional<HelloHeader> parse(std::string_view bytes);
};
// How many bytes are missing until the message that begins with `begun` is whole; nothing if no message
// begins so, or it ends earlier.
std::optional<std::size_t> missing_of_message(std::string_view begun);

// The first message, by the caller. `to` is kAnybody for whoever listens at that address.
inline constexpr EndpointId kAnybody{};
struct Hello {
  EndpointId from{}, to{};
  std::uint64_t stream =
      0;  // the sender's number for the stream: another one from the same endpoint replaces it
  Nonce nonce{};
  bool keyed = false;
  Part part;              // of the sender's name
  EndpointAddress where;  // what it says; encode() takes it from there

  std::string encode() const;
  static std::optional<Hello> parse(std::string_view body);
};

struct Welcome {
  std::uint64_t stream = 0;
  EndpointId id{};  // who answers: the caller may have known no more than an address
  Digest proof{};   // zero without a key

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
