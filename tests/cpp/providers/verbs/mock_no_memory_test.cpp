// Lack of memory under everything that two endpoints do over a device: nothing ends the process or hangs,
// every operation that was taken has one outcome, and what comes later works.
#include <doctest/doctest.h>

#include <list>
#include <optional>
#include <string>

#include "failing_memory.h"
#include "once.h"
#include "providers/verbs/mock_node.h"

using namespace fab;
using namespace fab::test;

namespace {

thread_local std::optional<FailingMemory::Spared> spared;
thread_local int works = 0;

}  // namespace

// The memory of the device is not what lacks.
extern "C" [[gnu::visibility("default")]] void mock_verbs_works(bool begins) {
  if (begins && works++ == 0) spared.emplace();
  if (!begins && --works == 0) spared.reset();
}

namespace {

constexpr std::size_t kSize = 40'000;  // devices move so much by themselves

// `connect`: how queue pairs are connected, as verbs_connect.
DomainOptions by_hand(const std::string& connect) {
  DomainOptions options;
  options.settings["verbs_connect"] = connect;
  options.manual_progress = true;
  options.peer_deadline = 1;
  return options;
}

bool of_shortage(Errc error) {
  return error == Errc::no_memory || error == Errc::peer_lost || error == Errc::unreachable;
}

// Two endpoints, driven by this thread.
struct Two {
  explicit Two(const std::string& connect)
      : a(by_hand(connect), kSize), b(by_hand(connect), kSize), to_b(a.knows(b)) {}
  MockNode a, b;
  const PeerId to_b;

  void turn() {
    a.context->progress();
    b.context->progress();
  }
  // Until all that was taken has settled.
  void finish() {
    const auto settled = [&] {
      const PathCounts counts = a.context->counts(to_b);
      return counts.posted == counts.settled;
    };
    const auto patience = Deadline::in_seconds(20);
    while (!settled() && !patience.passed()) turn();
    CHECK(settled());
  }
};

struct Do : Once {
  Do(OpCode op, const Two& two, std::size_t length) : bytes(length, std::byte{7}), result(length) {
    transfer = transfer_of(op, two.b.region->key(), 0, bytes.data(), length);
    transfer.operation = &operation;
    transfer.result = result.data();
    if (op == OpCode::send) transfer.flags = transfer_flag::kTagged;
    if (op == OpCode::send) transfer.key = 1;
  }
  // Either refuses the operation, or takes it.
  void post(Two& two) {
    try {
      const auto patience = Deadline::in_seconds(20);
      while (two.a.context->post(two.to_b, {&transfer, 1}) == 0 && !patience.passed()) two.turn();
    } catch (const std::exception& error) {
      CHECK(of_shortage(shortage_or(error, Errc::ok)));
      operation.withdraw();
      posted = false;
    }
  }
  std::vector<std::byte> bytes, result;
  Transfer transfer{};
};

void endure(const std::string& connect) {
  const auto made = with_each_failing([&](FailingMemory& memory) {
    std::list<Do> all;  // outlive the endpoints
    Take take(1, 300);
    Two two(connect);
    for (const OpCode op : {OpCode::write, OpCode::read, OpCode::fetch_atomic})
      for (const std::size_t length : {std::size_t{8}, op == OpCode::fetch_atomic ? 16 : kSize})
        all.emplace_back(op, two, length);
    all.emplace_back(OpCode::write, two, kSize);  // devices know both regions
    all.emplace_back(OpCode::send, two, 300);
    {
      const FailingMemory::Scope scope(memory);
      try {
        two.b.context->inbox().receive(take.receive);
      } catch (const std::bad_alloc&) {
        take.operation.withdraw();
        take.posted = false;
      }
      for (Do& one : all) {
        one.post(two);
        two.finish();
      }
    }
    CAPTURE(memory.made());
    Errc later = Errc::again;  // a connection that ended meanwhile may be noticed only now, by one operation
    for (int tries = 0; later != Errc::ok && tries < 3; ++tries) {
      Do put(OpCode::write, two, kSize);
      put.post(two);
      two.finish();
      later = put.outcome();
    }
    CHECK(later == Errc::ok);
    two.b.core->contexts().close(*two.b.context);
    for (Do& one : all) {
      const Errc outcome = one.outcome();
      CHECK_MESSAGE((outcome == Errc::ok || (memory.failed() && of_shortage(outcome))), describe(outcome));
    }
    CHECK(take.outcome() != Errc::again);
  });
  CHECK(made > 20);
}

}  // namespace

TEST_CASE("endpoints over a device survive the failure of each allocation") {
  if (mock_device()) endure("cm");
}

TEST_CASE("endpoints whose queue pairs are connected by exchange survive it, too") {
  if (mock_device()) endure("exchange");
}
