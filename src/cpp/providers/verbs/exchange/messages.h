#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace fab::verbs {

// What one side tells the other of its queue pair, so that each can connect its own (ibv_modify_qp(3)).
struct QueuePairCard {
  // Of both sides, or they do not reach each other.
  enum class Network : std::uint8_t { infiniband = 1, roce_v1 = 2, roce_v2 = 3 };
  static constexpr std::size_t kBytes = 36;
  using GidBytes = std::array<std::uint8_t, 16>;

  std::uint32_t number = 0;        // of the queue pair; 24 bits
  std::uint32_t first_packet = 0;  // the sequence number of the first packet that it sends; 24 bits
  std::uint16_t lid = 0;           // of the port; 0: it has none
  GidBytes gid{};                  // of the port; zero: it has none
  std::uint8_t mtu = 1;            // the longest packet of the port, as an ibv_mtu
  Network network = Network::infiniband;
  std::uint8_t reads_served = 1, reads_begun = 1;  // reads and atomics at a time: of the peer, and own ones
  std::uint8_t not_ready_retries =
      0;  // how often the peer tries again where this side has no receive; 7: for ever

  friend bool operator==(const QueuePairCard&, const QueuePairCard&) = default;
};

// What the two sides of an exchange say to each other over tcp (docs/wire.md). The caller begins with a call.
// It is answered by a card or by a refusal, and after that nothing more is said: the end of the tcp
// connection is that of the queue pairs.
struct ExchangeMessage {
  enum class Type : std::uint8_t { call = 1, answer = 2, refusal = 3 };
  static constexpr std::size_t kHeader = 8;
  static constexpr std::size_t kCallSays = 32, kRefusalSays = 8;  // bytes
  static constexpr std::size_t kLongest = kHeader + kCallSays + QueuePairCard::kBytes;

  Type type = Type::call;
  std::string said{};    // of a call and a refusal: what would be the private data of rdma_cm
  QueuePairCard card{};  // of a call and an answer

  // `said` is cut, or filled with zeros, to the length that the type has.
  std::string encode() const;
  // Of bytes that nobody vouches for. Returns nothing for those that are no whole message.
  static std::optional<ExchangeMessage> parse(std::string_view bytes);
  // How many bytes are missing of the message that begins so; nothing if none does.
  static std::optional<std::size_t> missing(std::string_view begun) noexcept;
};

}  // namespace fab::verbs
