#include "fabric/memory/post_rules.h"

#include <doctest/doctest.h>

#include <array>

namespace fab {
namespace {

std::array<std::byte, 256> memory;

Transfer transfer(OpCode op, std::byte* local, std::uint64_t length, std::uint64_t key = 1) {
  Transfer made{};
  made.op = op;
  made.local = local;
  made.length = length;
  made.key = key;
  return made;
}

bool allowed(const PostRules& rules, const Transfer& one) {
  std::vector<Transfer> translated;
  try {
    rules.apply({&one, 1}, translated);
    return true;
  } catch (const Error& error) {
    CHECK(error.code() == Errc::invalid);
    return false;
  }
}

TEST_CASE("a domain that demands nothing passes batches on as they are") {
  PostRules rules(0);
  CHECK_FALSE(rules.active());
  const Transfer put = transfer(OpCode::write, memory.data(), 8);
  std::vector<Transfer> translated;
  CHECK(rules.apply({&put, 1}, translated).data() == &put);
}

TEST_CASE("MR-23, MR-31: local memory has to lie in one region with the right for it") {
  PostRules rules(mr_mode::kLocal);
  CHECK(rules.active());
  const iovec source{memory.data(), 64}, sink{memory.data() + 64, 64}, around{memory.data(), 256};
  rules.add_local(1, {&source, 1}, access::kWrite);
  rules.add_local(2, {&sink, 1}, access::kRead);
  CHECK(allowed(rules, transfer(OpCode::write, memory.data(), 64)));
  CHECK(allowed(rules, transfer(OpCode::write, memory.data() + 60, 4)));
  CHECK_FALSE(allowed(rules, transfer(OpCode::write, memory.data() + 60, 5)));  // runs into the other region
  CHECK_FALSE(allowed(rules, transfer(OpCode::read, memory.data(), 8)));
  CHECK(allowed(rules, transfer(OpCode::read, memory.data() + 64, 64)));
  CHECK_FALSE(allowed(rules, transfer(OpCode::read, memory.data() + 128, 1)));
  CHECK(allowed(rules, transfer(OpCode::read, nullptr, 0)));

  iovec pieces[] = {{memory.data(), 8}, {memory.data() + 32, 8}};
  Transfer several = transfer(OpCode::write, nullptr, 16);
  several.local_pieces = pieces;
  several.piece_count = 2;
  CHECK(allowed(rules, several));
  pieces[1].iov_base = memory.data() + 100;
  CHECK_FALSE(allowed(rules, several));

  Transfer fetch = transfer(OpCode::fetch_atomic, memory.data(), 8);
  fetch.result = memory.data() + 64;
  CHECK(allowed(rules, fetch));
  fetch.result = memory.data();
  CHECK_FALSE(allowed(rules, fetch));

  // A longer region that begins before shorter ones, with the same start as one of them.
  rules.add_local(3, {&around, 1}, access::kWrite);
  CHECK(allowed(rules, transfer(OpCode::write, memory.data() + 200, 56)));
  CHECK(allowed(rules, transfer(OpCode::write, memory.data() + 60, 5)));
  rules.remove_local(3, {&around, 1});
  CHECK_FALSE(allowed(rules, transfer(OpCode::write, memory.data() + 200, 56)));
  CHECK(allowed(rules, transfer(OpCode::write, memory.data(), 64)));
}

TEST_CASE("mapped keys stand for the key until they are unmapped") {
  PostRules rules(0);
  const std::uint64_t first = rules.map_key(77), second = rules.map_key(77);
  CHECK(rules.active());
  CHECK(first != second);
  CHECK(rules.mapped_keys() == 2);
  const Transfer batch[] = {transfer(OpCode::write, memory.data(), 8, first),
                            transfer(OpCode::read, memory.data(), 8, 5)};
  std::vector<Transfer> translated;
  const auto posted = rules.apply(batch, translated);
  REQUIRE(posted.size() == 2);
  CHECK(posted[0].key == 77);
  CHECK(posted[1].key == 5);  // where RAW is not in force, other keys go as they are
  rules.unmap_key(first);
  CHECK_THROWS_AS(rules.unmap_key(first), Error);
  CHECK(rules.apply(batch, translated)[0].key == first);
  rules.unmap_key(second);
  CHECK_FALSE(rules.active());
}

TEST_CASE("in RAW mode a key that was not mapped is nobody's") {
  PostRules rules(mr_mode::kRaw);
  const Transfer put = transfer(OpCode::write, memory.data(), 8, 5);
  std::vector<Transfer> translated;
  CHECK(rules.apply({&put, 1}, translated)[0].key == kNoKey);
}

TEST_CASE("who is exempt posts what others may not, and mapped keys are translated all the same") {
  PostRules rules(mr_mode::kRaw | mr_mode::kLocal);
  const std::uint64_t mapped = rules.map_key(77);
  const Transfer batch[] = {transfer(OpCode::write, memory.data(), 8, mapped),
                            transfer(OpCode::write, memory.data(), 8, 5)};
  std::vector<Transfer> translated;
  CHECK_THROWS_AS(rules.apply(batch, translated), Error);
  const auto posted = rules.apply(batch, translated, true);
  CHECK(posted[0].key == 77);
  CHECK(posted[1].key == 5);
}

}  // namespace
}  // namespace fab
