// What the verbs provider reads from peers. The devices themselves are tested by tests/rdma.
#include <doctest/doctest.h>

#include <cstring>
#include <random>
#include <string>

#include "fabric/frame.h"
#include "providers/verbs/verbs_connection.h"
#include "providers/verbs/verbs_regions.h"

namespace {

using namespace fab;
using verbs::Description;
using verbs::Word;

std::string bytes_of(const Word& word) {
  std::string bytes(Word::kBytes, '\0');
  word.encode(bytes.data());
  return bytes;
}

}  // namespace

TEST_CASE("the word of a call survives the way through bytes, and nothing else is taken for one") {
  const Word word{.purpose = Word::Purpose::memory, .to = {1, 2, 3}, .token = 0x1234567890ABCDEF};
  const std::string bytes = bytes_of(word);
  for (const std::string& padded : {bytes, bytes + std::string(24, '\0')}) {
    const auto copy = Word::decode(padded);
    REQUIRE(copy);
    CHECK(copy->purpose == word.purpose);
    CHECK(copy->to == word.to);
    CHECK(copy->token == word.token);
  }
  for (std::size_t cut = 0; cut < bytes.size(); ++cut) CHECK_FALSE(Word::decode(bytes.substr(0, cut)));
  std::mt19937 random(1);
  for (int round = 0; round < 20'000; ++round) {
    std::string mutated = bytes;
    mutated[random() % mutated.size()] = static_cast<char>(random());
    if (const auto parsed = Word::decode(mutated)) CHECK(bytes_of(*parsed) == mutated);
  }
}

TEST_CASE("descriptions survive the way through bytes; what is taken from others lies within 64 bits") {
  Description told{.base = 4096, .access = 48, .atomics = true, .piece_count = 4};
  for (std::uint32_t i = 0; i < 4; ++i) told.pieces[i] = {0x7F0000000000u + i * 8192, 4096 + i, 77 + i};
  std::byte bytes[kDescriptionBytes];
  told.encode(bytes);
  const auto copy = Description::decode(bytes);
  REQUIRE(copy);
  CHECK(copy->base == 4096);
  CHECK(copy->access == 48);
  CHECK(copy->atomics);
  CHECK(copy->length() == 4 * 4096 + 6);
  CHECK(copy->pieces[3].address == 0x7F0000000000u + 3 * 8192);
  CHECK(copy->pieces[3].rkey == 80);

  std::mt19937 random(2);
  for (int round = 0; round < 50'000; ++round) {
    std::byte mutated[kDescriptionBytes];
    std::memcpy(mutated, bytes, sizeof bytes);
    for (unsigned changes = random() % 4; changes-- > 0;)
      mutated[random() % sizeof mutated] = static_cast<std::byte>(random());
    const auto parsed = Description::decode(mutated);
    if (!parsed) continue;
    CHECK(parsed->piece_count >= 1);
    CHECK(parsed->piece_count <= Description::kMostPieces);
    std::uint64_t sum = 0;
    for (std::size_t i = 0; i < parsed->piece_count; ++i) {
      const auto& piece = parsed->pieces[i];
      CHECK(piece.length != 0);
      CHECK(piece.address + piece.length >= piece.address);
      CHECK(sum + piece.length >= sum);
      sum += piece.length;
    }
    CHECK(parsed->length() == sum);
  }
}
