#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <thread>
#include <vector>

#include "providers/shm/harness.h"
#include "providers/shm/layout.h"
#include "providers/shm/processes.h"

using namespace fab;
using test::Child;
using test::refuse_descriptors;
using test::Side;

TEST_CASE("slots of dead processes are taken over by one claimant each") {
  const std::uint8_t id[16] = {1};
  Segment segment = Segment::create(id);
  constexpr int kThreads = 4, kEach = 25;
  for (int round = 0; round < 100; ++round) {
    Child dead([&](const Child::Report& report) {
      for (int i = 0; i < kThreads * kEach; ++i) {
        AccessSlot& slot = segment.slots()[segment.claim_slot(this_process())];
        if (i % 2) slot.owner.fetch_or(SlotOwner::kClaiming);  // as one that dies before it has the slot
        slot.active.store(1);
      }
      report("!");
    });
    dead.hear(1);
    dead.end();
    std::vector<std::vector<int>> claimed(kThreads);
    std::vector<std::thread> threads;
    for (auto& mine : claimed)
      threads.emplace_back([&] {
        for (int i = 0; i < kEach; ++i) mine.push_back(segment.claim_slot(this_process()));
      });
    for (auto& thread : threads) thread.join();
    std::vector<int> all;
    for (const auto& mine : claimed) all.insert(all.end(), mine.begin(), mine.end());
    std::sort(all.begin(), all.end());
    CHECK(std::adjacent_find(all.begin(), all.end()) == all.end());
    CHECK(all.front() >= 0);
    CHECK(segment.board().slots_used.load() <= kThreads * kEach + kThreads);
    for (const int index : all) {
      AccessSlot& slot = segment.slots()[index];
      CHECK(slot.owner.load() == SlotOwner::pack(this_process()));
      CHECK(slot.active.load() == 0);
      slot.owner.store(0);
    }
  }
}

TEST_CASE("a process that has no descriptor left takes no slot of a living one") {
  const std::uint8_t id[16] = {1};
  Segment segment = Segment::create(id);
  const int mine = segment.claim_slot(this_process());
  Child poor([&](const Child::Report& report) {
    const ProcessId self = this_process();
    if (!refuse_descriptors()) return report("?");
    Segment::free_if_dead(segment.slots()[mine]);
    const int index = segment.claim_slot(self);
    report(index >= 0 && index != mine ? "+" : "-");
  });
  const std::string outcome = poor.hear(1);
  if (outcome == "?") {
    MESSAGE("this machine allows no seccomp filters");
    return;
  }
  CHECK(outcome == "+");
  CHECK(segment.slots()[mine].owner.load() == SlotOwner::pack(this_process()));
}

TEST_CASE("a peer whose slots are all taken is unreachable until one is free again") {
  Side a, b;
  const auto memory = b.own(64);
  const PeerId peer = a.knows(b);
  const Segment& segment = b.domain->segment();
  std::vector<int> taken;
  for (int slot; (slot = segment.claim_slot(this_process())) >= 0;) taken.push_back(slot);
  std::uint64_t word = 5;
  const auto put = [&] { return a.put(peer, memory.region->key(), 0, &word, sizeof word); };
  const std::string why = "all " + std::to_string(taken.size()) + " access slots of process ";
  CHECK_THROWS_WITH_AS(put(), doctest::Contains(why.c_str()), Error);
  CHECK(memory.own[0] == std::byte{0});
  segment.slots()[taken[taken.size() / 2]].owner.store(0);
  CHECK(put() == Errc::ok);
  CHECK(memory.own[0] == std::byte{5});
  for (const int slot : taken) segment.slots()[slot].owner.store(0);
}
