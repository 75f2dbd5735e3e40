#include <doctest/doctest.h>
#include <poll.h>
#include <sys/mman.h>

#include <list>
#include <random>

#include "providers/tcp/harness.h"

using namespace fab;
using namespace fab::test;

TEST_CASE("target process" * doctest::skip()) {
  std::string port;
  for (char c; read_all(0, &c, 1) && c != '\n';) port += c;
  Node node(with({{"tcp_port", port}}, 5), 64 << 20);
  const std::string name = node.name();
  const std::uint64_t size = name.size(), key = node.region->key();
  write_all(1, &Target::kMagic, 8);
  write_all(1, &size, 8);
  write_all(1, name.data(), size);
  write_all(1, &key, 8);
  char c;
  while (read_all(0, &c, 1)) {
  }
}

TEST_CASE("strangers who talk nonsense, or nothing, disturb nobody") {
  Node a, b(with({}, 1));
  const auto where = EndpointAddress::parse(b.context->parts()[0].bytes);
  std::mt19937 random(5);
  std::vector<OwnFd> strangers;
  for (int i = 0; i < 40; ++i) {
    OwnFd socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    REQUIRE(::connect(socket.get(), where->addresses[0].get(), where->addresses[0].length()) == 0);
    std::string noise(1 + random() % 5000, '\0');
    for (char& c : noise) c = static_cast<char>(random());
    if (i % 2)
      noise.replace(0, std::min<std::size_t>(noise.size(), 8),
                    std::string("pft1\3\0\1\0", 8).substr(0, noise.size()));
    if (i % 4) [[maybe_unused]]
      const auto sent = ::send(socket.get(), noise.data(), noise.size(), MSG_NOSIGNAL);
    strangers.push_back(std::move(socket));
  }
  std::uint64_t value = 3;
  Call put(OpCode::write, b.region->key(), 0, &value, 8);
  CHECK(put.run(a, a.peers->insert(b.name())) == Errc::ok);
  // At its deadline, every one of them is cut off.
  for (const OwnFd& socket : strangers) {
    pollfd poll{.fd = socket.get(), .events = POLLIN, .revents = 0};
    CHECK(::poll(&poll, 1, 10'000) == 1);
    char rest[256];
    ssize_t got;
    while ((got = ::recv(socket.get(), rest, sizeof rest, 0)) > 0) {
    }
    CHECK(got <= 0);
  }
}

TEST_CASE("a peer that breaks the protocol after the handshake is cut off, and others go on") {
  Node a, b;
  const auto where = *EndpointAddress::parse(b.context->parts()[0].bytes);
  OwnFd socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  REQUIRE(::connect(socket.get(), where.addresses[0].get(), where.addresses[0].length()) == 0);
  Hello hello;
  hello.from.fill(9);
  hello.to = where.id;
  hello.stream = 1;
  hello.place = place_of(where.addresses[0]);
  EndpointAddress own{.id = hello.from, .network = {}, .addresses = where.addresses};
  hello.part = {"tcp.0", 0, own.encode()};
  const std::string text = hello.encode() + Proof{}.encode() + std::string(48, '\x7f');
  REQUIRE(::send(socket.get(), text.data(), text.size(), 0) == static_cast<ssize_t>(text.size()));
  std::string got;
  char bytes[512];
  for (ssize_t n; (n = ::recv(socket.get(), bytes, sizeof bytes, 0)) > 0;)
    got.append(bytes, static_cast<std::size_t>(n));
  const std::size_t challenge = kHelloHeader + HelloHeader::parse(got.substr(0, kHelloHeader)).value().length;
  CHECK(HelloHeader::parse(got.substr(challenge, kHelloHeader)).value().type == HelloType::welcome);
  std::uint64_t value = 3;
  Call put(OpCode::write, b.region->key(), 0, &value, 8);
  CHECK(put.run(a, a.peers->insert(b.name())) == Errc::ok);
}

TEST_CASE("a killed target ends what is outstanding to it, and nothing else") {
  Node a(with({}, 3)), healthy;
  Target target;
  const PeerId peer = a.peers->insert(target.remote().name), other = a.peers->insert(healthy.name());
  std::vector<std::byte> data(32 << 20);
  Call first(OpCode::write, target.remote().key, 0, data.data(), 8);
  REQUIRE(first.run(a, peer) == Errc::ok);
  std::list<Call> calls;
  for (int i = 0; i < 4; ++i)
    calls.emplace_back(OpCode::write, target.remote().key, 0, data.data(), data.size());
  calls.emplace_back(OpCode::write, target.remote().key, 0, data.data(), 8).transfer.delivery =
      Delivery::inject;
  for (Call& call : calls) call.start(a, peer);
  target.signal(SIGKILL);
  int lost = 0;
  for (Call& call : calls) lost += call.outcome(a) == Errc::peer_lost;
  CHECK(lost >= 1);
  Call again(OpCode::write, target.remote().key, 0, data.data(), 8);
  CHECK(again.run(a, peer) == Errc::unreachable);
  Call put(OpCode::write, healthy.region->key(), 0, data.data(), 1000);
  CHECK(put.run(a, other) == Errc::ok);
}

TEST_CASE("a stopped target counts as lost at the deadline, a slow but living one does not") {
  Node a(with({}, 1));
  Target target;
  const PeerId peer = a.peers->insert(target.remote().name);
  std::vector<std::byte> data(64 << 20);
  Call first(OpCode::write, target.remote().key, 0, data.data(), data.size());
  REQUIRE(first.run(a, peer) == Errc::ok);
  target.signal(SIGSTOP);
  Call put(OpCode::write, target.remote().key, 0, data.data(), data.size());
  CHECK(put.run(a, peer) == Errc::peer_lost);
  target.signal(SIGCONT);
  Call again(OpCode::write, target.remote().key, 0, data.data(), 8);
  CHECK(again.run(a, peer) == Errc::ok);
}

TEST_CASE("a target that comes back under its port is used again by the same name") {
  Node a(with({}, 2));
  std::string port;
  {
    Node probe;
    port = std::to_string(EndpointAddress::parse(probe.context->parts()[0].bytes)->addresses[0].port());
  }
  std::uint64_t value = 1;
  auto target = std::make_unique<Target>(port);
  const std::string name = target->remote().name;
  const PeerId peer = a.peers->insert(name);
  Call put(OpCode::write, target->remote().key, 0, &value, 8);
  REQUIRE(put.run(a, peer) == Errc::ok);
  target->signal(SIGKILL);
  target.reset();
  target = std::make_unique<Target>(port);
  CHECK(target->remote().name == name);
  Errc outcome;
  do {  // until the loss was noticed
    Call again(OpCode::write, target->remote().key, 0, &value, 8);
    outcome = again.run(a, peer);
  } while (outcome == Errc::peer_lost);
  CHECK(outcome == Errc::ok);
}

TEST_CASE("sending from memory that is not there fails that operation only") {
  Node a, b;
  void* hole = ::mmap(nullptr, 1 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  REQUIRE(hole != MAP_FAILED);
  MemoryRegion::Parameters parameters;
  parameters.buffers = {{hole, 1 << 20}};
  parameters.access = access::kAll;
  const auto region = b.core->register_memory(std::move(parameters));
  const PeerId peer = a.peers->insert(b.name());
  ::mprotect(hole, 1 << 20, PROT_NONE);
  std::vector<std::byte> local(1 << 20);
  Call get(OpCode::read, region->key(), 0, local.data(), local.size());
  CHECK(get.run(a, peer) == Errc::bounds);
  Call from_hole(OpCode::write, b.region->key(), 0, hole, 1 << 20);
  CHECK(from_hole.run(a, peer) == Errc::bounds);
  Call good(OpCode::write, b.region->key(), 0, local.data(), local.size());
  CHECK(good.run(a, peer) == Errc::ok);
  region->close({});
  ::munmap(hole, 1 << 20);
}

TEST_CASE("closing a region under load: not a byte afterwards") {
  Node a, b;
  const PeerId peer = a.peers->insert(b.name());
  for (int round = 0; round < 30; ++round) {
    std::vector<std::byte> memory(2 << 20);
    MemoryRegion::Parameters parameters;
    parameters.buffers = {{memory.data(), memory.size()}};
    parameters.access = access::kAll;
    const auto region = b.core->register_memory(std::move(parameters));
    std::vector<std::byte> ones(memory.size(), std::byte{1});
    std::list<Call> calls;
    for (int i = 0; i < 6; ++i)
      calls.emplace_back(i % 2 ? OpCode::read : OpCode::write, region->key(), 0, ones.data(), ones.size())
          .start(a, peer);
    Call small(OpCode::write, b.region->key(), 0, ones.data(), 8);
    if (round % 2) REQUIRE(small.run(a, peer) == Errc::ok);
    region->close({});
    std::fill(memory.begin(), memory.end(), std::byte{0});
    for (Call& call : calls) {
      const Errc error = call.outcome(a);
      CHECK((error == Errc::ok || error == Errc::key_rejected));
    }
    CHECK(std::count(memory.begin(), memory.end(), std::byte{1}) == 0);
  }
}
