// Whatever allocation fails while two processes' worth of contexts talk over shared memory, every operation
// has one outcome that is true, and nothing ends the process. Both sides are driven by the thread of the
// test.
#include <doctest/doctest.h>

#include <list>

#include "failing_memory.h"
#include "once.h"
#include "providers/shm/harness.h"
#include "providers/shm/layout.h"

using namespace fab;
using namespace fab::test;
using Bytes = std::vector<std::byte>;

namespace {

DomainOptions driven_by_hand() {
  DomainOptions options;
  options.manual_progress = true;
  options.peer_deadline = 0.2;
  return options;
}

struct Do : Once {
  Do(OpCode op, std::uint64_t key, std::uint64_t remote, std::size_t length,
     Delivery delivery = Delivery::delivery)
      : bytes(length, std::byte{7}), result(length) {
    transfer = Side::transfer(op, key, remote, bytes.data(), length, delivery);
    transfer.operation = &operation;
    transfer.atomic = op == OpCode::compare_atomic ? AtomicOp::cswap : AtomicOp::sum;
    transfer.type = DataType::u64;
    transfer.result = result.data();
    transfer.compare = bytes.data();
    if (op == OpCode::send) transfer.flags = transfer_flag::kTagged;
  }
  Do& scattered() {
    for (std::size_t i = 0; i < 3; ++i)
      pieces.push_back({bytes.data() + i * (bytes.size() / 3), bytes.size() / 3});
    transfer.length = bytes.size() / 3 * 3;
    transfer.local_pieces = pieces.data();
    transfer.piece_count = 3;
    return *this;
  }
  Bytes bytes, result;
  std::vector<iovec> pieces;
  Transfer transfer{};
};

// All that two contexts do for each other, in the order in which it is made.
struct Course {
  static constexpr std::size_t kSize = 1 << 20;
  Side a, b;
  Side::Memory memory;
  const std::uint64_t key;
  PeerId peer = a.knows(b);
  std::list<Do> moves, sends;
  std::list<Take> takes;

  explicit Course(const std::string& way)
      : a(way, driven_by_hand()),
        b(way, driven_by_hand()),
        memory(way == "mapped" ? b.alloc(kSize) : b.own(kSize)),
        key(memory.region->key()) {
    std::memset(memory.data(), 3, kSize);
    for (const std::size_t length : {8u, 300u, 20'000u, 300'000u})
      for (const Delivery level : {Delivery::inject, Delivery::transmit, Delivery::delivery})
        moves.emplace_back(OpCode::write, key, 0, length, level);
    moves.emplace_back(OpCode::write, key, 0, 9000).scattered();
    moves.emplace_back(OpCode::write, key + 1, 0, 64);
    Do& noticed = moves.emplace_back(OpCode::write, key, 0, 64);
    noticed.transfer.flags = transfer_flag::kRemoteData;
    noticed.transfer.data = 5;
    for (const std::size_t length : {8u, 300u, 300'000u})
      moves.emplace_back(OpCode::read, key, kSize / 2, length);
    for (const OpCode op : {OpCode::atomic, OpCode::fetch_atomic, OpCode::compare_atomic})
      moves.emplace_back(op, key, kSize - 64, 16);
    for (const std::size_t length : {8u, 5000u, 40'000u})
      for (const Delivery level : {Delivery::inject, Delivery::transmit, Delivery::delivery}) {
        Do& send = sends.emplace_back(OpCode::send, sends.size(), 0, length, level);
        std::ranges::fill(send.bytes, static_cast<std::byte>(sends.size()));
        takes.emplace_back(sends.size() - 1, length);
      }
  }

  void drive() {
    a.context->progress();
    b.context->progress();
  }
  // What is refused has no outcome; what is taken has one.
  void post(Do& one) {
    try {
      while (a.context->post(peer, {&one.transfer, 1}) == 0) drive();
    } catch (const std::exception&) {
      one.operation.withdraw();
      one.posted = false;
    }
  }
  void take(Take& one) {
    try {
      b.context->inbox().receive(one.receive);
    } catch (const std::bad_alloc&) {
      one.operation.withdraw();
      one.posted = false;
    }
  }
  // Until all that `a` has posted is settled, or nothing has been heard for as long as a peer may take.
  void finish() {
    const auto patience = Deadline::in_seconds(2);
    while (!patience.passed() && a.context->counts(peer).posted != a.context->counts(peer).settled) drive();
    for (int i = 0; i < 10; ++i) drive();
  }

  void go() {
    for (Do& move : moves) post(move);
    finish();
    std::size_t number = 0;
    for (Take& one : takes)
      if (number++ % 2) take(one);
    for (Do& send : sends) post(send);
    for (int i = 0; i < 20; ++i) drive();
    number = 0;
    for (Take& one : takes)
      if (number++ % 2 == 0) take(one);
    finish();
    b.domain->close(true);
    a.domain->close(true);
  }

  void check(bool failed) {
    for (Do& move : moves) {
      const Errc outcome = move.outcome();
      CHECK(outcome != Errc::again);
      if (!failed) CHECK(outcome == (move.transfer.key == key ? Errc::ok : Errc::key_rejected));
      if (outcome == Errc::ok && move.transfer.op == OpCode::read)
        CHECK(move.bytes == Bytes(move.bytes.size(), std::byte{3}));
    }
    auto one = takes.begin();
    for (Do& send : sends) {
      const Errc sent = send.outcome(), taken = one->outcome();
      CHECK(sent != Errc::again);
      CHECK(taken != Errc::again);
      if (!failed) CHECK(sent == Errc::ok);
      if (!failed) CHECK(taken == Errc::ok);
      if (taken == Errc::ok) CHECK(one->bytes == send.bytes);
      if (sent == Errc::ok && send.transfer.delivery == Delivery::delivery && one->posted)
        CHECK(taken == Errc::ok);
      ++one;
    }
  }
};

}  // namespace

TEST_CASE("contexts over shared memory survive the failure of each allocation") {
  for (const std::string way : {"mapped", "cma", "ring"}) {
    CAPTURE(way);
    const auto made = with_each_failing([&](FailingMemory& memory) {
      Course course(way);
      {
        const FailingMemory::Scope scope(memory);
        course.go();
      }
      CAPTURE(memory.made());
      course.check(memory.failed());
    });
    CHECK(made > 20);
  }
}

TEST_CASE("a context that lacks memory to open has never had a doorbell") {
  Side side("auto", driven_by_hand());
  const auto peers = std::make_shared<AddressVector>();
  const auto completions = side.domain->open_completion_queue(16, CompletionQueue::WhenFull::forget_oldest);
  constexpr std::uint16_t kContextSlot = 1;  // the next one
  with_each_failing([&](FailingMemory& memory) {
    std::shared_ptr<Context> opened;
    try {
      const FailingMemory::Scope scope(memory);
      opened = side.domain->open_context(1, {.number = 2}, peers, completions, side.events);
    } catch (const std::exception&) {
      CHECK(memory.failed());
    }
    CAPTURE(memory.made());
    const auto& doorbell = side.domain->segment().header().doorbells[kContextSlot];
    CHECK(((doorbell.load() & shm::kDoorbellFd) != 0) == (opened != nullptr));
    if (opened) side.domain->contexts().close(*opened);
  });
}

TEST_CASE("a path that lacks memory to open keeps no access slot of its peer") {
  const auto made = with_each_failing([](FailingMemory& memory) {
    Side a("auto", driven_by_hand()), b("auto", driven_by_hand());
    const PeerId peer = a.knows(b);
    const Segment& segment = b.domain->segment();
    const auto taken = [&] {
      return std::ranges::count_if(std::span(segment.slots(), segment.slots_used()),
                                   [](const AccessSlot& slot) { return slot.owner.load() != 0; });
    };
    try {
      const FailingMemory::Scope scope(memory);
      a.context->report(peer);  // opens the path
    } catch (const std::exception&) {
      CHECK(memory.failed());
    }
    CAPTURE(memory.made());
    CHECK(taken() == (a.context->last_report(peer) ? 1 : 0));
    a.context->close();
    CHECK(taken() == 0);
  });
  CHECK(made > 5);
}

// With the progress threads of the domains, whose allocations count as well, and from the opening of the
// domains on.
TEST_CASE("domains that are driven by their threads survive the failure of each allocation") {
  const auto made = with_each_failing(
      [](FailingMemory& memory) {
        std::vector<Errc> outcomes;
        outcomes.reserve(8);
        {
          const FailingMemory::Scope scope(memory);
          try {
            DomainOptions options;
            options.peer_deadline = 0.5;
            Side a("auto", options), b("auto", options);
            auto region = b.own(4096);
            const PeerId peer = a.knows(b);
            std::uint64_t value = 7, former = 0;
            const std::uint64_t key = region.region->key();
            outcomes.push_back(a.put(peer, key, 0, &value, 8));
            outcomes.push_back(a.fetch_add(peer, key, 0, 1, former));
            outcomes.push_back(a.get(peer, key, 0, &value, 8));
            if (outcomes == std::vector{Errc::ok, Errc::ok, Errc::ok}) {
              const FailingMemory::Spared spared;
              CHECK(former == 7);
              CHECK(value == 8);
            }
          } catch (const std::exception&) {
            outcomes.push_back(Errc::no_memory);
          }
        }
        CHECK(std::ranges::find(outcomes, Errc::timeout) == outcomes.end());
        if (!memory.failed()) CHECK(outcomes == std::vector{Errc::ok, Errc::ok, Errc::ok});
      },
      FailingMemory::Of::process);
  CHECK(made > 20);
}
