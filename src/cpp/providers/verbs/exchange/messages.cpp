#include "providers/verbs/exchange/messages.h"

#include <algorithm>

#include "base/bytes/wire.h"
#include "fabric/types/versions.h"

namespace fab::verbs {
namespace {

constexpr std::uint32_t kExchangeMagic = 0x31786670;  // "pfx1"
constexpr std::uint32_t kMost24Bits = (1u << 24) - 1;
constexpr std::uint32_t kFirstQueuePair = 2;  // those before are the subnet's
constexpr std::uint16_t kLastLid = 0xBFFF;    // those behind are of groups
constexpr std::uint8_t kLongestMtu = 5;       // IBV_MTU_4096
constexpr std::uint8_t kMostNotReadyRetries = 7;

// Bytes behind the header; nothing: there is no such type.
std::optional<std::size_t> body_of(std::uint8_t type) noexcept {
  switch (static_cast<ExchangeMessage::Type>(type)) {
    case ExchangeMessage::Type::call:
      return ExchangeMessage::kCallSays + QueuePairCard::kBytes;
    case ExchangeMessage::Type::answer:
      return QueuePairCard::kBytes;
    case ExchangeMessage::Type::refusal:
      return ExchangeMessage::kRefusalSays;
  }
  return {};
}

std::size_t says(ExchangeMessage::Type type) noexcept {
  if (type == ExchangeMessage::Type::answer) return 0;
  return type == ExchangeMessage::Type::call ? ExchangeMessage::kCallSays : ExchangeMessage::kRefusalSays;
}

void put_card(WireWriter& out, const QueuePairCard& card) {
  out.put(card.number).put(card.first_packet).put(card.lid).put(card.mtu);
  out.put(static_cast<std::uint8_t>(card.network)).put(card.reads_served).put(card.reads_begun);
  out.put(card.not_ready_retries).put(std::uint8_t{0});
  out.raw({reinterpret_cast<const char*>(card.gid.data()), card.gid.size()}).put(std::uint32_t{0});
}

// Returns nothing for what no device could use.
std::optional<QueuePairCard> take_card(WireReader& in) noexcept {
  QueuePairCard card;
  card.number = in.get<std::uint32_t>();
  card.first_packet = in.get<std::uint32_t>();
  card.lid = in.get<std::uint16_t>();
  card.mtu = in.get<std::uint8_t>();
  const auto network = in.get<std::uint8_t>();
  card.reads_served = in.get<std::uint8_t>();
  card.reads_begun = in.get<std::uint8_t>();
  card.not_ready_retries = in.get<std::uint8_t>();
  const auto zero = in.get<std::uint8_t>();
  const auto gid = in.raw(card.gid.size());
  const auto more_zeros = in.get<std::uint32_t>();
  if (!in.ok() || zero != 0 || more_zeros != 0) return {};
  std::ranges::copy(gid, card.gid.begin());
  if (network < 1 || network > 3) return {};
  card.network = static_cast<QueuePairCard::Network>(network);
  const bool placed = card.gid != QueuePairCard::GidBytes{} ||
                      (card.network == QueuePairCard::Network::infiniband && card.lid != 0);
  const bool usable = card.number >= kFirstQueuePair && card.number <= kMost24Bits &&
                      card.first_packet <= kMost24Bits && card.lid <= kLastLid && card.mtu >= 1 &&
                      card.mtu <= kLongestMtu && card.not_ready_retries <= kMostNotReadyRetries;
  return placed && usable ? std::optional(card) : std::nullopt;
}

}  // namespace

std::string ExchangeMessage::encode() const {
  WireWriter out;
  const auto length = static_cast<std::uint16_t>(body_of(static_cast<std::uint8_t>(type)).value_or(0));
  out.put(kExchangeMagic).put(versions::kVerbsExchange).put(static_cast<std::uint8_t>(type)).put(length);
  std::string fixed = said;
  fixed.resize(says(type));
  out.raw(fixed);
  if (type != Type::refusal) put_card(out, card);
  return out.take();
}

std::optional<std::size_t> ExchangeMessage::missing(std::string_view begun) noexcept {
  if (begun.size() < kHeader) return kHeader - begun.size();
  WireReader in(begun);
  const bool ours =
      in.get<std::uint32_t>() == kExchangeMagic && in.get<std::uint8_t>() == versions::kVerbsExchange;
  const auto body = body_of(in.get<std::uint8_t>());
  const auto length = in.get<std::uint16_t>();
  if (!ours || !body || length != *body || begun.size() > kHeader + *body) return {};
  return kHeader + *body - begun.size();
}

std::optional<ExchangeMessage> ExchangeMessage::parse(std::string_view bytes) {
  if (missing(bytes) != 0u || bytes.size() < kHeader) return {};
  ExchangeMessage message;
  message.type = static_cast<Type>(static_cast<std::uint8_t>(bytes[5]));
  WireReader in(bytes.substr(kHeader));
  message.said = in.raw(says(message.type));
  if (message.type != Type::refusal) {
    const auto card = take_card(in);
    if (!card) return {};
    message.card = *card;
  }
  return in.at_end() ? std::optional(std::move(message)) : std::nullopt;
}

}  // namespace fab::verbs
