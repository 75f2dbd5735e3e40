// The region table (fabric/segment/region_table.h): its owner changes it while peers seek and judge. The key
// index has few slots here, so that it is soon filled anew.

#include "fabric/segment/region_table.h"

#include <doctest/doctest.h>

#include <cstring>
#include <optional>
#include <thread>

#include "base/bytes/mix.h"
#include "base/memory/mapping.h"
#include "model/model.h"
#include "providers/shm/regions.h"

using namespace fab;
using model::Kind;

namespace {

static_assert(RegionView::kFirstIndexSlots == 4, "made small in CMakeLists.txt");

// A key whose slot is the `wanted`th of an index of 8. Of several, another one for each `number`.
std::uint64_t key_at(std::uint64_t wanted, unsigned number = 0) {
  for (std::uint64_t key = 1;; ++key)
    if ((mix(key) & 7) == wanted && number-- == 0) return key;
}

// A table, and what a peer does with it.
struct Table {
  Mapping area = Mapping::anonymous(RegionView::kAreaBytes);
  std::optional<RegionTable> owner;
  RegionView peer{area.data()};
  AccessSlot slot{};
  ContextRights rights{};
  std::uint64_t memory[2] = {};  // of the first region, and of one that comes later

  void reset() {
    constexpr std::size_t kIndices = 4 * (4 + 8 + 16), kEntries = 6;
    std::memset(area.data(), 0, 4096 + kIndices);
    std::memset(area.data() + RegionView::kEntriesOffset, 0, kEntries * sizeof(RegionEntry));
    owner.emplace(area.data());
    slot.active = 0;
    memory[0] = memory[1] = 1;
    model::watch(&memory, sizeof memory);
    model::watch(&peer.entry(0), kEntries * sizeof(RegionEntry));
    model::name(memory, "memory");
    model::name(slot.active, "active");
    model::name(area.data(), 8, "index in force");
    model::name(area.data() + 4096, 16, "index of 4");
    model::name(area.data() + 4096 + 16, 32, "index of 8");
    for (std::uint32_t i = 0; i < kEntries; ++i) {
      model::name(peer.entry(i).state, "state of entry " + std::to_string(i));
      model::name(peer.entry(i).key, "key of entry " + std::to_string(i));
      model::name(peer.entry(i), "entry " + std::to_string(i));
    }
  }
  std::uint32_t insert(std::uint64_t key, std::uint64_t& bytes) {
    const iovec buffer{&bytes, sizeof bytes};
    RegionRecord record;
    record.key = key;
    record.buffers = {&buffer, 1};
    record.access = access::kRemoteRead;
    return owner->insert(record);
  }
  void insert(std::uint64_t key) { insert(key, memory[1]); }
  void wait_unused(std::uint32_t index) {
    while (slot.active.load(std::memory_order_seq_cst) == index + 1) std::this_thread::yield();
  }
  void close(std::uint32_t index) {
    owner->start_close(index);
    wait_unused(index);
    owner->finish_close(index);
  }
  void close_key(std::uint64_t key) { close(static_cast<std::uint32_t>(owner->find(key))); }

  // Reads the memory of the region with `key`, as ShmPath::step() does; `state` is the region's in the access
  // before, or 0, and is that of this one afterwards. Nothing if the access is refused.
  std::optional<std::uint64_t> read(std::uint64_t key, std::uint64_t& state) {
    shm::Access access(slot);
    const std::int64_t index = peer.find(key);
    if (index < 0) return std::nullopt;
    access.show(static_cast<std::uint32_t>(index));
    const RegionEntry& entry = peer.entry(static_cast<std::uint32_t>(index));
    const std::uint64_t now = entry.state.load(std::memory_order_seq_cst);
    std::uint64_t offset = 0;
    const Requester requester{rights, 0};
    if (peer.judge(entry, {key, now, OpCode::read, 0, 8}, requester, offset) != Errc::ok) return std::nullopt;
    if (state != 0 && now != state) return std::nullopt;
    state = now;
    iovec piece;
    model::check(peer.pieces(entry, offset, 8, &piece) == 1, "the region has no byte");
    return *static_cast<const std::uint64_t*>(piece.iov_base);
  }
};
Table& table = *new Table;

// These live all the time.
const std::uint64_t kLives = key_at(3), kLivesToo = key_at(6);

void find_what_lives() {
  for (const std::uint64_t key : {kLives, kLivesToo}) {
    const std::int64_t found = table.peer.find(key);
    model::check(found >= 0, "a key that lives is not found");
    model::check(found < 0 || table.peer.entry(static_cast<std::uint32_t>(found)).key == key,
                 "another key is found");
  }
}

// Regions come and go whose keys lie where one that lives is sought; the index stays as it is.
model::Scenario others_come_and_go() {
  return {.setup =
              [] {
                table.reset();
                table.insert(key_at(3, 1));
                table.insert(kLivesToo);
                table.insert(kLives);  // makes the index larger, and comes to lie behind the first one
              },
          .threads = {[] {
                        table.close_key(key_at(3, 1));
                        table.insert(key_at(3, 2));
                        table.close_key(key_at(3, 2));
                        table.insert(key_at(7));
                        table.close_key(key_at(7));
                      },
                      find_what_lives},
          .finish = find_what_lives};
}

// The index is filled anew, in another place, and then in the first one.
model::Scenario index_changes() {
  return {.setup =
              [] {
                table.reset();
                table.insert(kLives);
                table.insert(kLivesToo);
              },
          .threads = {[] {
                        for (const std::uint64_t place : {2, 1}) {
                          table.insert(key_at(place));
                          table.close_key(key_at(place));  // leaves a slot that nobody uses
                        }
                        table.insert(key_at(0));
                      },
                      find_what_lives},
          .finish = find_what_lives};
}

// A region that a peer has not seen is found by whoever was told of it.
std::atomic<std::uint64_t> told{0};
model::Scenario told_of() {
  return {.setup =
              [] {
                table.reset();
                table.insert(kLives);
                table.insert(key_at(3, 1));
                told = 0;
                model::name(told, "told");
              },
          .threads = {[] {
                        table.insert(kLivesToo);  // makes the index larger
                        table.close_key(key_at(3, 1));
                        told.store(1, std::memory_order_release);
                      },
                      [] {
                        while (told.load(std::memory_order_acquire) == 0) std::this_thread::yield();
                        find_what_lives();
                        model::check(table.peer.find(key_at(3, 1)) < 0, "a key that is closed is found");
                      }},
          .finish = find_what_lives};
}

// What a peer reads in two accesses that belong together, as two slices of a transfer do.
void read_twice() {
  std::uint64_t state = 0;
  const auto first = table.read(kLives, state);
  const auto second = table.read(kLives, state);
  model::check(!first || !second || *first == *second, "an access goes on in another region");
}

// The region is closed, its memory is used for something else, and another one takes its entry, with its key
// or with another one.
model::Scenario replaced(std::uint64_t by_key) {
  return {.setup =
              [] {
                table.reset();
                table.insert(kLives, table.memory[0]);
              },
          .threads = {[by_key] {
                        table.close(0);
                        table.memory[0] = 99;
                        table.memory[1] = 2;
                        table.insert(by_key, table.memory[1]);
                      },
                      [by_key] {
                        if (by_key == kLives) return read_twice();
                        std::uint64_t state = 0;
                        model::check(table.read(kLives, state).value_or(1) == 1,
                                     "a key leads to another region");
                      }},
          .finish = {}};
}

// The region is disabled while its memory is changed.
model::Scenario disabled() {
  return {.setup =
              [] {
                table.reset();
                table.insert(kLives, table.memory[0]);
              },
          .threads = {[] {
                        table.owner->set_enabled(0, false);
                        table.wait_unused(0);
                        table.memory[0] = 2;
                        table.owner->set_enabled(0, true);
                      },
                      read_twice},
          .finish = {}};
}

}  // namespace

TEST_CASE("a search finds each key that lives, whatever is inserted and closed meanwhile") {
  model::holds("regions, others come and go", others_come_and_go(), {.preemptions = 100});
  model::holds("regions, the index changes", index_changes(), {.preemptions = 3});
  model::holds("regions, told of", told_of(), {.preemptions = 3});
}

TEST_CASE("no access reaches a region that is closed or disabled, or another one than it began with") {
  model::holds("regions, replaced", replaced(kLives), {.preemptions = 3});
  model::holds("regions, another key", replaced(kLivesToo), {.preemptions = 3});
  model::holds("regions, disabled", disabled(), {.preemptions = 5});
}

TEST_CASE("the orders of the region table are needed") {
  using enum std::memory_order;
  const auto weaker = [](Kind kind, std::memory_order order, const void* where, std::size_t size) {
    return std::vector{model::Weaker{kind, order, where, size}};
  };
  const auto* const index_in_force = table.area.data();
  const auto* const slots = index_in_force + 4096;
  const RegionEntry& entry = table.peer.entry(0);
  const char *const missed = "a key that lives is not found", *const raced = "data race";
  model::fails("slots are cleared", index_changes(), weaker(Kind::store, relaxed, slots, 16), missed);
  model::fails("slots are read", index_changes(), weaker(Kind::load, relaxed, slots, 16), missed);
  model::fails("the index is shown", index_changes(), weaker(Kind::store, relaxed, index_in_force, 8),
               missed);
  model::fails("the index is read", index_changes(), weaker(Kind::load, relaxed, index_in_force, 8), missed);
  for (const auto& scenario : {replaced(kLives), disabled()}) {
    model::fails("a state is stored", scenario, weaker(Kind::store, release, &entry.state, 8), raced);
    model::fails("a state is read", scenario, weaker(Kind::load, acquire, &entry.state, 8), raced);
    model::fails("an access is shown", scenario, weaker(Kind::update, acq_rel, &table.slot.active, 8), raced);
    model::fails("an access is looked for", scenario, weaker(Kind::load, acquire, &table.slot.active, 8),
                 raced);
    model::fails("an access ends", scenario, weaker(Kind::store, relaxed, &table.slot.active, 8), raced);
  }
}
