// What rails do in one turn of their context, and how they tell time.

#include <doctest/doctest.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "providers/lnx/rails/simple_links.h"

using namespace fab;
using namespace fab::test;
using std::chrono::milliseconds;
using std::chrono::seconds;

namespace {

struct Put {
  Operation operation;
  std::vector<std::byte> bytes;

  void post(SimpleRails& world, std::size_t length) {
    bytes.resize(length);
    operation.begin({});
    Transfer transfer{};
    transfer.operation = &operation;
    transfer.op = OpCode::write;
    transfer.local = bytes.data();
    transfer.length = length;
    transfer.delivery = Delivery::delivery;
    REQUIRE(world.rails->post({&transfer, 1}) == 1);
  }
};

void join(SimpleRails& world) {
  world.open();
  for (std::size_t link = 0; link < world.links.size(); ++link) world.move(link);
  world.turn();
  REQUIRE(world.how() == "test.0 test; test.1 test");
}

std::uint64_t posts(const SimpleRails& world) { return world.links[0].posts + world.links[1].posts; }

}  // namespace

TEST_CASE("a turn posts a slice of what waits for a rail, and the next turn goes on") {
  for (const std::size_t length : {std::size_t{100}, std::size_t{20'000}, std::size_t{300'000}}) {
    CAPTURE(length);
    std::vector<Put> puts(length == 300'000 ? 40 : 500);
    SimpleRails world;
    join(world);
    for (SimpleLink& link : world.links) link.room = 0;
    for (Put& put : puts) {
      world.slice.begin();
      put.post(world, length);
    }
    for (SimpleLink& link : world.links) link.room = 64;
    std::uint64_t most = 0;
    const auto done = [&] {
      return std::ranges::all_of(puts, [](const Put& put) { return put.operation.done(); });
    };
    for (int turns = 0; !done() && turns < 10'000; ++turns) {
      for (std::size_t link = 0; link < 2; ++link)
        for (int i = 0; i < 64; ++i) world.move(link);
      const std::uint64_t before = posts(world);
      world.work = true;  // at the latest now: the links may have had no room
      world.turn();
      most = std::max(most, posts(world) - before);
    }
    CHECK(done());
    CHECK(most <= Slice::kTransfers + 1);  // with one that tells what the peer may forget
    if (length == 100) CHECK(most >= Slice::kTransfers);
  }
}

TEST_CASE("what a slice leaves over is work for the next turn") {
  std::vector<Put> puts(200);
  SimpleRails world;
  join(world);
  for (SimpleLink& link : world.links) link.room = 0;
  for (Put& put : puts) {
    world.slice.begin();
    put.post(world, 20'000);
  }
  for (SimpleLink& link : world.links) link.room = 64;
  world.slice.begin();
  world.work = false;
  world.rails->pump();
  CHECK(posts(world) > 50);
  CHECK(world.work);
  for (int turns = 0; turns < 100; ++turns) {
    for (std::size_t link = 0; link < 2; ++link)
      for (int i = 0; i < 64; ++i) world.move(link);
    world.turn();
  }
  CHECK(std::ranges::all_of(puts, [](const Put& put) { return put.operation.done(); }));
}

TEST_CASE("notes of messages go by any rail that takes them") {
  SimpleRails world;
  join(world);
  std::vector<std::byte> bytes(1 << 20);
  const auto send = [&](Operation& operation, std::uint64_t length) {
    operation.begin({});
    Transfer transfer{};
    transfer.operation = &operation;
    transfer.op = OpCode::send;
    transfer.flags = transfer_flag::kUnordered;
    transfer.local = bytes.data();
    transfer.length = length;
    transfer.delivery = Delivery::delivery;
    world.slice.begin();
    REQUIRE(world.rails->post({&transfer, 1}) == 1);
  };
  for (SimpleLink& link : world.links) link.room = 1;
  std::vector<Operation> sent(1000);
  Operation stuck;
  send(stuck, bytes.size());  // the first rail is full from now on
  for (Operation& operation : sent) {
    send(operation, 5000);
    for (int turns = 0; !operation.done() && turns < 10; ++turns) {
      world.move(1);
      world.turn();
    }
    REQUIRE(operation.done());
  }
  CHECK(world.links[0].posts == 2);  // with what joined it
  CHECK(world.far.notes > sent.size() - 10);
  world.rails->begin_end();
  world.rails.reset();
}

TEST_CASE("rails count what went out and what came back, as every path does") {
  SimpleRails world;
  join(world);
  std::int64_t value = 1, former = 0;
  const auto run = [&](OpCode op) {
    Operation operation;
    operation.begin({});
    Transfer transfer{};
    transfer.operation = &operation;
    transfer.op = op;
    transfer.atomic = AtomicOp::sum;
    transfer.type = DataType::i64;
    transfer.local = reinterpret_cast<std::byte*>(&value);
    transfer.result = reinterpret_cast<std::byte*>(&former);
    transfer.length = sizeof value;
    transfer.delivery = Delivery::delivery;
    REQUIRE(world.rails->post({&transfer, 1}) == 1);
    for (std::size_t link = 0; link < world.links.size(); ++link) world.move(link);
    REQUIRE(operation.done());
  };
  const auto bytes = [&] {
    return std::pair(world.rails->counts().bytes_out, world.rails->counts().bytes_in);
  };
  run(OpCode::write);
  CHECK(bytes() == std::pair<std::uint64_t, std::uint64_t>(8, 0));
  run(OpCode::read);
  CHECK(bytes() == std::pair<std::uint64_t, std::uint64_t>(8, 8));
  run(OpCode::fetch_atomic);
  CHECK(bytes() == std::pair<std::uint64_t, std::uint64_t>(16, 16));
}

TEST_CASE("a rail is not set aside for a time in which this process was absent") {
  for (const bool absent : {false, true}) {
    CAPTURE(absent);
    Put put;
    SimpleRails world;
    join(world);
    world.pass(seconds(1));
    put.post(world, 100);  // over the first rail
    for (int look = 0; look < 4; ++look) {
      world.pass(milliseconds(20));
      world.turn();
      world.move(1);  // a probe, which shows that the other one is faster
    }
    REQUIRE(world.how() == "test.0 test; test.1 test");
    world.clock += seconds(10);
    if (!absent) world.attended += seconds(10);
    // What came meanwhile is not read yet.
    world.turn();
    CHECK((world.how() == "test.0 test; test.1 test") == absent);
    world.move(0);
    for (int turn = 0; turn < 100 && !put.operation.done(); ++turn) {
      world.turn();
      world.move(1);
    }
    CHECK(put.operation.done());
    CHECK(put.operation.completion().error == Errc::ok);
  }
}

TEST_CASE("a peer is not given up for a time in which this process was absent") {
  for (const bool absent : {false, true}) {
    CAPTURE(absent);
    Put put;
    SimpleRails world;
    join(world);
    put.post(world, 100);
    world.move(0);
    REQUIRE(put.operation.done());
    for (SimpleLink& link : world.links) link.path->fail(Errc::peer_lost);
    Put waits;
    waits.post(world, 100);
    world.turn();  // calls again
    world.clock += seconds(100);
    if (!absent) world.attended += seconds(100);
    world.turn();
    for (std::size_t link = 0; link < 2; ++link) world.move(link);  // had been answered meanwhile
    for (int turn = 0; turn < 100 && !waits.operation.done(); ++turn) {
      world.turn();
      for (std::size_t link = 0; link < 2; ++link) world.move(link);
    }
    REQUIRE(waits.operation.done());
    CHECK(waits.operation.completion().error == (absent ? Errc::ok : Errc::peer_lost));
  }
}

TEST_CASE(
    "a rail that needed long to rise, or that is lost again and again, is not the one for small requests") {
  SimpleRails world;
  SUBCASE("rose late") {
    world.open();
    world.move(1);
    world.turn();
    world.pass(seconds(1));
    world.move(0);
  }
  SUBCASE("was lost three times") {
    join(world);
    for (int losses = 0; losses < 3; ++losses) {
      REQUIRE(world.links[0].path);
      world.links[0].path->fail(Errc::peer_lost);
      for (int turn = 0; turn < 5; ++turn) {
        world.pass(milliseconds(1));
        world.turn();
        world.move(0);
        world.move(1);
      }
    }
    CHECK(world.how() == "test.0 set aside; test.1 test");
  }
  const auto small_request_takes_the_second = [&] {
    for (int turn = 0; turn < 10; ++turn) {  // nothing else is under way
      world.turn();
      for (std::size_t link = 0; link < 2; ++link) world.move(link);
    }
    Put put;
    world.links[0].room = 0;
    put.post(world, 100);
    for (int i = 0; i < 64; ++i) world.move(1);
    const bool done = put.operation.done();
    world.links[0].room = 64;
    world.work = true;
    for (int turn = 0; turn < 100 && !put.operation.done(); ++turn) {
      world.turn();
      for (std::size_t link = 0; link < 2; ++link) world.move(link);
    }
    REQUIRE(put.operation.done());
    return done;
  };
  const auto carries = [&] { return world.how().starts_with("test.0 test"); };
  REQUIRE(!carries());
  for (int turn = 0; !carries() && turn < 10'000; ++turn) {
    world.pass(milliseconds(1));
    world.turn();
    for (std::size_t link = 0; link < 2; ++link) world.move(link);
  }
  REQUIRE(carries());  // it has passed its exam
  CHECK(small_request_takes_the_second());
  world.pass(seconds(11));  // well behaved
  CHECK(!small_request_takes_the_second());
}
