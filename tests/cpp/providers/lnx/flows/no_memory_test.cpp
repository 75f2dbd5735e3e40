#include <doctest/doctest.h>

#include <cstdint>
#include <map>
#include <memory>
#include <new>
#include <random>
#include <span>
#include <vector>

#include "fabric/address_vector/address_vector.h"
#include "failing_memory.h"
#include "providers/lnx/flows/flow.h"

using namespace fab;
using namespace fab::lnx;
using namespace fab::test;

TEST_CASE("what a flow has made room for it remembers") {
  const auto made = with_each_failing([](FailingMemory& memory) {
    ReceiveQueue receives;
    AddressVector peers;
    Flow flow(receives, std::make_shared<Sender>(peers, std::vector<Part>{{"test.0", 0, "peer"}}), [] {});
    std::map<std::uint64_t, Errc> done;
    const std::vector<std::byte> result(8, std::byte{7});
    std::mt19937 random(5);
    {
      const FailingMemory::Scope scope(memory);
      for (int i = 0; i < 60; ++i) {
        const std::uint64_t number = 1 + random() % 40;
        if (flow.known(number)) continue;
        const Errc error = random() % 3 ? Errc::ok : Errc::bounds;
        const std::size_t length = random() % 2 && error == Errc::ok ? result.size() : 0;
        try {
          flow.make_room(length);
        } catch (const std::bad_alloc&) {
          continue;  // it is not done, then
        }
        flow.record(number, error, std::span(result).first(length));
        const FailingMemory::Spared spared;
        done[number] = error;
      }
      flow.settled(10);
      flow.settled(17);
    }
    for (std::uint64_t number = 17; number < 45; ++number) {
      const auto* const outcome = flow.outcome(number);
      REQUIRE((outcome != nullptr) == done.contains(number));
      if (outcome) CHECK(outcome->error == done[number]);
    }
  });
  CHECK(made > 10);
}
