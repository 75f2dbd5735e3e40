#include <doctest/doctest.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <string>
#include <vector>

#include "base/fd.h"
#include "providers/shm/harness.h"
#include "providers/shm/layout.h"
#include "providers/shm/processes.h"
#include "providers/shm/ways.h"

using namespace fab;
using test::Child;
using test::kSize;
using test::kWays;
using test::refuse_descriptors;
using test::segment_of;
using test::Side;
using test::Target;

TEST_CASE("a stopped target is still put to and got from; what only it can do is lost at the deadline") {
  Target target;
  DomainOptions options;
  options.peer_deadline = 0.3;
  for (const std::string way : {"auto", "cma"}) {
    CAPTURE(way);
    Side side(way, options);
    const PeerId peer = side.peers->insert(target.name);
    target.stop();
    std::uint64_t word = 7, got = 0, former = 0;
    for (const std::uint64_t key : {target.mapped_key, target.own_key}) {
      REQUIRE(side.put(peer, key, 8, &word, 8) == Errc::ok);
      REQUIRE(side.get(peer, key, 8, &got, 8) == Errc::ok);
      CHECK(got == 7);
    }
    if (way == "auto") CHECK(side.fetch_add(peer, target.mapped_key, 8, 1, former) == Errc::ok);
    CHECK(side.fetch_add(peer, target.own_key, 8, 1, former) == Errc::peer_lost);
    target.go_on();
    CHECK(side.fetch_add(peer, target.own_key, 16, 1, former) == Errc::ok);  // over a new path
  }
}

// What is called unreachable may be posted again over another link, so it must not have happened.
TEST_CASE("a put whose notice nobody takes changes no byte if it is called unreachable") {
  DomainOptions options;
  options.peer_deadline = 0.3;
  // It looks for channels, and has no descriptor to open one with.
  Target target([](const Child::Report& report) { report(refuse_descriptors() ? "+" : "?"); });
  if (target.hear(1) == "?") {
    MESSAGE("this machine allows no seccomp filters");
    return;
  }
  for (const std::string way : {"auto", "mapped", "cma"}) {
    CAPTURE(way);
    Side side(way, options);
    const PeerId peer = side.peers->insert(target.name);
    for (const std::uint64_t key : {target.mapped_key, target.own_key}) {
      std::vector<std::byte> bytes(kSize, std::byte{7}), got(kSize);
      Transfer put = Side::transfer(OpCode::write, key, 0, bytes.data(), kSize);
      put.flags |= transfer_flag::kRemoteData;
      CHECK(side.run(peer, {put}).error == Errc::unreachable);
      // A path of its own, as the first one is lost.
      Side reader;
      REQUIRE(reader.get(reader.peers->insert(target.name), key, 0, got.data(), kSize) == Errc::ok);
      CHECK(std::ranges::all_of(got, [](std::byte byte) { return byte == std::byte{0}; }));
    }
  }
}

TEST_CASE("a killed target ends everything outstanding, long before the deadline") {
  for (const std::string& way : kWays) {
    CAPTURE(way);
    Target target, other;
    DomainOptions options;
    options.peer_deadline = 10'000;
    Side side(way, options);
    const PeerId peer = side.peers->insert(target.name), alive = side.peers->insert(other.name);
    std::uint64_t word = 7, former = 0;
    REQUIRE(side.put(peer, target.own_key, 8, &word, 8) == Errc::ok);
    target.stop();
    // Waits in the ring for a target that will not answer.
    Operation operation;
    operation.begin({});
    Transfer add = Side::transfer(OpCode::fetch_atomic, target.own_key, 8, &word, 8);
    add.atomic = AtomicOp::sum;
    add.type = DataType::u64;
    add.result = reinterpret_cast<std::byte*>(&former);
    add.operation = &operation;
    REQUIRE(side.context->post(peer, {&add, 1}) == 1);
    target.end();
    REQUIRE(side.context->wait([&] { return operation.done(); }, Deadline::in_seconds(60)));
    CHECK(operation.completion().error == Errc::peer_lost);
    const auto event = side.events->read();
    REQUIRE(event);
    CHECK(event->type == EventType::peer_lost);
    CHECK(event->peer == peer);
    CHECK_THROWS_AS(side.put(peer, target.own_key, 8, &word, 8), Error);  // nobody to open a path to
    CHECK(side.put(alive, other.own_key, 8, &word, 8) == Errc::ok);
  }
}

TEST_CASE("a killed target is noticed on the direct way") {
  for (const std::string way : {"auto", "cma"}) {
    CAPTURE(way);
    Target target;
    Side side(way);
    const PeerId peer = side.peers->insert(target.name);
    std::uint64_t word = 7;
    REQUIRE(side.put(peer, target.mapped_key, 8, &word, 8) == Errc::ok);
    target.end();
    Errc outcome = Errc::ok;
    const auto deadline = Deadline::in_seconds(30);
    try {
      while (outcome == Errc::ok && !deadline.passed())
        outcome = side.put(peer, target.mapped_key, 8, &word, 8);
    } catch (const Error& error) {
      outcome = error.code();
    }
    CHECK((outcome == Errc::peer_lost || outcome == Errc::unreachable));
  }
}

TEST_CASE("a target that has become another program is gone") {
  for (const auto& way : kWays) {
    CAPTURE(way);
    int ends[2];
    REQUIRE(::pipe(ends) == 0);
    const OwnFd from(ends[0]), to(ends[1]);
    Target target([&](const Child::Report&) {
      char go;
      if (::read(from.get(), &go, 1) == 1) ::execl("/bin/sleep", "sleep", "1000", nullptr);
      ::_exit(1);
    });
    Side side(way);
    const PeerId peer = side.peers->insert(target.name);
    std::uint64_t value = 1;
    const auto put = [&](std::uint64_t key) {
      return side.run(peer, {side.transfer(OpCode::write, key, 0, &value, 8)}, 5);
    };
    if (way != "ring") REQUIRE(put(target.own_key).error == Errc::ok);
    if (way == "auto" || way == "mapped") REQUIRE(put(target.mapped_key).error == Errc::ok);
    const std::string program = "/proc/" + std::to_string(target.pid()) + "/comm";
    REQUIRE(::write(to.get(), "x", 1) == 1);
    const auto is_sleep = [&] {
      std::ifstream file(program);
      std::string name;
      return std::getline(file, name) && name == "sleep";
    };
    const auto patience = Deadline::in_seconds(30);
    while (!is_sleep() && !patience.passed()) ::usleep(1000);
    REQUIRE(is_sleep());
    // The first puts after that may find what is still mapped.
    Errc outcome = Errc::ok;
    while ((outcome == Errc::ok || outcome == Errc::bounds) && !patience.passed()) try {
        outcome = put(target.mapped_key).error;
      } catch (const Error& error) {
        outcome = error.code();
      }
    CHECK((outcome == Errc::peer_lost || outcome == Errc::unreachable));
    CHECK_FALSE(side.context->reaches(peer).ok);
  }
}

TEST_CASE("an initiator that dies inside a region does not keep it from closing") {
  int ends[2];
  REQUIRE(::pipe(ends) == 0);
  Child initiator([&](const Child::Report& report) {
    // As far as the owner can see: in the middle of a copy.
    std::string bytes(512, '\0');
    bytes.resize(static_cast<std::size_t>(::read(ends[0], bytes.data(), bytes.size())));
    WireReader in(bytes);
    const std::uint64_t key = in.get<std::uint64_t>();
    static Segment segment = segment_of(std::string(in.get_bytes()));
    AccessSlot& slot = segment.slots()[segment.claim_slot(this_process())];
    slot.active.exchange(static_cast<std::uint64_t>(segment.regions().find(key)) + 1);
    report("!");
  });
  Side side;
  auto memory = side.own(64);
  WireWriter out;
  out.put(memory.region->key()).put_bytes(side.name());
  REQUIRE(::write(ends[1], out.bytes().data(), out.bytes().size()) ==
          static_cast<ssize_t>(out.bytes().size()));
  initiator.hear(1);
  initiator.stop();
  CHECK_FALSE(memory.region->close(Deadline::in_seconds(0.05)));
  CHECK_FALSE(memory.region->close(Deadline::in_seconds(0)));
  initiator.end();
  CHECK(memory.region->close({}));
  ::close(ends[0]);
  ::close(ends[1]);
}

TEST_CASE("what a dead initiator left behind is cleared away, and the target goes on serving") {
  int ends[2];
  REQUIRE(::pipe(ends) == 0);
  Child initiator([&](const Child::Report& report) {
    std::string bytes(512, '\0');
    bytes.resize(static_cast<std::size_t>(::read(ends[0], bytes.data(), bytes.size())));
    WireReader in(bytes);
    const std::uint64_t key = in.get<std::uint64_t>();
    static Side side("ring");
    const PeerId peer = side.peers->insert(std::string(in.get_bytes()));
    std::uint64_t word = 7;
    report(side.put(peer, key, 0, &word, 8) == Errc::ok ? "+" : "-");
    for (;;) side.put(peer, key, 0, &word, 8);
  });
  Side side;
  auto memory = side.own(64);
  WireWriter out;
  out.put(memory.region->key()).put_bytes(side.name());
  REQUIRE(::write(ends[1], out.bytes().data(), out.bytes().size()) ==
          static_cast<ssize_t>(out.bytes().size()));
  CHECK(initiator.hear(1) == "+");
  const AccessSlot& slot = side.domain->segment().slots()[0];
  CHECK(SlotOwner::unpack(slot.owner.load()).pid == initiator.pid());
  initiator.end();
  CHECK(side.context->wait([&] { return slot.owner.load() == 0; }, Deadline::in_seconds(30)));

  Side other("ring");
  std::uint64_t word = 9;
  CHECK(other.put(other.knows(side), memory.region->key(), 0, &word, 8) == Errc::ok);
  CHECK(std::memcmp(memory.data(), &word, 8) == 0);
  CHECK(memory.region->close({}));
  ::close(ends[0]);
  ::close(ends[1]);
}
