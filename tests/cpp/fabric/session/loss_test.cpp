#include <doctest/doctest.h>
#include <sys/mman.h>

#include <list>

#include "base/memory/mapping.h"
#include "fabric/session/pipe.h"

using namespace fab;
using namespace fab::test;
using Bytes = std::vector<std::byte>;

// Regions, memory and peers that go while transfers are under way.

TEST_CASE("closing a region in the middle of transfers ends them with an error, not the stream") {
  for (unsigned seed = 1; seed <= 300; ++seed) {
    CAPTURE(seed);
    Pipe pipe(seed);
    const std::size_t size = seed % 10 ? 60'000 : 9'000'000;
    const Bytes content = random_bytes(pipe.random, size);
    const Mapping memory = Mapping::anonymous(size);
    std::memcpy(memory.data(), content.data(), size);
    Bytes kept(1000), reading(size), writing(size, std::byte{1}), small(100, std::byte{2});
    const auto key = pipe.b.expose({{memory.data(), size / 2}, {memory.data() + size / 2, size - size / 2}});
    const auto region = pipe.b.last_region;
    const auto kept_key = pipe.b.expose({piece(kept)});
    std::list<Probe> probes;
    if (seed % 2) probes.emplace_back(OpCode::read, key, 0, reading.data(), size);
    if (seed % 3) probes.emplace_back(OpCode::write, key, 0, writing.data(), size);
    probes.emplace_back(OpCode::read, key, 0, reading.data(), size);
    for (Probe& probe : probes) REQUIRE(probe.post(pipe.a) == 1);
    Probe after(OpCode::write, kept_key, 0, small.data(), small.size());
    REQUIRE(after.post(pipe.a) == 1);
    const auto turns = pipe.random() % 12;
    for (std::size_t i = 0; i < turns; ++i) REQUIRE(pipe.turn() == Errc::ok);
    pipe.b.close(region);
    REQUIRE(::mprotect(memory.data(), size, PROT_NONE) ==
            0);  // whoever reads it from here on ends the process
    REQUIRE(pipe.run() == Errc::ok);
    for (const Probe& probe : probes) {
      REQUIRE(probe.done());
      CHECK((probe.error() == Errc::ok || probe.error() == Errc::key_rejected));
      if (probes.size() == 1 && probe.error() == Errc::ok) CHECK(reading == content);
    }
    CHECK(after.error() == Errc::ok);
    CHECK(kept[99] == std::byte{2});
  }
}

TEST_CASE("a loss settles everything once") {
  for (unsigned seed = 1; seed <= 50; ++seed) {
    Pipe pipe(seed);
    Bytes memory(300'000), local(300'000);
    const auto key = pipe.b.expose({piece(memory)});
    std::list<Probe> probes;
    for (int i = 0; i < 20; ++i) {
      Probe& probe = probes.emplace_back(i % 2 ? OpCode::write : OpCode::read, key, 0, local.data(),
                                         pipe.some_length(300'000));
      if (i % 5 == 1) probe.transfer.delivery = Delivery::inject;
      REQUIRE(probe.post(pipe.a) == 1);
    }
    for (std::size_t i = pipe.random() % 30; i; --i) REQUIRE(pipe.turn() == Errc::ok);
    pipe.a.session.fail(Errc::peer_lost);
    pipe.b.session.fail(Errc::peer_lost);
    CHECK(pipe.a.session.requests().outstanding() == 0);
    CHECK_FALSE(pipe.a.session.has_output());
    CHECK(pipe.a.counts.settled == 20);
    for (const Probe& probe : probes) CHECK(probe.done());
  }
}

TEST_CASE("memory that is not there fails its request, and the stream goes on") {
  Pipe pipe(22);
  Bytes memory(400'000), local(400'000, std::byte{6});
  const auto key = pipe.b.expose({piece(memory)});
  iovec io[64];
  const auto output_of = [&](Side& side) { return side.session.output(io, 64); };

  SUBCASE("source of a put") {
    Probe put(OpCode::write, key, 0, local.data(), 300'000);
    REQUIRE(put.post(pipe.a) == 1);
    REQUIRE(output_of(pipe.a) == 2);
    pipe.a.wire.append(static_cast<const char*>(io[0].iov_base), io[0].iov_len);
    pipe.a.session.sent(io[0].iov_len);
    REQUIRE(pipe.a.session.output_fault());
    REQUIRE(pipe.run() == Errc::ok);
    CHECK(put.error() == Errc::bounds);
  }
  SUBCASE("region of a get") {
    Probe get(OpCode::read, key, 0, local.data(), 300'000);
    REQUIRE(get.post(pipe.a) == 1);
    while (!pipe.b.session.has_output()) {
      pipe.send(pipe.a);
      REQUIRE(pipe.receive(pipe.a, pipe.b) == Errc::ok);
    }
    REQUIRE(output_of(pipe.b) == 3);
    pipe.b.wire.append(static_cast<const char*>(io[0].iov_base), io[0].iov_len);
    pipe.b.session.sent(io[0].iov_len);
    REQUIRE(pipe.b.session.output_fault());
    REQUIRE(pipe.run() == Errc::ok);
    CHECK(get.error() == Errc::bounds);
  }
  SUBCASE("landing place of a get, and region of a put") {
    for (const OpCode op : {OpCode::read, OpCode::write}) {
      Side& receiver = op == OpCode::read ? pipe.a : pipe.b;
      Side& sender = op == OpCode::read ? pipe.b : pipe.a;
      Probe probe(op, key, 0, local.data(), 300'000);
      REQUIRE(probe.post(pipe.a) == 1);
      bool met = false;
      for (int i = 0; i < 1000 && !met; ++i) {
        pipe.send(sender);
        pipe.send(receiver);
        REQUIRE(pipe.receive(receiver, sender) == Errc::ok);
        REQUIRE(receiver.session.input(io) >= 1);
        met = receiver.session.incoming().fault();
        if (!met) REQUIRE(pipe.receive(sender, receiver) == Errc::ok);
      }
      REQUIRE(met);
      REQUIRE(pipe.run() == Errc::ok);
      CHECK(probe.error() == Errc::bounds);
    }
  }
  Probe after(OpCode::write, key, 0, local.data(), 300);
  REQUIRE(after.post(pipe.a) == 1);
  REQUIRE(pipe.run() == Errc::ok);
  CHECK(after.error() == Errc::ok);
}
