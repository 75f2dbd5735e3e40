// What two sides of an exchange say to each other.
#include "providers/verbs/exchange/messages.h"

#include <doctest/doctest.h>

#include <cstdint>
#include <string>
#include <tuple>
#include <vector>

#include "fabric/types/versions.h"

using namespace fab::verbs;

namespace {

QueuePairCard a_card() {
  return {.number = 0x123456,
          .first_packet = 0xABCDEF,
          .lid = 0x0102,
          .gid = {0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 9},
          .mtu = 4,
          .network = QueuePairCard::Network::roce_v2,
          .reads_served = 16,
          .reads_begun = 8,
          .not_ready_retries = 7};
}

std::string encoded(ExchangeMessage::Type type, const QueuePairCard& card = a_card()) {
  return ExchangeMessage{.type = type, .said = std::string(40, 's'), .card = card}.encode();
}

constexpr auto kCall = ExchangeMessage::Type::call;
constexpr auto kAnswer = ExchangeMessage::Type::answer;
constexpr auto kRefusal = ExchangeMessage::Type::refusal;

// Where the fields of a card lie in an answer.
constexpr std::size_t kNumber = 8, kFirstPacket = 12, kLid = 16, kMtu = 18, kNetwork = 19, kRetries = 22,
                      kZero = 23, kGid = 24, kZeros = 40;

}  // namespace

TEST_CASE("a message is read as it was written, and says what its type may say") {
  for (const auto& [type, size, said] :
       std::vector<std::tuple<ExchangeMessage::Type, std::size_t, std::size_t>>{
           {kCall, 8 + 32 + 36, 32}, {kAnswer, 8 + 36, 0}, {kRefusal, 8 + 8, 8}}) {
    const std::string bytes = encoded(type);
    CHECK(bytes.size() == size);
    CHECK(bytes.size() <= ExchangeMessage::kLongest);
    const auto message = ExchangeMessage::parse(bytes);
    REQUIRE(message);
    CHECK(message->type == type);
    CHECK(message->said == std::string(said, 's'));
    CHECK(message->card == (type == kRefusal ? QueuePairCard{} : a_card()));
  }
  const auto filled = ExchangeMessage::parse(ExchangeMessage{.type = kRefusal, .said = "no"}.encode());
  REQUIRE(filled);
  CHECK(filled->said == std::string("no") + std::string(6, '\0'));
}

TEST_CASE("the bytes of an exchange are those of its version") {
  const std::string bytes = encoded(kAnswer);
  CHECK(fab::versions::kVerbsExchange == 1);
  CHECK(bytes == std::string("pfx1\x01\x02\x24\x00"  // header
                             "\x56\x34\x12\x00\xef\xcd\xab\x00\x02\x01\x04\x03\x10\x08\x07\x00"
                             "\xfe\x80\0\0\0\0\0\0\0\0\0\0\0\0\0\x09"
                             "\0\0\0\0",
                             44));
}

TEST_CASE("a reader knows how many bytes are missing, and asks for none behind the message") {
  for (const auto type : {kCall, kAnswer, kRefusal}) {
    const std::string bytes = encoded(type);
    for (std::size_t cut = 0; cut < bytes.size(); ++cut) {
      const std::size_t missing = (cut < 8 ? 8 : bytes.size()) - cut;
      CHECK(ExchangeMessage::missing(bytes.substr(0, cut)) == missing);
      CHECK_FALSE(ExchangeMessage::parse(bytes.substr(0, cut)));
    }
    CHECK(ExchangeMessage::missing(bytes) == 0u);
    CHECK_FALSE(ExchangeMessage::missing(bytes + '\0'));
    CHECK_FALSE(ExchangeMessage::parse(bytes + '\0'));
  }
}

TEST_CASE("another protocol, version, type or length begins no message") {
  const std::string bytes = encoded(kCall);
  for (const std::size_t at : {0u, 3u, 4u, 5u, 6u, 7u}) {
    std::string other = bytes;
    other[at] = static_cast<char>(other[at] ^ 0x40);
    CAPTURE(at);
    CHECK_FALSE(ExchangeMessage::missing(other.substr(0, 8)));
    CHECK_FALSE(ExchangeMessage::parse(other));
  }
}

TEST_CASE("a card that no device could use is refused") {
  const auto with = [](std::size_t at, const std::string& bytes) {
    std::string answer = encoded(kAnswer);
    answer.replace(at, bytes.size(), bytes);
    return ExchangeMessage::parse(answer).has_value();
  };
  CHECK(with(kNumber, std::string("\x02\0\0\0", 4)));
  CHECK_FALSE(with(kNumber, std::string("\x01\0\0\0", 4)));
  CHECK_FALSE(with(kNumber + 3, "\x01"));
  CHECK_FALSE(with(kFirstPacket + 3, "\x01"));
  CHECK(with(kLid, "\xff\xbf"));
  CHECK_FALSE(with(kLid, std::string("\0\xc0", 2)));
  CHECK_FALSE(with(kMtu, std::string("\0", 1)));
  CHECK(with(kMtu, "\x05"));
  CHECK_FALSE(with(kMtu, "\x06"));
  CHECK_FALSE(with(kNetwork, std::string("\0", 1)));
  CHECK_FALSE(with(kNetwork, "\x04"));
  CHECK_FALSE(with(kRetries, "\x08"));
  CHECK_FALSE(with(kZero, "\x01"));
  CHECK_FALSE(with(kZeros + 3, "\x01"));
  const std::string nowhere(16, '\0');
  CHECK_FALSE(with(kGid, nowhere));  // RoCE reaches nobody by LID
  QueuePairCard by_lid = a_card();
  by_lid.network = QueuePairCard::Network::infiniband;
  by_lid.gid = {};
  CHECK(ExchangeMessage::parse(encoded(kAnswer, by_lid)));
  by_lid.lid = 0;
  CHECK_FALSE(ExchangeMessage::parse(encoded(kAnswer, by_lid)));
}
