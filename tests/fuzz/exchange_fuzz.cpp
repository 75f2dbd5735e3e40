#include <string>
#include <string_view>

#include "input.h"
#include "providers/verbs/exchange/messages.h"

// What strangers say where queue pairs are exchanged. A reader that asks for what is missing comes to an end
// with every input, and what it takes for a message means what its bytes say.

using namespace fab::test;
using fab::verbs::ExchangeMessage;
using fab::verbs::QueuePairCard;

namespace {

void is_sound(const ExchangeMessage& message, std::string_view bytes) {
  demand(message.encode() == bytes, "a message is encoded as it was read");
  if (message.type == ExchangeMessage::Type::refusal) return;
  const QueuePairCard& card = message.card;
  demand(card.number >> 24 == 0 && card.first_packet >> 24 == 0, "numbers have 24 bits");
  demand(card.mtu >= 1 && card.mtu <= 5 && card.not_ready_retries <= 7, "a device takes what a card says");
  demand(card.lid != 0 || card.gid != QueuePairCard::GidBytes{}, "a card says where its port is");
}

// Reads as Exchange does: what is missing, and no byte more.
void read(Input& input) {
  std::string begun;
  while (const auto missing = ExchangeMessage::missing(begun)) {
    demand(begun.size() + *missing <= ExchangeMessage::kLongest, "a message is short");
    if (*missing == 0) break;
    const auto some = input.take(1 + input.byte() % *missing);
    if (some.empty()) return;
    begun += some;
  }
  if (const auto message = ExchangeMessage::parse(begun)) is_sound(*message, begun);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  const auto missing = ExchangeMessage::missing(bytes);
  const auto message = ExchangeMessage::parse(bytes);
  demand(!message || missing == 0u, "a message is whole");
  if (message) is_sound(*message, bytes);
  Input input(data, size);
  read(input);
  return 0;
}
