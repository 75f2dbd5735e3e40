#include <doctest/doctest.h>

#include <atomic>
#include <list>
#include <random>
#include <thread>

#include "providers/tcp/harness.h"

using namespace fab;
using namespace fab::test;

TEST_CASE("put, get and atomics between two domains") {
  Node a, b;
  const PeerId peer = a.peers->insert(b.name());
  const std::uint64_t key = b.region->remote().key;
  CHECK(a.context->reaches(peer).ok);
  std::mt19937 random(1);
  for (const std::size_t length : {0u, 1u, 7u, 8u, 255u, 256u, 257u, 4096u, 65'536u, 1'000'000u}) {
    CAPTURE(length);
    std::vector<std::byte> out(length), back(length + 1);
    for (auto& byte : out) byte = static_cast<std::byte>(random());
    Call put(OpCode::write, key, 17, out.data(), length), get(OpCode::read, key, 17, back.data(), length);
    REQUIRE(put.run(a, peer) == Errc::ok);
    CHECK(std::equal(out.begin(), out.end(), b.memory.begin() + 17));
    REQUIRE(get.run(a, peer) == Errc::ok);
    CHECK(std::equal(out.begin(), out.end(), back.begin()));
  }
  std::uint64_t one = 1, former = 99;
  // Under the lock, for the thread sanitizer: it does not see that an answer on the socket orders things as
  // well.
  b.context->locked([&](Endpoint&) { std::fill(b.memory.begin(), b.memory.end(), std::byte{0}); });
  for (std::uint64_t i = 0; i < 100; ++i) {
    Call add(OpCode::fetch_atomic, key, 64, &one, 8);
    add.transfer.result = reinterpret_cast<std::byte*>(&former);
    REQUIRE(add.run(a, peer) == Errc::ok);
    CHECK(former == i);
  }
  Call refused(OpCode::write, key + 1, 0, &one, 8), beyond(OpCode::read, key, 1 << 20, &one, 8);
  CHECK(refused.run(a, peer) == Errc::key_rejected);
  CHECK(beyond.run(a, peer) == Errc::bounds);
  CHECK(a.context->counts(peer).errors == 2);
  CHECK(a.context->report(peer).link == "tcp.0");
  CHECK(a.context->report(peer).how.starts_with("127.0.0.1:"));
}

TEST_CASE("an endpoint talks to itself") {
  Node a;
  const PeerId self = a.peers->insert(a.name());
  std::uint64_t value = 7, back = 0;
  for (int i = 0; i < 10; ++i) {
    Call put(OpCode::write, a.region->key(), 80, &value, 8), get(OpCode::read, a.region->key(), 80, &back, 8);
    REQUIRE(put.run(a, self) == Errc::ok);
    REQUIRE(get.run(a, self) == Errc::ok);
    CHECK(back == 7);
  }
}

TEST_CASE("remote data names its sender as soon as the address vector knows it") {
  Node a, b;
  const PeerId to_b = a.peers->insert(b.name());
  const auto received = [&] {
    Completion entry;
    REQUIRE(b.core->wait([&] { return !b.completions->empty(); }, Deadline::in_seconds(100)));
    REQUIRE(b.completions->read({&entry, 1}) == 1);
    return entry;
  };
  std::uint64_t value = 1;
  const auto put = [&](std::uint64_t data) {
    Call call(OpCode::write, b.region->key(), 0, &value, 8);
    call.transfer.flags = transfer_flag::kRemoteData;
    call.transfer.data = data;
    REQUIRE(call.run(a, to_b) == Errc::ok);
  };
  put(11);
  Completion entry = received();
  CHECK(entry.data == 11);
  CHECK(entry.source == kNoPeer);
  const PeerId stranger = b.peers->insert(Node().name());
  const PeerId to_a = b.peers->insert(a.name());
  put(12);
  CHECK(received().source == to_a);
  b.peers->remove(to_a);
  put(13);
  CHECK(received().source == kNoPeer);
  b.peers->remove(stranger);
}

TEST_CASE("many operations, posted without waiting, from several threads") {
  Node a, b;
  const PeerId peer = a.peers->insert(b.name());
  const std::uint64_t key = b.region->key();
  std::vector<std::thread> threads;
  for (int t = 0; t < 3; ++t)
    threads.emplace_back([&] {
      std::uint64_t one = 1;
      std::list<Call> calls;
      for (int i = 0; i < 5000; ++i) calls.emplace_back(OpCode::atomic, key, 128, &one, 8).start(a, peer);
      for (Call& call : calls) CHECK(call.outcome(a) == Errc::ok);
    });
  for (auto& thread : threads) thread.join();
  std::uint64_t sum = 0, nothing = 0;
  Call look(OpCode::fetch_atomic, key, 128, &nothing, 8);
  look.transfer.result = reinterpret_cast<std::byte*>(&sum);
  REQUIRE(look.run(a, peer) == Errc::ok);
  CHECK(sum == 15'000);
}

TEST_CASE("crossing calls end in one stream that carries both directions") {
  for (int round = 0; round < 60; ++round) {
    CAPTURE(round);
    Node a({}, 4096), b({}, 4096);
    const PeerId to_b = a.peers->insert(b.name()), to_a = b.peers->insert(a.name());
    std::atomic<int> ready{0};
    const auto talk = [&](Node& from, PeerId peer, std::uint64_t key, std::uint64_t value) {
      std::list<Call> calls;
      std::vector<std::uint64_t> values(50, value);
      ready.fetch_add(1);
      while (ready.load() != 2) {
      }
      for (std::size_t i = 0; i < values.size(); ++i)
        calls.emplace_back(OpCode::write, key, i * 8, &values[i], 8).start(from, peer);
      for (Call& call : calls) CHECK(call.outcome(from) == Errc::ok);
    };
    std::thread other([&] { talk(b, to_a, a.region->key(), 2); });
    talk(a, to_b, b.region->key(), 1);
    other.join();
    CHECK(a.memory[8 * 49] == std::byte{2});
    CHECK(b.memory[8 * 49] == std::byte{1});
    CHECK(a.context->counts(to_b).settled == 50);
    CHECK(b.context->counts(to_a).settled == 50);
    // Of one connection, exactly one end goes to the port that the other one listens on.
    const bool a_called = a.context->report(to_b).how == b.listens_on().text();
    const bool b_called = b.context->report(to_a).how == a.listens_on().text();
    CHECK(a_called != b_called);
  }
}

TEST_CASE("who lacks the key is refused, and nothing moves") {
  Node locked(keyed("secret")), same(keyed("secret")), other(keyed("wrong")), open;
  std::uint64_t value = 5;
  const auto attempt = [&](Node& from, Node& to) {
    Call put(OpCode::write, to.region->key(), 0, &value, 8);
    return put.run(from, from.peers->insert(to.name()));
  };
  CHECK(attempt(same, locked) == Errc::ok);
  CHECK(attempt(other, locked) == Errc::key_rejected);
  CHECK(attempt(open, locked) == Errc::key_rejected);
  CHECK(attempt(locked, open) == Errc::key_rejected);
  CHECK(attempt(locked, other) == Errc::key_rejected);
  CHECK(attempt(locked, same) == Errc::ok);
  CHECK(open.memory[0] == std::byte{0});
  CHECK(other.memory[0] == std::byte{0});
}

TEST_CASE("with several keys each opens the door, has its own stream and its own regions") {
  const Node::Keys both{{"first", 1}, {"second", 2}, {"second", 3}};
  Node target({}, 1 << 20, both), peer({}, 1 << 20, both), third(keyed("third")), open;
  MemoryRegion::Parameters parameters;
  parameters.buffers = {{target.memory.data(), 64}};
  parameters.access = access::kAll;
  parameters.auth_keys = {"second"};
  const auto region = target.core->register_memory(std::move(parameters));
  std::uint64_t value = 5;
  const auto attempt = [&](Node& from, std::uint32_t auth) {
    Call put(OpCode::write, region->key(), 0, &value, 8);
    return put.run(from, from.peers->insert(target.name(), {.auth = auth}));
  };
  CHECK(attempt(third, 0) == Errc::key_rejected);
  CHECK(attempt(open, 0) == Errc::key_rejected);
  CHECK(attempt(peer, 1) == Errc::key_rejected);
  CHECK(target.memory[0] == std::byte{0});
  CHECK(attempt(peer, 2) == Errc::ok);
  CHECK(attempt(peer, 3) == Errc::ok);  // the same secret
  CHECK(target.memory[0] == std::byte{5});
  CHECK_THROWS_AS(attempt(peer, 0), Error);
  CHECK_THROWS_AS(attempt(peer, 4), Error);
  CHECK(peer.context->counts(0).posted == 1);
  CHECK(peer.context->counts(1).posted == 2);
  region->close({});
}

TEST_CASE("a port in use is refused by name") {
  Node first;
  const auto where = EndpointAddress::parse(first.context->parts()[0].bytes);
  REQUIRE(where);
  const auto port = std::to_string(where->addresses[0].port());
  try {
    Node second(with({{"tcp_port", port}}));
    FAIL("it listened");
  } catch (const Error& error) {
    CHECK(error.code() == Errc::address_in_use);
    CHECK(std::string(error.what()).find("127.0.0.1:" + port) != std::string::npos);
  }
  for (const char* bad : {"x", "70000", "-1", ""}) CHECK_THROWS_AS(Node(with({{"tcp_port", bad}})), Error);
  for (const char* bad : {"auto", "1", ""}) CHECK_THROWS_AS(Node(with({{"tcp_kernel_tls", bad}})), Error);
  for (const char* bad : {"127.0.0.1:x", "[::1", "203.0.113.7"})
    CHECK_THROWS_AS(Node(with({{"tcp_listen", bad}})), Error);
}

TEST_CASE("nobody there: the operations fail as unreachable") {
  Node a;
  std::string name;
  {
    Node gone;
    name = gone.name();
  }
  const PeerId peer = a.peers->insert(name);
  std::uint64_t value = 1;
  Call put(OpCode::write, 1, 0, &value, 8);
  CHECK(put.run(a, peer) == Errc::unreachable);
}

TEST_CASE("another endpoint under the same port is not taken for the peer") {
  Node a, b;
  auto part = b.context->parts()[0];
  auto where = EndpointAddress::parse(part.bytes);
  where->id[3] ^= 1;
  part.bytes = where->encode();
  const PeerId peer = a.peers->insert(Name{{part}}.encode());
  std::uint64_t value = 1;
  Call put(OpCode::write, b.region->key(), 0, &value, 8);
  CHECK(put.run(a, peer) == Errc::unreachable);
}

TEST_CASE("loopback addresses of another host do not count as reachable") {
  Node a, b;
  auto part = b.context->parts()[0];
  auto where = EndpointAddress::parse(part.bytes);
  where->network[0] ^= 1;
  part.bytes = where->encode();
  const Reach reach = a.context->reaches(a.peers->insert(Name{{part}}.encode()));
  CHECK_FALSE(reach.ok);
  CHECK(reach.why.find("loopback") != std::string::npos);
  part.link = "tcp.1";
  CHECK(a.context->reaches(a.peers->insert(Name{{part}}.encode())).why.find("tcp.0") != std::string::npos);
}

TEST_CASE("parsers of names and handshakes take any bytes") {
  std::mt19937 random(77);
  EndpointAddress where{.id = {1, 2, 3}, .network = this_network(), .addresses = {}};
  where.addresses = {parse_socket_address("127.0.0.1", 4711), parse_socket_address("[::1]:80", 0)};
  Hello hello;
  hello.from = where.id;
  hello.stream = 5;
  hello.part = {"tcp.0", 3, where.encode()};
  const std::string part = where.encode(), body = hello.encode().substr(kHelloHeader);
  REQUIRE(EndpointAddress::parse(part));
  CHECK(EndpointAddress::parse(part)->addresses[1].text() == "[::1]:80");
  CHECK(EndpointAddress::parse(part)->encode() == part);
  REQUIRE(Hello::parse(body));
  CHECK(Hello::parse(body)->encode() == hello.encode());
  for (std::size_t cut = 0; cut < part.size(); ++cut)
    CHECK_FALSE(EndpointAddress::parse(part.substr(0, cut)));
  for (std::size_t cut = 0; cut < body.size(); ++cut) CHECK_FALSE(Hello::parse(body.substr(0, cut)));
  for (int i = 0; i < 100'000; ++i) {
    std::string mutated = i % 2 ? part : body;
    for (auto changes = random() % 4 + 1; changes; --changes)
      mutated[random() % mutated.size()] = static_cast<char>(random());
    if (const auto parsed = EndpointAddress::parse(mutated)) CHECK(parsed->encode() == mutated);
    if (const auto parsed = Hello::parse(mutated)) CHECK(parsed->encode().substr(kHelloHeader) == mutated);
    HelloHeader::parse(mutated.substr(0, 12));
    Welcome::parse(mutated);
    Challenge::parse(mutated);
    Proof::parse(mutated);
    Refusal::parse(mutated.substr(0, 8));
  }
}
