// One turn under a context's lock moves one slice, on every link, and others come in between.

#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <numeric>
#include <thread>
#include <vector>

#include "fabric/memory/slice.h"
#include "fabric/session/frames/frame.h"
#include "providers/shm/harness.h"
#include "providers/tcp/harness.h"

using namespace fab;
using namespace fab::test;

namespace {

constexpr std::uint64_t kLong = 16 * Slice::kBytes;
constexpr std::uint64_t kStaging =
    64 * 1024;  // one read of a stream may go past the end of a slice by so much

DomainOptions manual() {
  DomainOptions options;
  options.manual_progress = true;
  return options;
}

// Memory that is filled from its beginning with what is not zero, and how far it was filled in one turn.
class Filling {
 public:
  Filling(const std::byte* memory, std::uint64_t length) : memory_(memory), length_(length) {}
  void look() {
    std::uint64_t now = filled_;
    while (now < length_ && memory_[now] != std::byte{0}) now = std::min(length_, now + 4096);
    most_ = std::max(most_, now - filled_);
    filled_ = now;
  }
  std::uint64_t most() const { return most_; }
  std::uint64_t filled() const { return filled_; }

 private:
  const std::byte* memory_;
  std::uint64_t length_, filled_ = 0, most_ = 0;
};

// A transfer that nobody waits for.
struct Started {
  Operation operation;
  Started(Context& context, PeerId peer, Transfer transfer) {
    operation.begin({});
    transfer.operation = &operation;
    REQUIRE(context.post(peer, {&transfer, 1}) == 1);
  }
};

}  // namespace

TEST_CASE("a slice is as much of a batch as fits, and one transfer at least") {
  std::vector<Transfer> batch(3 * Slice::kOfBatch);
  CHECK(Slice::front({}).transfers.size() == 0);
  CHECK(Slice::front(batch).transfers.size() == Slice::kOfBatch);
  for (Transfer& transfer : batch) transfer.length = Slice::kBytes / 4;
  CHECK(Slice::front(batch).transfers.size() == 4);
  batch[0].length = 100 * Slice::kBytes;
  CHECK(Slice::front(batch).transfers.size() == 1);
  batch[0].length = 8;
  batch[1].length = Slice::kBytes;
  CHECK(Slice::front(batch).transfers.size() == 1);
}

TEST_CASE("what is short may go once a slice is spent, up to a bound for each turn") {
  Slice slice;
  const std::uint64_t tail = slice.left_of_stream() - slice.left();
  slice.spend(Slice::kBytes);
  CHECK(slice.spent());
  CHECK(slice.left_of_stream() == 0);
  CHECK_FALSE(slice.spend_tail(tail + 1));
  CHECK(slice.spend_tail(tail / 2));
  std::uint64_t few = 0;
  while (slice.spend_tail(48)) ++few;
  CHECK(few == Slice::kTransfers / 2);  // each costs as much as a call to the system takes time
  slice.begin();
  CHECK(slice.spend_tail(tail));
}

TEST_CASE("over shared memory a turn moves a slice of a long transfer, and peers are served in between") {
  for (const char* copy : {"mapped", "cma", "ring"}) {
    for (const OpCode op : {OpCode::write, OpCode::read}) {
      CAPTURE(copy);
      CAPTURE(static_cast<int>(op));
      Side a(copy, manual()), b(copy, manual());
      const PeerId to_b = a.knows(b), to_a = b.knows(a);
      Side::Memory far = b.alloc(kLong), counter = a.own(4096);
      std::vector<std::byte> near(kLong);
      std::byte* const source = op == OpCode::write ? near.data() : far.data();
      std::fill_n(source, kLong, std::byte{1});

      std::uint64_t one = 1, before = 0;
      Transfer add = Side::transfer(OpCode::fetch_atomic, counter.region->remote().key, 0, &one, 8);
      add.atomic = AtomicOp::sum;
      add.type = DataType::u64;
      add.result = reinterpret_cast<std::byte*>(&before);
      const Started adding(*b.context, to_a, add);
      const Started moving(*a.context, to_b,
                           Side::transfer(op, far.region->remote().key, 0, near.data(), kLong));
      Filling filling(op == OpCode::write ? far.data() : near.data(), kLong);
      filling.look();
      bool served_meanwhile = false;
      int turns = 0;
      for (; !moving.operation.done() && turns < 100'000; ++turns) {
        a.context->progress();
        filling.look();
        b.context->progress();
        filling.look();
        served_meanwhile |= adding.operation.done() && !moving.operation.done();
      }
      CHECK(moving.operation.completion().error == Errc::ok);
      CHECK(filling.filled() == kLong);
      CHECK(filling.most() <= Slice::kBytes);
      CHECK(turns >= 15);
      CHECK(served_meanwhile);
    }
  }
}

TEST_CASE("a long message is taken slice by slice") {
  Side a("auto", manual()), b("auto", manual());
  const PeerId to_b = a.knows(b);
  for (const bool expected : {true, false}) {
    CAPTURE(expected);
    std::vector<std::byte> near(kLong, std::byte{1}), far(kLong);
    Operation received;
    received.begin({});
    Receive receive;
    receive.operation = &received;
    receive.local = far.data();
    receive.length = far.size();
    Filling filling(far.data(), kLong);
    if (expected) b.context->inbox().receive(receive);
    const Started sending(*a.context, to_b,
                          Side::transfer(OpCode::send, 0, 0, near.data(), kLong, Delivery::transmit));
    for (int turns = 0; !expected && b.context->inbox().sizes().unexpected == 0 && turns < 1000; ++turns)
      b.context->progress();
    if (!expected) b.context->inbox().receive(receive);
    filling.look();
    for (int turns = 0; !received.done() && turns < 1000; ++turns) {
      b.context->progress();
      filling.look();
    }
    CHECK(received.done());
    CHECK(received.completion().error == Errc::ok);
    CHECK(filling.most() <= Slice::kBytes);
    CHECK(far == near);
    for (int turns = 0; !sending.operation.done() && turns < 1000; ++turns) {
      b.context->progress();
      a.context->progress();
    }
    CHECK(sending.operation.done());
  }
}

TEST_CASE("over tcp a turn takes in a slice") {
  Node a(manual(), 4096), b(manual(), kLong);
  const PeerId peer = a.peers->insert(b.name());
  std::vector<std::byte> near(kLong, std::byte{1});
  Call put(OpCode::write, b.region->remote().key, 0, near.data(), kLong);
  put.start(a, peer);
  Filling filling(b.memory.data(), kLong);
  for (const auto deadline = Deadline::in_seconds(60); !put.operation.done() && !deadline.passed();) {
    for (int i = 0; i < 8; ++i) a.context->progress();  // as much as the socket holds
    b.context->progress();
    filling.look();
  }
  CHECK(put.operation.done());
  CHECK(put.operation.completion().error == Errc::ok);
  CHECK(filling.most() <= Slice::kBytes + kStaging);
}

namespace {

struct Mail {
  Mail(std::size_t length, std::byte value) : sent(length, value), got(length) {
    received.begin({.flags = completion_flag::kMessage});
    receive.operation = &received;
    receive.local = got.data();
    receive.length = length;
  }
  bool arrived() const { return received.done() && got == sent; }

  std::vector<std::byte> sent, got;
  Call send{OpCode::send, 0, 0, sent.data(), sent.size()};
  Operation received;
  Receive receive{};
};
using Mails = std::vector<std::unique_ptr<Mail>>;

Mails mails(std::size_t count, std::size_t length) {
  Mails all;
  for (std::size_t i = 0; i < count; ++i)
    all.push_back(std::make_unique<Mail>(length, static_cast<std::byte>(i + 1)));
  return all;
}

bool all_arrived(const Mails& all) {
  return std::ranges::all_of(all, [](const auto& mail) { return mail->arrived(); });
}

// Two nodes, connected, of which nothing is heard but what a test sends: no question after a silent peer
// brings the next turn.
struct Two {
  explicit Two(bool manually) : a(options(manually)), b(options(manually)) {
    std::uint64_t word = 0;
    Call first(OpCode::write, b.region->remote().key, 0, &word, sizeof word);
    first.start(a, to_b);
    REQUIRE(run([&] { return first.operation.done(); }));
  }
  static DomainOptions options(bool manually) {
    DomainOptions options;
    options.manual_progress = manually;
    options.peer_deadline = 1000;
    return options;
  }
  template <class Done>
  bool run(Done done) {
    const auto deadline = Deadline::in_seconds(100);
    while (!done() && !deadline.passed()) {
      a.context->progress();
      b.context->progress();
    }
    return done();
  }
  void send(Mails& all) {
    for (auto& mail : all) mail->send.start(a, to_b);
    for (int i = 0; i < 8; ++i) a.context->progress();  // as much as the socket holds
  }
  void receive(Mails& all) {
    for (auto& mail : all) b.context->inbox().receive(mail->receive);
  }

  Node a, b;
  const PeerId to_b = a.peers->insert(b.name());
};

}  // namespace

TEST_CASE("over tcp announced messages that come together are all fetched") {
  for (const bool manually : {true, false})
    for (const bool expected : {true, false}) {
      CAPTURE(manually);
      CAPTURE(expected);
      Mails all = mails(3 * Slice::kTransfers, 20'000);  // outlive the nodes, which may still refer to them
      Two two(manually);
      if (expected) two.receive(all);
      two.b.context->locked([&](Endpoint&) { two.send(all); });  // while b takes nothing in
      if (!expected) {
        REQUIRE(two.run([&] { return two.b.context->inbox().sizes().unexpected == all.size(); }));
        two.receive(all);
      }
      CHECK(two.run([&] { return all_arrived(all); }));
    }
}

// What others move in a turn may leave a stream so little of the slice that the bytes of one message spend
// it. Those of the next one are asked for in a later turn, which no byte of the peer brings.
TEST_CASE("over tcp an announced message is fetched in the turn after a spent slice") {
  constexpr std::size_t kLeft = 1024, kLength = 20 * kLeft - kHeaderBytes;
  Mails all = mails(3, kLength);
  Two two(true);
  two.receive(all);
  two.send(all);
  const auto turn = [&] {
    two.b.context->locked([&](Endpoint& endpoint) {
      Driver& driver = two.b.context->driver();
      const auto leave_little = [&driver] {
        driver.slice().begin();
        driver.slice().spend(Slice::kBytes - kLeft, 0);
      };
      leave_little();
      endpoint.progress();
      leave_little();
      driver.poller().dispatch();  // tells that a socket takes more
    });
    for (int i = 0; i < 8; ++i) two.a.context->progress();
  };
  for (int turns = 0; !all_arrived(all) && turns < 1000; ++turns) turn();
  CHECK(all_arrived(all));
}

// Its answer would otherwise wait for the socket to be writable, and for the thread that looks at that.
TEST_CASE("over tcp a put that is as long as the slice comes in one turn, and is answered in it") {
  Two two(true);
  std::vector<std::byte> bytes(4096, std::byte{1});
  Call put(OpCode::write, two.b.region->remote().key, 0, bytes.data(), bytes.size());
  put.start(two.a, two.to_b);
  for (int i = 0; i < 8; ++i) two.a.context->progress();
  const std::byte& last = two.b.memory[bytes.size() - 1];
  int turns = 0;
  for (const auto deadline = Deadline::in_seconds(100);
       two.b.memory[0] == std::byte{0} && !deadline.passed();)
    two.b.context->locked([&](Endpoint& endpoint) {
      Slice& slice = two.b.context->driver().slice();
      slice.begin();
      slice.spend(Slice::kBytes - bytes.size(), 0);
      endpoint.progress();
      ++turns;
    });
  CAPTURE(turns);
  CHECK(last == std::byte{1});
  for (int i = 0; i < 1000 && !put.operation.done(); ++i) two.a.context->progress();
  CHECK(put.operation.done());
}

TEST_CASE("whoever waits for the lock gets it between two slices of one call") {
  constexpr std::size_t kPuts = 1000, kEach = 64 * 1024;
  static std::atomic<int> begun, at_the_end, entered;
  Side a, b;
  const PeerId peer = a.knows(b);
  Side::Memory far = b.alloc(kEach), unrelated;
  std::vector<std::byte> near(kEach);
  Operation first, middle, last;
  // At the first put the other thread is asked to come; did it, before the last one?
  bool came_between = false;
  for (int round = 0; round < 200 && !came_between; ++round) {
    begun = at_the_end = entered = 0;
    first.begin({.hook = [](Operation&) noexcept { begun = 1; }});
    middle.begin({.transfers = kPuts - 2});
    last.begin({.hook = [](Operation&) noexcept { at_the_end = 1 + entered; }});
    std::vector<Transfer> puts(
        kPuts, Side::transfer(OpCode::write, far.region->remote().key, 0, near.data(), kEach));
    for (Transfer& put : puts) put.operation = &middle;
    puts.front().operation = &first;
    puts.back().operation = &last;
    std::thread other([&] {
      while (begun == 0) {
      }
      a.context->locked([](Endpoint&) { entered = 1; });
    });
    CHECK(a.context->post(peer, puts) == kPuts);
    other.join();
    REQUIRE(a.context->wait([&] { return last.done() && middle.done(); }, Deadline::in_seconds(30)));
    came_between = at_the_end == 2;
  }
  CHECK(came_between);
}

TEST_CASE("while a thread moves a long put, its regions close and peers are served") {
  constexpr std::uint64_t kVeryLong = 256 * Slice::kBytes;
  Side a("auto"), b("auto");
  const PeerId to_b = a.knows(b), to_a = b.knows(a);
  Side::Memory far = b.alloc(kVeryLong), counter = a.own(4096);
  // All pieces are of the same memory.
  std::vector<std::byte> near(Slice::kBytes, std::byte{1});
  const std::vector<iovec> pieces(kVeryLong / near.size(), {near.data(), near.size()});
  static std::atomic<bool> over;
  bool closed_meanwhile = false;
  std::uint64_t served_meanwhile = 0;
  std::uint64_t before = 0;
  REQUIRE(b.fetch_add(to_a, counter.region->remote().key, 0, 1, before) == Errc::ok);
  for (int round = 0; round < 20 && !(closed_meanwhile && served_meanwhile >= 3); ++round) {
    std::fill_n(far.data(), near.size(), std::byte{0});
    Side::Memory unrelated = a.own(4096);
    over = false;
    Operation operation;
    operation.begin({.hook = [](Operation&) noexcept { over = true; }});  // under the lock
    std::thread putting([&] {
      Transfer put = Side::transfer(OpCode::write, far.region->remote().key, 0, nullptr, kVeryLong);
      put.operation = &operation;
      put.local_pieces = pieces.data();
      put.piece_count = static_cast<std::uint16_t>(pieces.size());
      CHECK(a.context->post(to_b, {&put, 1}) == 1);
      CHECK(a.context->wait([&] { return operation.done(); }, Deadline::in_seconds(30)));
    });
    while (std::atomic_ref(far.data()[near.size() - 1]).load() == std::byte{0}) std::this_thread::yield();
    unrelated.region->close(Deadline::in_seconds(30));
    closed_meanwhile |= !over;
    std::uint64_t served = 0;
    while (!over) {
      REQUIRE(b.fetch_add(to_a, counter.region->remote().key, 0, 1, before) == Errc::ok);
      served += over ? 0 : 1;
    }
    served_meanwhile = std::max(served_meanwhile, served);
    putting.join();
  }
  CHECK(closed_meanwhile);
  CHECK(served_meanwhile >= 3);
}
