#include "providers/lnx/rails/rails.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdlib>
#include <deque>
#include <list>
#include <memory>
#include <random>

#include "providers/lnx/rails/broken_streams.h"

using namespace fab;
using namespace fab::lnx;
using Bytes = std::vector<std::byte>;
using World = test::BrokenStreams;
using test::Ground;
namespace {

struct Op {
  Operation operation;
  Transfer transfer{};
  Bytes bytes;
  std::int64_t former = -1, one = 1;

  Op(OpCode op, std::uint64_t key, std::uint64_t remote, Bytes content) : bytes(std::move(content)) {
    operation.begin({});
    transfer.operation = &operation;
    transfer.op = op;
    transfer.key = key;
    transfer.remote = remote;
    transfer.local = bytes.data();
    transfer.length = bytes.size();
    transfer.delivery = Delivery::delivery;
  }
  void add(std::uint64_t key) {
    transfer = {};
    transfer.operation = &operation;
    transfer.op = OpCode::fetch_atomic;
    transfer.atomic = AtomicOp::sum;
    transfer.type = DataType::i64;
    transfer.key = key;
    transfer.local = reinterpret_cast<std::byte*>(&one);
    transfer.result = reinterpret_cast<std::byte*>(&former);
    transfer.length = 8;
    transfer.delivery = Delivery::delivery;
  }
};

struct Landing {
  Bytes bytes;
  Operation operation;
};

Bytes filled(std::size_t size, int value) { return Bytes(size, static_cast<std::byte>(value)); }

std::uint64_t expose(Ground& ground, Bytes& bytes) {
  const std::vector<iovec> buffers{{bytes.data(), bytes.size()}};
  const auto region = ground.regions.insert({.key = kNoKey,
                                             .base = 0,
                                             .buffers = buffers,
                                             .access = access::kAll,
                                             .flags = 0,
                                             .file = -1,
                                             .file_offset = 0,
                                             .enabled = true});
  return ground.regions.entry(region).key;
}

unsigned rounds(unsigned usual) {
  const char* wanted = std::getenv("FAB_ROUNDS");
  return wanted ? static_cast<unsigned>(std::strtoul(wanted, nullptr, 10)) : usual;
}

}  // namespace

TEST_CASE("whatever breaks, everything happens once, in order, and nothing stale is stored") {
  for (unsigned seed = 1; seed <= rounds(150); ++seed) {
    CAPTURE(seed);
    std::list<Op> ops;  // outlive the world
    std::list<Landing> landings;
    World world(seed, 2 + seed % 3);
    auto& random = world.random;
    Bytes place(600'000), sum(8);
    const std::uint64_t place_key = expose(world.far, place), sum_key = expose(world.far, sum);
    std::int64_t adds = 0;
    std::vector<std::int64_t> formers;
    std::uint64_t data = 0;
    int message = 0;
    for (int turn = 0; turn < 12; ++turn) {
      ops.clear();
      landings.clear();
      // The same place again and again: a byte of an earlier turn would show.
      Op& put = ops.emplace_back(OpCode::write, place_key, 0,
                                 filled(turn % 3 == 0   ? 600'000
                                        : turn % 3 == 1 ? 40'000
                                                        : 100,
                                        turn + 1));
      if (random() % 2) {
        put.transfer.flags = transfer_flag::kRemoteData;
        put.transfer.data = data++;
      }
      // In pieces, too.
      std::vector<iovec> pieces;
      if (random() % 2) {
        for (std::size_t at = 0; at < put.bytes.size();) {
          const std::size_t part = std::min<std::size_t>(put.bytes.size() - at, 1 + random() % 90'000);
          pieces.push_back({put.bytes.data() + at, part});
          at += part;
        }
        put.transfer.local_pieces = pieces.data();
        put.transfer.piece_count = static_cast<std::uint16_t>(pieces.size());
      }
      const auto post_receive = [&](std::size_t size) {
        Landing& landing = landings.emplace_back();
        landing.bytes.resize(size);
        landing.operation.begin({});
        Receive receive;
        receive.operation = &landing.operation;
        receive.local = landing.bytes.data();
        receive.length = size;
        receive.rule = {.tag = 5, .tagged = true};
        world.far.receives.post(receive);
      };
      std::vector<std::pair<std::size_t, int>> sent;
      for (int i = 0; i < 4; ++i) {
        ops.emplace_back(OpCode::write, 0, 0, Bytes()).add(sum_key);
        ++adds;
        const std::size_t size = i == 2 ? 50'000 : random() % 300;
        Op& send = ops.emplace_back(OpCode::send, 5, 0, filled(size, ++message));
        send.transfer.flags = transfer_flag::kTagged;
        sent.emplace_back(size, message);
      }
      const bool expected = random() % 2;
      if (expected)
        for (int i = 0; i < 4; ++i) post_receive(60'000);
      for (Op& op : ops) {
        REQUIRE(world.until([&] { return world.rails->post({&op.transfer, 1}) == 1; }));
        for (auto steps = random() % 5; steps; --steps) world.step();
      }
      if (!expected) {
        for (auto steps = random() % 500; steps; --steps) {
          if (random() % 100 == 0) world.kill_one();
          world.step();
        }
        for (int i = 0; i < 4; ++i) post_receive(60'000);
      }
      const int kill_every = turn % 2 ? 150 : 600;
      REQUIRE(world.until(
          [&] {
            return std::ranges::all_of(ops, [](const Op& op) { return op.operation.done(); }) &&
                   std::ranges::all_of(landings, [](const Landing& some) { return some.operation.done(); });
          },
          kill_every));
      for (const Op& op : ops) {
        REQUIRE(op.operation.completion().error == Errc::ok);
        if (op.former >= 0) formers.push_back(op.former);
      }
      REQUIRE(std::equal(put.bytes.begin(), put.bytes.end(), place.begin()));
      auto landing = landings.begin();
      for (const auto& [size, value] : sent) {
        REQUIRE(landing->operation.completion().error == Errc::ok);
        REQUIRE(landing->operation.completion().length == size);
        REQUIRE(std::all_of(landing->bytes.begin(),
                            landing->bytes.begin() + static_cast<std::ptrdiff_t>(size),
                            [v = value](std::byte byte) { return byte == static_cast<std::byte>(v); }));
        ++landing;
      }
      Op& get = ops.emplace_back(OpCode::read, place_key, 0, Bytes(place.size()));
      REQUIRE(world.rails->post({&get.transfer, 1}) == 1);
      REQUIRE(world.until([&] { return get.operation.done(); }, kill_every));
      REQUIRE(get.operation.completion().error == Errc::ok);
      REQUIRE(get.bytes == place);
    }
    std::int64_t total;
    std::memcpy(&total, sum.data(), 8);
    REQUIRE(total == adds);
    std::ranges::sort(formers);
    for (std::size_t i = 0; i < formers.size(); ++i) REQUIRE(formers[i] == static_cast<std::int64_t>(i));
    std::uint64_t told = 0;
    Completion entry;
    while (world.far.completions.read(std::span(&entry, 1)) == 1) REQUIRE(entry.data == told++);
    REQUIRE(told == data);
    REQUIRE(world.rails->counts().settled == world.rails->counts().posted);
  }
}

TEST_CASE("a refused transfer stores nothing, in however many stripes") {
  World world(7, 3);
  Bytes place(600'000);
  const std::uint64_t key = expose(world.far, place);
  struct Case {
    std::uint64_t key, remote;
    Delivery delivery;
    Errc error;
  };
  for (const Case& wrong : {Case{key, 1, Delivery::delivery, Errc::bounds},
                            Case{key, ~std::uint64_t{0} - 300'000, Delivery::delivery, Errc::bounds},
                            Case{key + 1, 0, Delivery::delivery, Errc::key_rejected},
                            Case{key, 0, Delivery::commit, Errc::invalid}}) {
    Op put(OpCode::write, wrong.key, wrong.remote, filled(600'000, 9));
    put.transfer.delivery = wrong.delivery;
    REQUIRE(world.rails->post({&put.transfer, 1}) == 1);
    REQUIRE(world.until([&] { return put.operation.done(); }, 300));
    CHECK(put.operation.completion().error == wrong.error);
    CHECK(std::ranges::all_of(place, [](std::byte byte) { return byte == std::byte{0}; }));
  }
}

TEST_CASE("more results than the target keeps are fetched all the same") {
  std::deque<Op> ops;
  World world(13, 2);
  Bytes sum(8);
  const std::uint64_t key = expose(world.far, sum);
  constexpr std::size_t kFetches = Flow::kMostUnsettled + 8000;
  for (std::size_t i = 0; i < kFetches; ++i) {
    ops.emplace_back(OpCode::write, 0, 0, Bytes()).add(key);
    REQUIRE(world.until([&] { return world.rails->post({&ops.back().transfer, 1}) == 1; }, 20'000));
  }
  REQUIRE(world.until(
      [&] { return ops.back().operation.done() && world.rails->counts().settled == kFetches; }, 20'000));
  for (std::size_t i = 0; i < kFetches; ++i) REQUIRE(ops[i].former == static_cast<std::int64_t>(i));
}

TEST_CASE("a message that nobody receives holds up nothing else") {
  Op stuck(OpCode::send, 1, 0, filled(50'000, 1));
  World world(11, 2);
  Bytes place(8);
  const std::uint64_t key = expose(world.far, place);
  stuck.transfer.flags = transfer_flag::kTagged;
  REQUIRE(world.rails->post({&stuck.transfer, 1}) == 1);
  for (int i = 0; i < 20'000; ++i) {
    Op put(OpCode::write, key, 0, filled(8, i));
    REQUIRE(world.rails->post({&put.transfer, 1}) == 1);
    REQUIRE(world.until([&] { return put.operation.done(); }, 2000));
    REQUIRE(put.operation.completion().error == Errc::ok);
  }
  CHECK(!stuck.operation.done());
  CHECK(world.rails->counts().settled == 20'000);
  CHECK(world.rails->oldest() == 1);
}

TEST_CASE("a rail that takes requests and answers none is set aside, and what it held is never stored") {
  const auto reported = [](const World& world, const char* words) {
    return world.rails->report().how.find(words) != std::string::npos;
  };
  for (unsigned seed = 1; seed <= rounds(4); ++seed) {
    CAPTURE(seed);
    std::list<Op> ops;
    World world(seed, 2);
    Bytes place(600'000), sum(8);
    const std::uint64_t key = expose(world.far, place), sum_key = expose(world.far, sum);
    const auto settle = [&] {
      REQUIRE(world.until(
          [&] { return std::ranges::all_of(ops, [](const Op& op) { return op.operation.done(); }); }));
      for (const Op& op : ops) REQUIRE(op.operation.completion().error == Errc::ok);
      ops.clear();
    };
    const auto post = [&](int value) {
      for (const std::size_t size : {600'000, 100}) {
        Op& put = ops.emplace_back(OpCode::write, key, 0, filled(size, value));
        REQUIRE(world.rails->post({&put.transfer, 1}) == 1);
      }
      ops.emplace_back(OpCode::write, 0, 0, Bytes()).add(sum_key);
      REQUIRE(world.rails->post({&ops.back().transfer, 1}) == 1);
    };
    post(1);
    settle();
    // Some of it is on its way when the rail stands still.
    post(2);
    for (auto steps = world.random() % 40; steps; --steps) world.step();
    world.frozen = static_cast<std::uint8_t>(seed % 2);
    settle();
    for (int value = 3; !reported(world, "set aside"); value = 3) {
      post(value);
      settle();
    }
    post(4);
    settle();
    world.frozen.reset();
    REQUIRE(world.until([&] { return !reported(world, "set aside"); }));
    const auto no_more_of_it = [&] {
      return std::ranges::all_of(world.streams, [](const auto& some) {
        return some->near.state == Errc::ok || some->near.wire.empty();
      });
    };
    REQUIRE(world.until(no_more_of_it));
    CHECK(std::all_of(place.begin() + 100, place.end(), [](std::byte byte) { return byte == std::byte{4}; }));
    std::int64_t adds;
    std::memcpy(&adds, sum.data(), 8);
    post(5);
    settle();
    std::int64_t more;
    std::memcpy(&more, sum.data(), 8);
    CHECK(more == adds + 1);
  }
}

TEST_CASE("transfers whose stripes end while they are posted") {
  std::deque<Op> ops;
  World world(17, 2);
  Bytes place(300'000);
  const std::uint64_t key = expose(world.far, place);
  world.near.refuses = Errc::bounds;
  // More than are kept for others: some are freed when they end.
  for (int i = 0; i < 600; ++i) {
    ops.emplace_back(OpCode::read, key, 0, Bytes(place.size()));
    REQUIRE(world.rails->post({&ops.back().transfer, 1}) == 1);
  }
  REQUIRE(world.until(
      [&] { return std::ranges::all_of(ops, [](const Op& op) { return op.operation.done(); }); }));
  for (const Op& op : ops) CHECK(op.operation.completion().error == Errc::bounds);
  CHECK(world.rails->counts().settled == ops.size());
}
