// What devices do by themselves, and what becomes of it when they fail.
#include <doctest/doctest.h>

#include <cstring>

#include "providers/verbs/mock_node.h"

using namespace fab;
using namespace fab::test;

namespace {

constexpr std::size_t kPiece = 100 * 1024;

// Two ends whose devices are connected and know the memory of the second one.
struct Acquainted {
  Acquainted() {
    const int before = mock_verbs_objects("read");
    CHECK(soon([&] {
      std::uint64_t word = 0;
      CHECK(run(transfer_of(OpCode::read, b.region->key(), 0, &word, sizeof word)) == Errc::ok);
      return mock_verbs_objects("read") != before;
    }));
  }
  Errc run(const Transfer& transfer) { return Begun(a, to_b, transfer).outcome(); }
  Errc update(OpCode op, std::uint64_t operand, std::uint64_t compare, std::uint64_t& former) {
    Transfer transfer = transfer_of(op, b.region->key(), 0, &operand, sizeof operand);
    transfer.compare = reinterpret_cast<const std::byte*>(&compare);
    transfer.result = reinterpret_cast<std::byte*>(&former);
    if (op == OpCode::compare_atomic) transfer.atomic = AtomicOp::cswap;
    return run(transfer);
  }
  std::uint64_t word() const {
    std::uint64_t value;
    std::memcpy(&value, b.memory.data(), sizeof value);
    return value;
  }

  MockNode a{DomainOptions{}, 2 * kPiece}, b{DomainOptions{}, 1 << 20};
  const PeerId to_b = a.knows(b);
};

}  // namespace

TEST_CASE("devices compare and swap, and what the peer's device refuses is done by its processor") {
  if (!mock_device()) return;
  Acquainted ends;
  std::uint64_t former = 77;
  const int before = mock_verbs_objects("read");
  CHECK(ends.update(OpCode::compare_atomic, 5, 0, former) == Errc::ok);
  CHECK(former == 0);
  CHECK(ends.update(OpCode::compare_atomic, 9, 6, former) == Errc::ok);
  CHECK(former == 5);
  CHECK(ends.word() == 5);
  CHECK(ends.update(OpCode::fetch_atomic, 10, 0, former) == Errc::ok);
  CHECK(former == 5);
  CHECK(ends.word() == 15);
  CHECK(mock_verbs_objects("read") - before == 3 * 8);

  const MockFaults faults("fail=atomic:1:access");
  CHECK(ends.update(OpCode::compare_atomic, 21, 15, former) == Errc::ok);
  CHECK(mock_verbs_injected() == 1);
  CHECK(former == 15);
  CHECK(ends.word() == 21);
}

TEST_CASE("an update that was injected and lost is a completion, and is not done twice") {
  if (!mock_device()) return;
  Acquainted ends;
  std::uint64_t one = 1, former = 0;
  {
    const MockFaults faults("fail=atomic:1:retry");
    Transfer add = transfer_of(OpCode::atomic, ends.b.region->key(), 0, &one, sizeof one);
    add.delivery = Delivery::inject;
    CHECK(ends.run(add) == Errc::ok);  // its operands have been copied
    CHECK(soon([] { return mock_verbs_injected() == 1; }));
    Completion told[16];
    std::size_t lost = 0;
    CHECK(soon([&] {
      const std::size_t count = ends.a.completions->read(told);
      for (std::size_t i = 0; i < count; ++i) lost += told[i].error == Errc::peer_lost;
      return lost != 0;
    }));
    CHECK(lost == 1);
  }
  CHECK(ends.update(OpCode::fetch_atomic, 1, 0, former) == Errc::ok);
  CHECK(former == 1);  // the peer has done it once
}

TEST_CASE("pieces of a region go by devices, and pieces of other memory as messages") {
  if (!mock_device()) return;
  Acquainted ends;
  std::vector<std::byte> other(2 * kPiece, std::byte{1});
  std::fill(ends.a.memory.begin(), ends.a.memory.end(), std::byte{2});
  for (const bool in_region : {false, true}) {
    CAPTURE(in_region);
    std::vector<std::byte>& from = in_region ? ends.a.memory : other;
    const iovec pieces[] = {{from.data() + kPiece, kPiece}, {from.data(), kPiece - 8}};
    Transfer put = transfer_of(OpCode::write, ends.b.region->key(), 0, nullptr, 2 * kPiece - 8);
    put.local_pieces = pieces;
    put.piece_count = 2;
    const int before = mock_verbs_objects("written");
    CHECK(ends.run(put) == Errc::ok);
    CHECK(mock_verbs_objects("written") - before == (in_region ? static_cast<int>(put.length) : 0));
    CHECK(std::equal(ends.b.memory.begin(), ends.b.memory.begin() + 2 * kPiece - 8, from.begin()));
  }
  CHECK(ends.b.memory[2 * kPiece - 8] == std::byte{0});
}

TEST_CASE("a counter counts each put from when it is bound, though devices knew the region") {
  if (!mock_device()) return;
  Acquainted ends;
  std::vector<std::byte> bytes(kPiece, std::byte{3});
  const Transfer put = transfer_of(OpCode::write, ends.b.region->key(), 0, bytes.data(), bytes.size());
  const int before = mock_verbs_objects("written");
  CHECK(ends.run(put) == Errc::ok);
  CHECK(mock_verbs_objects("written") != before);
  const auto counter = ends.b.core->open_counter();
  ends.b.region->bind(counter);
  for (std::uint64_t round = 1; round < 5; ++round) {
    CHECK(ends.run(put) == Errc::ok);
    CHECK(counter->value() == round);
  }
}

TEST_CASE("a region that is too much for the device goes as messages, and is tried again later") {
  if (!mock_device()) return;
  Acquainted ends;
  std::vector<std::byte> bytes(kPiece, std::byte{4});
  auto memory = std::vector<std::byte>(kPiece);
  const auto region = ends.b.open_region(memory);
  const Transfer put = transfer_of(OpCode::write, region->key(), 0, bytes.data(), bytes.size());
  const int before = mock_verbs_objects("written");
  {
    const MockFaults faults("max_mr_size=4096");
    CHECK(ends.run(put) == Errc::ok);
    CHECK(memory == bytes);
    CHECK(mock_verbs_objects("written") == before);
  }
  region->close({});
}

TEST_CASE("a region that a device has refused is not offered to it at each question") {
  if (!mock_device()) return;
  constexpr std::size_t kAsks = 8 * 1024;  // bytes that lead to a question, and wait for no answer
  MockNode a{{}, kPiece}, c{{}, kPiece}, b{{}, kPiece};
  std::vector<std::byte> bytes(kAsks, std::byte{1});
  const auto put = [&](MockNode& from, PeerId to, std::size_t length) {
    return Begun(from, to, transfer_of(OpCode::write, b.region->key(), 0, bytes.data(), length)).outcome();
  };
  const PeerId from_a = a.knows(b), from_c = c.knows(b);
  CHECK(put(a, from_a, 8) == Errc::ok);  // connected
  CHECK(put(c, from_c, 8) == Errc::ok);
  const MockFaults faults("refuse=reg_mr:1/1");
  CHECK(put(a, from_a, kAsks) == Errc::ok);  // after its question, which came before it
  CHECK(mock_verbs_injected() == 1);
  CHECK(put(c, from_c, kAsks) == Errc::ok);
  CHECK(mock_verbs_injected() == 1);
}
