// Access slots: contexts of several processes claim slots of a domain's segment, show in them which region
// they access, and die at any moment, while the domain closes the region (fabric/segment/segment.h,
// providers/shm/regions.h).

#include <doctest/doctest.h>
#include <unistd.h>

#include <cstring>
#include <memory>
#include <optional>
#include <string>

#include "model/model.h"
#include "model/processes.h"
#include "providers/shm/path.h"
#include "providers/shm/regions.h"

using namespace fab;
using model::Kind;

namespace {

constexpr std::uint8_t kDomain[16] = {1};
constexpr std::uint64_t kKey = 5, kLaterKey = 6;
constexpr std::uint32_t kSlots = 3;  // which the scenarios use

// A domain, and what a peer knows of it that maps its segment: the same for all peers, as no other mapping
// shows anything else.
struct Domain {
  Segment segment = Segment::create(kDomain);
  std::optional<RegionTable> regions;
  Poller poller;
  bool left = false;
  shm::PeerDomain peer{shm::Address{.process = this_process(), .segment_fd = segment.fd(), .domain_id = {1}},
                       poller, left};
  std::optional<shm::KnownRegions> known[2];  // of each peer
  ContextRights rights{};
  std::uint64_t memory = 0;  // of the region
  int claimed[2] = {};       // by each peer; -1: none

  Domain() {
    const auto* const board = &segment.board();
    const auto* const end = segment.counters();
    model::alias(board, &peer.segment().board(), static_cast<std::size_t>(bytes(end) - bytes(board)));
    const auto* const table = &segment.header();
    model::alias(table, &peer.segment().header(),
                 static_cast<std::size_t>(segment.region_area() - bytes(table)) + RegionView::kAreaBytes);
    model::watch(segment.slots(), kSlots * sizeof(AccessSlot));
    model::watch(&segment.regions().entry(0), sizeof(RegionEntry));
    model::watch(&memory, sizeof memory);
    model::name(memory, "memory");
    model::name(segment.board().slots_used, "slots_used");
    model::name(segment.regions().entry(0).state, "state of the region");
    model::name(segment.regions().entry(0).key, "key of the region");
    for (std::uint32_t i = 0; i < kSlots; ++i) {
      const AccessSlot& slot = segment.slots()[i];
      const std::string of = " of slot " + std::to_string(i);
      model::name(slot.owner, "owner" + of);
      model::name(slot.active, "active" + of);
      model::name(slot, "slot " + std::to_string(i));
    }
  }
  static const std::byte* bytes(const void* address) { return static_cast<const std::byte*>(address); }

  // All is empty, but for one region. `used` slots were in use before.
  void reset(std::uint32_t used = 0) {
    model::revive_processes();
    std::memset(static_cast<void*>(segment.slots()), 0, kSlots * sizeof(AccessSlot));
    segment.board().slots_used = used;
    std::memset(segment.region_area(), 0, 4096 + RegionView::kFirstIndexSlots * 4);
    std::memset(static_cast<void*>(&segment.regions().entry(0)), 0, sizeof(RegionEntry));
    regions.emplace(segment.region_area());
    for (auto& one : known) one.emplace(peer, shm::CopyMode{false, false});
    memory = 1;
    claimed[0] = claimed[1] = -1;
    insert(kKey);
  }
  // Leaves a slot as a process does that died while it accessed the region.
  void leave_dead(std::uint32_t slot, unsigned process) {
    segment.slots()[slot].owner = SlotOwner::pack(model::process(process));
    segment.slots()[slot].active = 1;
    model::end_process(process);
  }
  void insert(std::uint64_t key) {
    const iovec buffer{&memory, sizeof memory};
    RegionRecord record;
    record.key = key;
    record.buffers = {&buffer, 1};
    record.access = access::kRemoteRead;
    regions->insert(record);
  }

  // --- a peer
  // Claims a slot as ShmEndpoint does, and puts its own into it.
  shm::ClaimedSlot claim(unsigned process) {
    const int slot = peer.segment().claim_slot(model::process(process));
    model::check(slot >= 0 && slot < static_cast<int>(kSlots), "there is no slot");
    claimed[process] = slot;
    shm::ClaimedSlot mine(&peer.segment().slots()[slot]);
    mine->target_context = process;
    return mine;
  }
  // As ShmPath::run() does it.
  void access(unsigned process, AccessSlot& slot) {
    shm::Access shown(slot);
    const shm::KnownRegion* region = known[process]->enter(kKey, shown);
    if (!region) return;
    std::uint64_t offset = 0;
    const Requester requester{rights, 0};
    if (known[process]->view().judge(*region->entry, {kKey, region->state, OpCode::read, 0, 8}, requester,
                                     offset) != Errc::ok)
      return;
    model::check(memory == 1, "the memory is used for something else");
  }
  void claim_and_access(unsigned process) {
    const shm::ClaimedSlot slot = claim(process);
    access(process, *slot);
  }

  // --- the domain
  void close() {
    regions->start_close(0);
    model::check(segment.wait_unused(0, Deadline()), "the region is not waited for");
    memory = 2;
    regions->finish_close(0);
    insert(kLaterKey);
  }
};
Domain& domain = *new Domain;

void check_all_free() {
  for (std::uint32_t i = 0; i < kSlots; ++i)
    model::check(domain.segment.slots()[i].owner == 0, "a slot is not free in the end");
}

// Two processes want the slot of a third one, which is dead, and the domain frees it.
model::Scenario claims() {
  const auto claim = [](unsigned process) {
    return [process] {
      const shm::ClaimedSlot slot = domain.claim(process);
      model::check(slot->target_context == process, "a slot has two owners");
    };
  };
  return {.setup =
              [] {
                domain.reset(1);
                domain.leave_dead(0, 2);
              },
          .threads = {claim(0), claim(1), [] { Segment::free_if_dead(domain.segment.slots()[0]); }},
          .finish = check_all_free};
}

// A process comes, accesses the region and goes while the region is closed.
model::Scenario closes() {
  return {.setup = [] { domain.reset(); },
          .threads = {[] { domain.claim_and_access(0); }, [] { domain.close(); }},
          .finish = check_all_free};
}

// It accesses it twice, and remembers it in between.
model::Scenario closes_between() {
  static shm::ClaimedSlot slot;
  return {.setup =
              [] {
                domain.reset(1);
                slot.reset(&domain.segment.slots()[0]);
                slot->owner = SlotOwner::pack(model::process(0));
              },
          .threads = {[] {
                        domain.access(0, *slot);
                        domain.access(0, *slot);
                      },
                      [] { domain.close(); }},
          .finish = [] { slot.release(); }};
}

// The slot goes from one process to the next one while the region is closed.
model::Scenario passes_on() {
  return {.setup = [] { domain.reset(); },
          .threads = {[] { domain.claim_and_access(0); }, [] { domain.claim_and_access(1); },
                      [] { domain.close(); }},
          .finish = check_all_free};
}

// A process dies at any moment: the region is closed all the same, and the slot can be taken.
model::Scenario dies() {
  return {.setup = [] { domain.reset(); },
          .threads = {[] { domain.claim_and_access(0); },
                      [] {
                        model::stop(0);
                        model::end_process(0);
                        domain.close();
                        const shm::ClaimedSlot slot = domain.claim(1);
                        model::check(domain.claimed[1] == 0, "the slot of a dead process is not taken");
                      }},
          .finish = check_all_free};
}

// A process that lives is stopped before it accesses anything, while it claims the slot of one that died in
// the middle of an access: nobody waits for it.
model::Scenario stopped() {
  return {.setup =
              [] {
                domain.reset(1);
                domain.leave_dead(0, 2);
              },
          .threads = {[] { domain.claim(0).release(); },
                      [] {
                        model::stop(0);
                        domain.close();
                      }},
          .finish = {}};
}

}  // namespace

TEST_CASE("a slot has one owner, and that of a dead one can be taken") {
  model::holds("access slots, claims", claims(), {.preemptions = 2});
}

TEST_CASE("who closes a region waits for each access to it") {
  model::holds("access slots, a region closes", closes(), {.preemptions = 3});
  model::holds("access slots, between two accesses", closes_between(), {.preemptions = 3});
  model::holds("access slots, the slot passes on", passes_on(), {.preemptions = 2});
}

TEST_CASE("a process that dies or is stopped holds up nobody") {
  model::holds("access slots, a process dies", dies(), {.preemptions = 4});
  model::holds("access slots, a process is stopped", stopped(), {.preemptions = 4});
}

TEST_CASE("the orders of access slots are needed") {
  using enum std::memory_order;
  const AccessSlot& slot = domain.segment.slots()[0];
  const RegionEntry& entry = domain.segment.regions().entry(0);
  const auto weaker = [](Kind kind, std::memory_order order, const auto& where) {
    return std::vector{model::Weaker{kind, order, &where, sizeof where}};
  };
  const model::Options few{.preemptions = 2};
  const char* const raced = "data race";
  model::fails("a slot is claimed", claims(), weaker(Kind::update, relaxed, slot.owner), raced, few);
  model::fails("a slot is freed", claims(), weaker(Kind::store, relaxed, slot.owner), raced, few);
  model::fails("a state is stored", closes(), weaker(Kind::store, release, entry.state), raced);
  model::fails("a state is read", closes(), weaker(Kind::load, acquire, entry.state), raced);
  model::fails("an access is shown", closes(), weaker(Kind::update, acq_rel, slot.active), raced);
  model::fails("an access is looked for", closes(), weaker(Kind::load, acquire, slot.active), raced);
  model::fails("an access ends", closes(), weaker(Kind::store, relaxed, slot.active), raced);
  const auto& used = domain.segment.board().slots_used;
  model::fails("a slot is counted", closes(), weaker(Kind::update, relaxed, used), raced);
  model::fails("slots are counted", closes(), weaker(Kind::load, acquire, used), raced);
}
