// Rails when memory is short: what was accepted has one outcome, what is refused had no effect.

#include <doctest/doctest.h>

#include <algorithm>
#include <random>

#include "failing_memory.h"
#include "providers/lnx/rails/simple_links.h"

using namespace fab;
using namespace fab::lnx;
using namespace fab::test;

namespace {

constexpr std::size_t kLarge = 600'000, kAnnounced = 10'000;

struct Op {
  Operation operation;
  Transfer transfer{};
  std::vector<std::byte> bytes;
  std::vector<iovec> pieces;
  std::int64_t former = -1, one = 1;

  void begin(OpCode op, std::size_t length, int value, Delivery delivery = Delivery::delivery) {
    operation.begin({});
    bytes.assign(length, static_cast<std::byte>(value));
    transfer = {};
    transfer.operation = &operation;
    transfer.op = op;
    transfer.local = bytes.data();
    transfer.length = length;
    transfer.delivery = delivery;
  }
  void cut(std::size_t count) {
    const std::size_t each = bytes.size() / count;
    for (std::size_t i = 0; i < count; ++i) pieces.push_back({bytes.data() + i * each, each});
    transfer.local_pieces = pieces.data();
    transfer.piece_count = static_cast<std::uint16_t>(count);
    transfer.length = each * count;
  }
  void add() {
    begin(OpCode::fetch_atomic, 8, 0);
    transfer.local = reinterpret_cast<std::byte*>(&one);
    transfer.result = reinterpret_cast<std::byte*>(&former);
    transfer.atomic = AtomicOp::sum;
    transfer.type = DataType::i64;
  }
  Errc outcome() const { return operation.completion().error; }
};

// Some of everything that goes over rails. Messages say in `key` how many went before.
std::vector<std::unique_ptr<Op>> mixture(int value) {
  std::vector<std::unique_ptr<Op>> ops;
  const auto next = [&]() -> Op& { return *ops.emplace_back(std::make_unique<Op>()); };
  next().begin(OpCode::write, kLarge, value);
  next().begin(OpCode::write, kLarge, value);
  ops.back()->cut(48);
  next().begin(OpCode::read, kLarge, 0);
  next().begin(OpCode::write, 40'000, value);
  next().begin(OpCode::write, 100, value, Delivery::inject);
  for (std::uint64_t message = 0; message < 6; ++message) {
    next().begin(OpCode::send, message % 2 ? kAnnounced : 50, value);
    ops.back()->transfer.key = static_cast<std::uint64_t>(value) * 6 + message;
    next().add();
  }
  return ops;
}

struct Outcome {
  bool opened = false;
  std::int64_t added = 0;
};

// Three mixtures over two links, which break again and again.
Outcome run(FailingMemory& memory, bool breaks) {
  std::mt19937 random(7);
  std::vector<std::vector<std::unique_ptr<Op>>> rounds;
  for (int value = 0; value < 3; ++value) rounds.push_back(mixture(value));
  SimpleRails world;
  Outcome outcome;
  const FailingMemory::Scope scope(memory);
  try {
    world.open();
    outcome.opened = true;
  } catch (const std::bad_alloc&) {
    return outcome;
  }
  const auto step = [&] {
    world.pass(std::chrono::microseconds(100));
    world.turn();
    SimplePath* const path = world.links[random() % 2].path;
    if (!path) return;
    if (breaks && random() % 40 == 0)
      path->move(false);
    else
      path->move();
  };
  for (auto& ops : rounds) {
    for (auto& op : ops) {
      while (world.rails->post({&op->transfer, 1}) == 0) step();
      for (auto steps = random() % 4; steps; --steps) step();
    }
    const auto done = [](const auto& op) { return op->operation.done(); };
    for (int steps = 0; !std::ranges::all_of(ops, done) && steps < 1'000'000; ++steps) step();
    const FailingMemory::Spared spared;
    for (auto& op : ops) {
      REQUIRE(op->operation.done());
      // Peer_lost: no rail came back, because nothing was left to open one.
      if (op->outcome() == Errc::peer_lost) return outcome;
      if (op->outcome() != Errc::ok) REQUIRE(op->outcome() == Errc::no_memory);
      if (op->transfer.op != OpCode::fetch_atomic || op->outcome() != Errc::ok) continue;
      REQUIRE(op->former == outcome.added);  // once, in order, and none that was refused
      ++outcome.added;
    }
    REQUIRE(world.far.sum == outcome.added);
    REQUIRE(world.far.in_order);
    const auto counts = world.rails->counts();
    REQUIRE(counts.posted == counts.settled);
  }
  return outcome;
}

}  // namespace

TEST_CASE("rails with each allocation failing once, or that one and all later ones") {
  for (const bool breaks : {false, true}) {
    for (const auto lack : {FailingMemory::Lack::once, FailingMemory::Lack::lasting}) {
      CAPTURE(breaks);
      Outcome last;
      const auto allocations = with_each_failing([&](FailingMemory& memory) { last = run(memory, breaks); },
                                                 FailingMemory::Of::thread, lack);
      CHECK(allocations > 20);
      CHECK(last.opened);
      CHECK(last.added == 18);  // of the run in which none failed
    }
  }
}
