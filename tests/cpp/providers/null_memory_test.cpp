// A null address of local memory is the outcome of its operation, whatever link it would have taken.

#include <doctest/doctest.h>

#include <cstring>
#include <string>
#include <vector>

#include "providers/shm/harness.h"
#include "providers/tcp/harness.h"

using namespace fab;
using namespace fab::test;

namespace {

constexpr std::uint64_t kLength = 4096;
std::byte memory[kLength];
const iovec null_inside[2] = {{memory, kLength - 8}, {nullptr, 8}};

Transfer at_null(OpCode op, std::uint64_t key, std::uint64_t length) {
  Transfer made{};
  made.op = op;
  made.key = key;
  made.length = length;
  made.delivery = Delivery::delivery;
  made.type = DataType::u64;
  made.atomic = op == OpCode::compare_atomic ? AtomicOp::cswap : AtomicOp::sum;
  return made;
}

// All that needs local memory, each without some of it.
std::vector<Transfer> without_memory(std::uint64_t key) {
  std::vector<Transfer> all;
  for (const std::uint64_t length : {std::uint64_t{8}, kLength})
    for (const OpCode op : {OpCode::write, OpCode::read, OpCode::atomic, OpCode::send})
      all.push_back(at_null(op, key, length));
  for (const OpCode op : {OpCode::write, OpCode::read, OpCode::send}) {
    all.push_back(at_null(op, key, kLength));
    all.back().local_pieces = null_inside;
    all.back().piece_count = 2;
    all.push_back(at_null(op, key, kLength));
    all.back().local_pieces = nullptr;
    all.back().piece_count = 2;
  }
  Transfer exchange = at_null(OpCode::compare_atomic, key, 8);
  const auto lacking = [&](std::byte* operand, std::byte* compare, std::byte* result) {
    exchange.local = operand;
    exchange.compare = compare;
    exchange.result = result;
    all.push_back(exchange);
  };
  lacking(nullptr, memory, memory + 8);
  lacking(memory, nullptr, memory + 8);
  lacking(memory, memory + 8, nullptr);
  Transfer read = at_null(OpCode::fetch_atomic, key, 8);
  read.atomic = AtomicOp::atomic_read;  // needs no operand, but a place for the result
  all.push_back(read);
  return all;
}

// Posts each by itself; the last one is whole.
void check(Context& context, PeerId peer, std::uint64_t key) {
  std::vector<Transfer> all = without_memory(key);
  const auto outcome = [&](Transfer& transfer) {
    Operation operation;
    operation.begin({});
    transfer.operation = &operation;
    while (context.post(peer, {&transfer, 1}) == 0) context.progress();
    REQUIRE(context.wait([&] { return operation.done(); }, Deadline::in_seconds(30)));
    return operation.completion().error;
  };
  for (std::size_t i = 0; i < all.size(); ++i) {
    CAPTURE(i);
    CHECK(outcome(all[i]) == Errc::bounds);
  }
  Transfer nothing = at_null(OpCode::write, key, 0);
  CHECK(outcome(nothing) == Errc::ok);
  Transfer whole = at_null(OpCode::write, key, kLength);
  whole.local = memory;
  CHECK(outcome(whole) == Errc::ok);
}

void check_receive(Context& context) {
  Operation operation;
  operation.begin({});
  Receive receive;
  receive.operation = &operation;
  receive.length = kLength;
  try {
    context.inbox().receive(receive);
    FAIL("it was taken");
  } catch (const Error& error) {
    CHECK(error.code() == Errc::bounds);
  }
  receive.length = 0;
  context.inbox().receive(receive);
  CHECK(context.inbox().cancel(operation));
}

}  // namespace

TEST_CASE("null addresses over shared memory") {
  for (const std::string copy : {"mapped", "cma", "ring"}) {
    CAPTURE(copy);
    Side a(copy), b(copy);
    Side::Memory far = b.alloc(kLength);
    check(*a.context, a.knows(b), far.region->key());
    check_receive(*a.context);
  }
}

TEST_CASE("null addresses over tcp") {
  Node a({}, kLength), b({}, kLength);
  check(*a.context, a.peers->insert(b.name()), b.region->key());
  check_receive(*a.context);
}
