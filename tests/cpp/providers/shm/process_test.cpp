#include <doctest/doctest.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "providers/shm/harness.h"
#include "providers/shm/processes.h"
#include "providers/shm/ways.h"

using namespace fab;
using test::Child;
using test::kSize;
using test::kWays;
using test::refuse_calls;
using test::Side;
using test::Target;

TEST_CASE("puts, gets and atomics between processes give the same each way") {
  Target target;
  for (const std::string& way : kWays) {
    CAPTURE(way);
    Side side(way);
    const PeerId peer = side.peers->insert(target.name);
    for (const std::uint64_t key : {target.mapped_key, target.own_key}) {
      std::vector<std::byte> bytes(kSize), got(kSize);
      for (std::size_t i = 0; i < kSize; ++i) bytes[i] = static_cast<std::byte>(i * 31 + way.size());
      REQUIRE(side.put(peer, key, 0, bytes.data(), kSize) == Errc::ok);
      REQUIRE(side.get(peer, key, 0, got.data(), kSize) == Errc::ok);
      CHECK(got == bytes);
      std::uint64_t zero = 0, former = 1;
      REQUIRE(side.put(peer, key, 64, &zero, 8) == Errc::ok);
      REQUIRE(side.fetch_add(peer, key, 64, 5, former) == Errc::ok);
      CHECK(former == 0);
      REQUIRE(side.fetch_add(peer, key, 64, 5, former) == Errc::ok);
      CHECK(former == 5);
      CHECK(side.put(peer, key, kSize - 7, &zero, 8) == Errc::bounds);
      CHECK(side.put(peer, key ^ 1, 0, &zero, 8) == Errc::key_rejected);
    }
  }
}

TEST_CASE("several initiating processes sum exactly") {
  Target target;
  constexpr std::uint64_t kEach = 1000;
  {
    std::vector<std::unique_ptr<Child>> adders;
    for (const std::string& way : kWays)
      adders.push_back(std::make_unique<Child>([&](const Child::Report& report) {
        Side side(way);
        const PeerId peer = side.peers->insert(target.name);
        std::uint64_t former;
        for (std::uint64_t i = 0; i < kEach; ++i)
          for (const std::uint64_t key : {target.mapped_key, target.own_key})
            if (side.fetch_add(peer, key, 0, 1, former) != Errc::ok) return report("x");
        report("+");
      }));
    for (auto& adder : adders) CHECK(adder->hear(1) == "+");
  }
  Side side;
  const PeerId peer = side.peers->insert(target.name);
  for (const std::uint64_t key : {target.mapped_key, target.own_key}) {
    std::uint64_t sum = 0;
    REQUIRE(side.get(peer, key, 0, &sum, 8) == Errc::ok);
    CHECK(sum == kEach * kWays.size());
  }
}

TEST_CASE("where the kernel forbids cross-memory attach, the ring takes over") {
  Target target;
  Child initiator([&](const Child::Report& report) {
    static Side early;  // has a path that was opened while it was allowed
    const PeerId before = early.peers->insert(target.name);
    std::uint64_t word = 11, got = 0;
    bool good = early.put(before, target.own_key, 8, &word, 8) == Errc::ok &&
                early.context->report(before).how == "cross-memory attach";
    if (!refuse_calls({SYS_process_vm_readv, SYS_process_vm_writev}, EPERM)) return report("?");
    static Side side;
    const PeerId peer = side.peers->insert(target.name);
    good = good && side.put(peer, target.own_key, 0, &word, 8) == Errc::ok;
    good = good && side.get(peer, target.own_key, 0, &got, 8) == Errc::ok && got == 11;
    good = good && side.context->report(peer).how == "ring";
    good = good && side.put(peer, target.mapped_key, 0, &word, 8) == Errc::ok;
    good = good && side.context->report(peer).how == "mapped";
    good = good && side.put(peer, target.own_key, kSize, &word, 8) == Errc::bounds;
    std::vector<std::byte> large(kSize);
    good = good && early.put(before, target.own_key, 0, large.data(), large.size()) == Errc::ok;
    good = good && early.context->report(before).how == "ring";
    bool refused = false;
    try {
      Side forced("cma");
    } catch (const Error& error) {
      refused = error.code() == Errc::not_supported;
    }
    report(good && refused ? "+" : "-");
  });
  const std::string outcome = initiator.hear(1);
  if (outcome == "?") {
    MESSAGE("this machine allows no seccomp filters");
    return;
  }
  CHECK(outcome == "+");
}

TEST_CASE("a process that gave up its privileges is told why it cannot use shared memory") {
  if (::geteuid() != 0) {
    MESSAGE("only root can give up privileges");
    return;
  }
  Child hardened([](const Child::Report& report) {
    if (::setresgid(65534, 65534, 65534) != 0 || ::setresuid(65534, 65534, 65534) != 0) return report("?");
    const Info info = shm::make_shm_provider()->discover().front();  // not dumpable any more
    report(!info.usable && info.why.find("/proc") != std::string::npos ? "+" : "-");
  });
  CHECK(hardened.hear(1) == "+");
}
