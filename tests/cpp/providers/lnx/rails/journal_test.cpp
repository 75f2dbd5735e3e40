#include "providers/lnx/rails/journal.h"

#include <doctest/doctest.h>

#include <deque>
#include <vector>

#include "providers/lnx/rails/stripes.h"

using namespace fab;
using namespace fab::lnx;

namespace {

struct Op {
  Operation operation;
  Transfer transfer{};
  std::vector<std::byte> bytes, result;

  explicit Op(OpCode op, std::size_t length = 8, Delivery delivery = Delivery::delivery)
      : bytes(length), result(length) {
    operation.begin({});
    transfer.operation = &operation;
    transfer.op = op;
    transfer.local = bytes.data();
    transfer.length = length;
    transfer.delivery = delivery;
    if (op == OpCode::atomic || op == OpCode::fetch_atomic || op == OpCode::compare_atomic) {
      transfer.atomic = op == OpCode::compare_atomic ? AtomicOp::cswap : AtomicOp::sum;
      transfer.type = DataType::u64;
      transfer.result = result.data();
      transfer.compare = bytes.data();
    }
  }
  Errc outcome() const { return operation.completion().error; }
};

struct Accounts {
  CompletionQueue completions{16, CompletionQueue::WhenFull::forget_oldest};
  Journal journal{completions};

  ~Accounts() {
    journal.visit_open([&](Request& request) { end(request, Errc::canceled); });
  }
  Request& accept(Op& op) {
    Request* const request = journal.accept(op.transfer, Errc::ok);
    REQUIRE(request);
    return *request;
  }
  void end(Request& request, Errc error = Errc::ok) {
    request.error = error;
    journal.finish(request);
  }
};

}  // namespace

TEST_CASE("what is accepted is counted until its outcome is told, and told once") {
  std::deque<Op> ops;
  Accounts world;
  CHECK(world.journal.empty());
  CHECK(world.journal.oldest() == 1);
  Request& first = world.accept(ops.emplace_back(OpCode::write, 100));
  Request& second = world.accept(ops.emplace_back(OpCode::read, 30));
  Request& third = world.accept(ops.emplace_back(OpCode::fetch_atomic, 8));
  CHECK(!world.journal.empty());
  CHECK(first.place == 1);
  CHECK(third.place == 3);
  CHECK(world.journal.oldest() == 1);
  world.end(second);
  CHECK(ops[1].operation.done());
  CHECK(ops[1].operation.completion().length == 30);
  CHECK(world.journal.oldest() == 1);
  world.end(first, Errc::bounds);
  CHECK(ops[0].outcome() == Errc::bounds);
  CHECK(ops[0].operation.completion().length == 0);
  CHECK(world.journal.oldest() == 3);
  CHECK(world.journal.counts().posted == 3);
  CHECK(world.journal.counts().settled == 2);
  world.end(third);
  CHECK(world.journal.oldest() == 4);
  CHECK(world.journal.empty());
  const PathCounts counts = world.journal.counts();
  CHECK(counts.posted == 3);
  CHECK(counts.settled == 3);
  CHECK(counts.errors == 1);
  CHECK(counts.bytes_out == 8);  // what failed moved nothing
  CHECK(counts.bytes_in == 38);
}

TEST_CASE("each kind of request counts the bytes that it moves, in both directions") {
  struct Case {
    OpCode op;
    std::uint64_t out, in;
  };
  for (const Case& kind :
       {Case{OpCode::write, 8, 0}, Case{OpCode::read, 0, 8}, Case{OpCode::send, 8, 0},
        Case{OpCode::atomic, 8, 0}, Case{OpCode::fetch_atomic, 8, 8}, Case{OpCode::compare_atomic, 8, 8}}) {
    CAPTURE(static_cast<int>(kind.op));
    Op op(kind.op);
    Accounts world;
    world.end(world.accept(op));
    CHECK(world.journal.counts().bytes_out == kind.out);
    CHECK(world.journal.counts().bytes_in == kind.in);
  }
}

TEST_CASE("what cannot be accepted settles at once and has no effect") {
  Accounts world;
  Op late(OpCode::write), wrong(OpCode::write);
  CHECK(!world.journal.accept(late.transfer, Errc::peer_lost));
  CHECK(late.outcome() == Errc::peer_lost);
  CHECK(late.operation.completion().length == 0);
  wrong.transfer.local = nullptr;
  CHECK(!world.journal.accept(wrong.transfer, Errc::ok));
  CHECK(wrong.outcome() == Errc::bounds);
  CHECK(world.journal.empty());
  CHECK(world.journal.counts().posted == 2);
  CHECK(world.journal.counts().settled == 2);
  CHECK(world.journal.counts().errors == 2);
  CHECK(world.journal.oldest() == 3);
}

TEST_CASE("messages, atomics and puts with data are ordered; large puts and gets are striped") {
  struct Case {
    OpCode op;
    std::uint16_t flags;
    std::size_t length;
    bool ordered, striped;
  };
  const std::uint16_t data = transfer_flag::kRemoteData, free = transfer_flag::kUnordered;
  for (const Case& kind :
       {Case{OpCode::write, 0, 8, false, false}, Case{OpCode::write, data, 8, true, false},
        Case{OpCode::write, free, 8, false, false}, Case{OpCode::read, 0, 8, false, false},
        Case{OpCode::read, data, 8, false, false}, Case{OpCode::send, 0, 8, true, false},
        Case{OpCode::send, data, 8, true, false}, Case{OpCode::send, free, 8, false, false},
        Case{OpCode::atomic, 0, 8, true, false}, Case{OpCode::atomic, free, 8, true, false},
        Case{OpCode::write, 0, kStriped, false, true}, Case{OpCode::write, data, kStriped, true, true},
        Case{OpCode::read, 0, kStriped, false, true}, Case{OpCode::write, 0, kStriped - 1, false, false},
        Case{OpCode::send, 0, kStriped, true, false}}) {
    CAPTURE(static_cast<int>(kind.op));
    CAPTURE(kind.flags);
    CAPTURE(kind.length);
    Op op(kind.op, kind.length);
    Accounts world;
    op.transfer.flags = kind.flags;
    Request& request = world.accept(op);
    CHECK(request.ordered == kind.ordered);
    CHECK(request.striped == kind.striped);
  }
}

TEST_CASE("injected bytes are taken at once; only an error is told later, as an entry") {
  CompletionQueue queue{16, CompletionQueue::WhenFull::forget_oldest};
  for (const OpCode op : {OpCode::write, OpCode::send, OpCode::atomic}) {
    for (const Errc outcome : {Errc::ok, Errc::peer_lost}) {
      CAPTURE(static_cast<int>(op));
      CAPTURE(static_cast<int>(outcome));
      Op injected(op, 8, Delivery::inject);
      injected.operation.begin({.context = 4711, .flags = 5, .queue = &queue});
      injected.bytes[3] = std::byte{7};
      Accounts world;
      Request& request = world.accept(injected);
      CHECK(injected.operation.done());
      CHECK(injected.outcome() == Errc::ok);
      CHECK(injected.operation.completion().length == 8);
      CHECK(!world.journal.empty());
      injected.bytes[3] = std::byte{8};
      CHECK(request.transfer.local[3] == std::byte{7});
      world.end(request, outcome);
      Completion entry;
      REQUIRE(world.completions.read(std::span(&entry, 1)) == (outcome == Errc::ok ? 0 : 1));
      if (outcome == Errc::ok) continue;
      CHECK(entry.context == 4711);
      CHECK(entry.error == Errc::peer_lost);
      CHECK(entry.flags == (5 | completion_flag::kLate));
    }
  }
}

TEST_CASE("injected pieces become one copy; what fetches is not injected") {
  Op pieces(OpCode::write, 8, Delivery::inject);
  std::byte parts[2][4] = {{std::byte{1}}, {std::byte{2}}};
  const iovec list[] = {{parts[0], 4}, {parts[1], 4}};
  pieces.transfer.local_pieces = list;
  pieces.transfer.piece_count = 2;
  Op read(OpCode::read, 8, Delivery::inject), fetch(OpCode::fetch_atomic, 8, Delivery::inject),
      compare(OpCode::compare_atomic, 8, Delivery::inject);
  Accounts world;
  Request& request = world.accept(pieces);
  parts[1][0] = std::byte{9};
  CHECK(request.transfer.piece_count == 0);
  CHECK(request.transfer.local[0] == std::byte{1});
  CHECK(request.transfer.local[4] == std::byte{2});
  for (Op* op : {&read, &fetch, &compare}) {
    world.accept(*op);
    CHECK(!op->operation.done());
  }
}

TEST_CASE("so many requests are open at a time, and no more") {
  std::deque<Op> ops;
  Accounts world;
  for (std::size_t i = 0; i < Journal::kMostOpen; ++i) {
    REQUIRE(!world.journal.full());
    world.accept(ops.emplace_back(OpCode::write));
  }
  CHECK(world.journal.full());
  bool first = true;
  std::uint64_t place = 0;
  world.journal.visit_open([&](Request& request) {
    CHECK(request.place == ++place);
    if (std::exchange(first, false)) world.end(request);
  });
  CHECK(place == Journal::kMostOpen);
  CHECK(!world.journal.full());
  CHECK(world.journal.oldest() == 2);
}

TEST_CASE("numbers are given once, in order, and the mark is the smallest one that is open") {
  Op ops[3] = {Op(OpCode::write), Op(OpCode::send), Op(OpCode::write)};
  Accounts world;
  Request &first = world.accept(ops[0]), &message = world.accept(ops[1]), &last = world.accept(ops[2]);
  CHECK(world.journal.mark() == 1);
  world.journal.number(message);
  world.journal.number(first);
  world.journal.number(first);
  CHECK(message.number == 1);
  CHECK(first.number == 2);
  CHECK(world.journal.mark() == 1);
  // What was announced may wait for ever: its own note tells of it.
  message.announced = true;
  CHECK(world.journal.mark() == 2);
  // Unless the peer may know it as one that was not announced.
  message.sent_small = true;
  CHECK(world.journal.mark() == 1);
  message.sent_small = false;
  message.announced = false;
  message.posting.under_way = true;
  message.posting.announced = true;
  CHECK(world.journal.mark() == 2);
  message.posting.kind = Posting::Kind::note;
  CHECK(world.journal.mark() == 1);
  message.posting.kind = Posting::Kind::whole;
  message.posting.under_way = false;
  CHECK(world.journal.mark() == 1);
  world.end(message);
  CHECK(world.journal.mark() == 2);
  world.end(first);
  CHECK(world.journal.mark() == 3);
  world.journal.number(last);
  CHECK(last.number == 3);
  CHECK(world.journal.mark() == 3);
}

TEST_CASE("the peer is told of what is settled after many, and again where that was lost") {
  std::deque<Op> ops;
  Accounts world;
  for (std::uint64_t i = 0; i < Journal::kSettledAtOnce; ++i) {
    CHECK(!world.journal.mark_is_due());
    CHECK(!world.journal.much_settled());
    Request& request = world.accept(ops.emplace_back(OpCode::write));
    world.journal.number(request);
    world.end(request);
    Request& unnumbered = world.accept(ops.emplace_back(OpCode::read));
    world.end(unnumbered);
  }
  CHECK(world.journal.mark_is_due());
  CHECK(world.journal.much_settled());
  world.journal.mark_is_told();
  CHECK(!world.journal.mark_is_due());
  world.journal.mark_was_lost();
  CHECK(world.journal.mark_is_due());
  world.journal.mark_is_told();
  CHECK(!world.journal.much_settled());
}

TEST_CASE("what fetches waits when the peer would have to keep too many results") {
  constexpr std::uint64_t kCost = 2 * Journal::kRecord + 8;
  std::deque<Op> ops;
  Op last(OpCode::fetch_atomic), plain(OpCode::atomic), compare(OpCode::compare_atomic), put(OpCode::write);
  Accounts world;
  CHECK(result_cost(last.transfer) == kCost);
  CHECK(result_cost(compare.transfer) == kCost);
  CHECK(result_cost(plain.transfer) == 0);
  Request& waits = world.accept(last);
  std::uint64_t count = 0;
  for (; !world.journal.waits_for_number(waits); ++count) {
    REQUIRE(count < Journal::kMostResults);
    Request& request = world.accept(ops.emplace_back(OpCode::fetch_atomic));
    world.journal.number(request);
    world.journal.mark_is_told();
    world.end(request);
  }
  CHECK(count == (Journal::kMostResults + kCost - 1) / kCost);
  CHECK(world.journal.mark_is_due());  // one is settled that the peer does not know of
  CHECK(!world.journal.much_settled());
  CHECK(world.journal.waits_for_number(world.accept(compare)));
  CHECK(!world.journal.waits_for_number(world.accept(plain)));
  CHECK(!world.journal.waits_for_number(world.accept(put)));
  world.journal.mark_is_told();
  CHECK(!world.journal.mark_is_due());
  world.journal.mark_is_known(count);  // all but the last result
  CHECK(world.journal.waits_for_number(waits));
  world.journal.mark_is_known(count + 1);
  CHECK(!world.journal.waits_for_number(waits));
  world.journal.number(waits);
  CHECK(!world.journal.waits_for_number(waits));
}

TEST_CASE("a request that has its number does not wait for it again") {
  std::deque<Op> ops;
  Op numbered(OpCode::fetch_atomic), later(OpCode::fetch_atomic);
  Accounts world;
  Request &request = world.accept(numbered), &next = world.accept(later);
  world.journal.number(request);
  while (!world.journal.waits_for_number(next)) {
    Request& other = world.accept(ops.emplace_back(OpCode::fetch_atomic));
    world.journal.number(other);
    world.end(other);
  }
  CHECK(!world.journal.waits_for_number(request));
}

TEST_CASE("errors are results, too: the peer keeps them until it may forget them") {
  std::deque<Op> ops;
  Op last(OpCode::fetch_atomic);
  Accounts world;
  Request& waits = world.accept(last);
  constexpr std::uint64_t kErrors = Journal::kMostResults / (2 * Journal::kRecord);
  for (std::uint64_t i = 0; i < kErrors; ++i) {
    REQUIRE(!world.journal.waits_for_number(waits));
    Request& unsent = world.accept(ops.emplace_back(OpCode::write));
    world.end(unsent, Errc::bounds);  // of which the peer knows nothing
    Request& request = world.accept(ops.emplace_back(OpCode::write));
    world.journal.number(request);
    world.end(request, Errc::bounds);
  }
  CHECK(world.journal.waits_for_number(waits));
  world.journal.mark_is_told();
  CHECK(!world.journal.mark_is_due());
  Request& one_more = world.accept(ops.emplace_back(OpCode::write));
  world.journal.number(one_more);
  world.end(one_more);
  CHECK(world.journal.mark_is_due());  // exactly as much as the peer keeps
  world.journal.mark_is_known(kErrors);
  CHECK(world.journal.waits_for_number(waits));
  world.journal.mark_is_known(kErrors + 1);
  CHECK(!world.journal.waits_for_number(waits));
}

TEST_CASE("a late error of a small number does not let the last result be forgotten") {
  std::deque<Op> ops;
  Op first(OpCode::write), second(OpCode::fetch_atomic, kMaxAtomicBytes), last(OpCode::fetch_atomic);
  Accounts world;
  Request &early = world.accept(first), &late = world.accept(second), &waits = world.accept(last);
  world.journal.number(early);
  world.journal.number(late);
  while (!world.journal.waits_for_number(waits)) {
    Request& other = world.accept(ops.emplace_back(OpCode::fetch_atomic, kMaxAtomicBytes));
    world.journal.number(other);
  }
  world.end(early, Errc::bounds);
  world.journal.mark_is_known(3);
  CHECK(world.journal.waits_for_number(waits));
}

TEST_CASE("an announced message that is over is kept as a note, in order, until the peer knows") {
  Op ops[3] = {Op(OpCode::send), Op(OpCode::send), Op(OpCode::send)};
  Accounts world;
  Request &first = world.accept(ops[0]), &small = world.accept(ops[1]), &second = world.accept(ops[2]);
  first.announced = second.announced = true;
  world.end(first);
  world.end(small);
  world.end(second);
  CHECK(world.journal.empty());
  CHECK(ops[0].operation.done());
  REQUIRE(world.journal.notes().front() == &first);
  CHECK(first.over);
  RequestQueue::leave(first);
  REQUIRE(world.journal.notes().front() == &second);
  world.journal.recycle(first);
  RequestQueue::leave(second);
  world.journal.recycle(second);
  CHECK(world.journal.notes().empty());
}

TEST_CASE("what waited somewhere is taken from there when it is over, and belongs to its array until then") {
  Op op(OpCode::atomic);
  op.operation.begin_array();
  RequestQueue queue;
  Accounts world;
  Request& request = world.accept(op);
  CHECK(op.operation.array() != 0);
  CHECK(request.posting.array() == op.operation.array());
  queue.push_back(request);
  world.end(request);
  CHECK(queue.empty());
}

TEST_CASE("a request that was used before is as good as new") {
  Op first(OpCode::send, 8, Delivery::inject), second(OpCode::write, kStriped);
  Accounts world;
  Request& former = world.accept(first);
  world.journal.number(former);
  former.announced = former.end_sent = former.sent_small = true;
  former.announced = false;
  former.next = former.stored = 5;
  former.holes.push_back({1, 2});
  Request* const place = &former;
  world.end(former, Errc::bounds);
  Request& again = world.accept(second);
  REQUIRE(&again == place);  // the memory is kept
  CHECK(again.number == 0);
  CHECK(again.error == Errc::ok);
  CHECK(!again.over);
  CHECK(!again.end_sent);
  CHECK(!again.sent_small);
  CHECK(again.next == 0);
  CHECK(again.stored == 0);
  CHECK(again.holes.empty());
  CHECK(!again.copy);
}

TEST_CASE("requests that are put back wait in the order of posting") {
  Request requests[8];
  for (std::uint64_t i = 0; i < 8; ++i) requests[i].place = i + 1;
  RequestQueue queue, other;
  const auto order = [](const RequestQueue& some) {
    std::vector<std::uint64_t> places;
    for (const Request* at = some.front(); at; at = at->queue.next) places.push_back(at->place);
    return places;
  };
  using Places = std::vector<std::uint64_t>;
  queue.push_back(requests[6]);
  queue.push_back(requests[7]);
  queue.put_back(requests[1]);
  queue.put_back(requests[3]);  // behind the last one
  queue.put_back(requests[0]);  // before it
  queue.put_back(requests[2]);
  CHECK(order(queue) == Places{1, 2, 3, 4, 7, 8});
  // The one that was put back last leaves: the next search begins in front.
  RequestQueue::leave(requests[2]);
  CHECK(order(queue) == Places{1, 2, 4, 7, 8});
  CHECK(requests[2].in == nullptr);
  queue.put_back(requests[4]);
  queue.put_back(requests[5]);
  CHECK(order(queue) == Places{1, 2, 4, 5, 6, 7, 8});
  other.push_back(requests[3]);  // leaves the other queue
  CHECK(order(queue) == Places{1, 2, 5, 6, 7, 8});
  CHECK(order(other) == Places{4});
  other.put_back(requests[7]);
  CHECK(order(queue) == Places{1, 2, 5, 6, 7});
  CHECK(order(other) == Places{4, 8});
  other.put_back(requests[4]);
  CHECK(order(other) == Places{4, 5, 8});
  RequestQueue::leave(requests[2]);  // in none
  CHECK(!queue.empty());
}
