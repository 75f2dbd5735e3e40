#include <doctest/doctest.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <numeric>
#include <thread>
#include <utility>
#include <vector>

#include "base/bytes/random.h"
#include "base/crypto/tls_kernel.h"
#include "providers/providers.h"
#include "providers/tcp/harness.h"

using namespace fab;
using namespace fab::test;

namespace {

DomainOptions encrypted(const std::string& key = "secret") {
  DomainOptions options = keyed(key);
  options.encrypt = true;
  return options;
}

std::vector<std::byte> noise(std::size_t size) {
  std::vector<std::byte> bytes(size);
  fill_random(bytes.data(), bytes.size());
  return bytes;
}

}  // namespace

TEST_CASE("puts, gets and updates of all sizes go both ways over an encrypted link") {
  constexpr std::size_t kSize = 9 << 20;  // more than a frame
  Node a(encrypted(), kSize), b(encrypted(), kSize);
  const PeerId to_b = a.peers->insert(b.name()), to_a = b.peers->insert(a.name());
  for (const std::size_t size : {std::size_t{1}, std::size_t{8}, std::size_t{5000}, std::size_t{16 << 10},
                                 std::size_t{100'001}, kSize}) {
    CAPTURE(size);
    std::vector<std::byte> data = noise(size), back(size);
    CHECK(Call(OpCode::write, b.region->key(), kSize - size, data.data(), size).run(a, to_b) == Errc::ok);
    CHECK(std::equal(data.begin(), data.end(), b.memory.end() - static_cast<std::ptrdiff_t>(size)));
    CHECK(Call(OpCode::read, b.region->key(), kSize - size, back.data(), size).run(a, to_b) == Errc::ok);
    CHECK(back == data);
    CHECK(Call(OpCode::write, a.region->key(), 0, data.data(), size).run(b, to_a) == Errc::ok);
    CHECK(std::equal(data.begin(), data.end(), a.memory.begin()));
  }
  std::vector<std::uint64_t> ones(100, 1);
  std::ranges::fill(b.memory, std::byte{0});
  CHECK(Call(OpCode::atomic, b.region->key(), 0, ones.data(), 800).run(a, to_b) == Errc::ok);
  CHECK(std::equal(ones.begin(), ones.end(), reinterpret_cast<std::uint64_t*>(b.memory.data())));
}

TEST_CASE("many operations at once, both ways, over an encrypted link") {
  constexpr std::size_t kEach = 60'000, kCount = 100;
  Node a(encrypted(), kEach * kCount), b(encrypted(), kEach * kCount);
  const PeerId to_b = a.peers->insert(b.name()), to_a = b.peers->insert(a.name());
  const auto data = noise(kEach * kCount), other = noise(kEach * kCount);
  std::vector<std::unique_ptr<Call>> calls;
  for (std::size_t i = 0; i < kCount; ++i) {
    auto* const from = const_cast<std::byte*>(data.data() + i * kEach);
    calls.push_back(std::make_unique<Call>(OpCode::write, b.region->key(), i * kEach, from, kEach));
    calls.back()->start(a, to_b);
    auto* const other_from = const_cast<std::byte*>(other.data() + i * kEach);
    calls.push_back(std::make_unique<Call>(OpCode::write, a.region->key(), i * kEach, other_from, kEach));
    calls.back()->start(b, to_a);
  }
  for (std::size_t i = 0; i < calls.size(); ++i) CHECK(calls[i]->outcome(i % 2 ? b : a) == Errc::ok);
  CHECK(b.memory == data);
  CHECK(a.memory == other);
}

TEST_CASE("memory that is not there fails its own operation, and the encrypted link goes on") {
  const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  Node a(encrypted()), b(encrypted());
  const PeerId peer = a.peers->insert(b.name());
  void* const hole = ::mmap(nullptr, 64 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  REQUIRE(hole != MAP_FAILED);
  REQUIRE(::munmap(static_cast<std::byte*>(hole) + 32 * page, 32 * page) == 0);
  std::ranges::fill(b.memory, std::byte{7});
  CHECK(Call(OpCode::write, b.region->key(), 0, hole, 64 * page).run(a, peer) == Errc::bounds);
  CHECK(Call(OpCode::read, b.region->key(), 0, hole, 64 * page).run(a, peer) == Errc::bounds);
  std::uint64_t value = 5;
  CHECK(Call(OpCode::write, b.region->key(), 0, &value, 8).run(a, peer) == Errc::ok);
  CHECK(a.context->counts(peer).posted == 3);  // over one and the same path
  ::munmap(hole, 32 * page);
}

TEST_CASE("streams go on with other keys, however many are busy") {
  const std::uint64_t usual = std::exchange(most_records_of_key, 20);
  for (const char* const kernel : {"off", "on"}) {
    if (kernel == std::string("on") && !kernel_seals()) {
      MESSAGE("this kernel has no TLS that can renew keys");
      CHECK(std::getenv("PYFAB_TEST_KERNEL_TLS") == nullptr);
      continue;
    }
    CAPTURE(kernel);
    DomainOptions options = encrypted();
    options.settings["tcp_kernel_tls"] = kernel;
    options.peer_deadline = 5;
    constexpr std::size_t kInitiators = 7, kAtOnce = 8;  // more than an endpoint looks at without being told
    Node target(options);
    std::vector<std::unique_ptr<Node>> initiators;
    std::vector<PeerId> peers;
    for (std::size_t i = 0; i < kInitiators; ++i) {
      initiators.push_back(std::make_unique<Node>(options));
      peers.push_back(initiators.back()->peers->insert(target.name()));
    }
    std::vector<std::byte> data(64, std::byte{1});
    for (int round = 0; round < 60; ++round) {
      std::vector<std::unique_ptr<Call>> calls;
      for (std::size_t i = 0; i < kInitiators * kAtOnce; ++i) {
        calls.push_back(std::make_unique<Call>(OpCode::write, target.region->key(), 64 * i, data.data(), 64));
        calls.back()->start(*initiators[i % kInitiators], peers[i % kInitiators]);
      }
      for (std::size_t i = 0; i < calls.size(); ++i)
        REQUIRE(calls[i]->outcome(*initiators[i % kInitiators]) == Errc::ok);
    }
  }
  most_records_of_key = usual;
}

TEST_CASE("one side that encrypts and one that does not refuse each other, and say why") {
  for (const bool caller_encrypts : {true, false}) {
    CAPTURE(caller_encrypts);
    Node a(caller_encrypts ? encrypted() : keyed("secret")),
        b(caller_encrypts ? keyed("secret") : encrypted());
    std::uint64_t value = 5;
    Call put(OpCode::write, b.region->key(), 0, &value, 8);
    CHECK(put.run(a, a.peers->insert(b.name())) == Errc::not_encrypted);
    CHECK(b.memory[0] == std::byte{0});
  }
  CHECK(std::string(describe(Errc::not_encrypted)).find("encrypt") != std::string::npos);
}

TEST_CASE("an endpoint with several keys serves callers with each of them, and no others") {
  const auto keys = [](const std::vector<std::string>& secrets) {
    Node::Keys all;
    for (const std::string& secret : secrets) all.push_back({.key = secret});
    return all;
  };
  Node b(encrypted("first"), 1 << 20, keys({"second", "third", "first"}));
  for (const std::string key : {"first", "second", "third", "fourth"}) {
    CAPTURE(key);
    Node a(encrypted(key));
    std::uint64_t value = 5;
    const Errc outcome = Call(OpCode::write, b.region->key(), 0, &value, 8).run(a, a.peers->insert(b.name()));
    // The region is for those with the key of the domain.
    CHECK(outcome == (key == "first" ? Errc::ok : Errc::key_rejected));
    const auto refused = [&b] {
      return b.core->security.counts()[static_cast<std::size_t>(SecurityEvent::key_refused)];
    };
    if (key == "fourth") {
      // The caller may hear of it before the other side's thread has noted it.
      const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(100);
      while (refused() == 0 && std::chrono::steady_clock::now() < until) std::this_thread::yield();
      CHECK(refused() == 1);
    } else {
      CHECK(refused() == 0);
    }
  }
}

TEST_CASE("nothing is opened that could not be encrypted") {
  DomainOptions without_key;
  without_key.encrypt = true;
  const auto open = [&] { const Node node(without_key); };
  CHECK_THROWS_WITH_AS(open(), doctest::Contains("authorization key"), Error);
}

TEST_CASE("a caller whose encryption is nonsense is dropped and counted, and others are served") {
  Node b(encrypted());
  const SocketAddress where = b.listens_on();
  const OwnFd socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  REQUIRE(::connect(socket.get(), where.get(), where.length()) == 0);
  const std::string nonsense = "\x16\x03\x03" + std::string("\0\x20", 2) + std::string(32, 'x');
  REQUIRE(::send(socket.get(), nonsense.data(), nonsense.size(), MSG_NOSIGNAL) ==
          static_cast<ssize_t>(nonsense.size()));
  char rest[256];
  while (::recv(socket.get(), rest, sizeof rest, 0) > 0) {
  }
  CHECK(b.core->security.counts()[static_cast<std::size_t>(SecurityEvent::protocol)] == 1);
  Node a(encrypted());
  std::uint64_t value = 5;
  CHECK(Call(OpCode::write, b.region->key(), 0, &value, 8).run(a, a.peers->insert(b.name())) == Errc::ok);
}
