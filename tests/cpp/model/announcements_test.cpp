// Announced messages over shared memory (providers/shm/announcements.h): the initiator takes one back while
// the target takes it.

#include "providers/shm/announcements.h"

#include <doctest/doctest.h>

#include <memory>
#include <optional>
#include <thread>

#include "model/model.h"

using namespace fab;
using fab::shm::AnnouncementCells;
using fab::shm::Announcements;
using model::Kind;

namespace {

const std::unique_ptr<AnnouncementCells> cells = std::make_unique<AnnouncementCells>();

struct Sides {
  std::optional<Announcements> initiator, target;
  std::uint64_t number = 0;                         // of the message
  std::uint64_t message = 0;                        // its bytes, in the initiator's memory
  std::atomic<std::uint64_t> told{0}, released{0};  // the frames of both
  bool taken = false, revoked = false;

  void reset() {
    initiator.emplace(*cells);
    target.emplace(*cells);
    number = initiator->open();
    for (auto& cell : cells->taken) cell.store(0, std::memory_order_relaxed);
    message = 1;
    told = number;
    released = 0;
    taken = revoked = false;
    model::watch(&message, sizeof message);
    model::name(message, "message");
    model::name(cells->taken[number % kMaxOutstanding], "cell");
    model::name(told, "told");
    model::name(released, "released");
  }

  // As Messenger does it: bytes are read, and mean something if the message is taken.
  bool take(std::uint64_t which, std::uint64_t expected) {
    if (!target->stands(which)) {
      model::check(!target->take(which), "a message that was taken back is taken");
      return false;
    }
    const std::uint64_t bytes = message;
    if (!target->take(which)) return false;
    model::check(bytes == expected, "the bytes of another message are taken");
    return true;
  }
  // The initiator gives up. What the target has taken is done, so that its memory is used for something else;
  // the target may still read the rest, to no purpose, so a scenario leaves it alone.
  void give_up(std::uint64_t which) {
    revoked = initiator->revoke(which);
    if (!revoked) message = 99;
  }
} sides;

void check_one() {
  model::check(sides.taken || sides.revoked, "nobody was first");
  model::check(!sides.taken || !sides.revoked, "both were first");
}

model::Scenario at_once() {
  return {.setup = [] { sides.reset(); },
          .threads = {[] { sides.give_up(sides.number); }, [] { sides.taken = sides.take(sides.number, 1); }},
          .finish = check_one};
}

// The message is taken and released. Then there is another one in the same cell.
model::Scenario again() {
  return {.setup = [] { sides.reset(); },
          .threads = {[] {
                        while (sides.released.load(std::memory_order_acquire) == 0) std::this_thread::yield();
                        sides.initiator->end(sides.number);
                        std::uint64_t next = sides.initiator->open();
                        for (; next % kMaxOutstanding != sides.number % kMaxOutstanding;
                             next = sides.initiator->open())
                          sides.initiator->end(next);
                        sides.message = 2;
                        sides.told.store(next, std::memory_order_release);
                        sides.give_up(next);
                      },
                      [] {
                        model::check(sides.take(sides.number, 1),
                                     "a message that nobody takes back is refused");
                        sides.released.store(1, std::memory_order_release);
                        std::uint64_t next;
                        while ((next = sides.told.load(std::memory_order_acquire)) == sides.number)
                          std::this_thread::yield();
                        sides.taken = sides.take(next, 2);
                      }},
          .finish = check_one};
}

}  // namespace

TEST_CASE("an announced message is taken or taken back, and never both") {
  model::holds("announced message", at_once(), {.preemptions = 100});
}

TEST_CASE("a later message in the same cell is not taken for the former one") {
  model::holds("announced message, again", again(), {.preemptions = 100});
}

TEST_CASE("the orders of announced messages are needed") {
  const auto weaker = [](unsigned thread) {
    return model::Weaker{Kind::update, std::memory_order_relaxed, cells.get(), sizeof *cells, thread};
  };
  model::fails("a message is taken back", at_once(), {weaker(0)}, "data race: message");
  model::fails("a message is taken", at_once(), {weaker(1)}, "data race: message");
}
