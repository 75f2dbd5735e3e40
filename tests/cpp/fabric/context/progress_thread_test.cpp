#include "fabric/context/progress_thread.h"

#include <doctest/doctest.h>
#include <sys/syscall.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <thread>

#include "providers/shm/processes.h"

using namespace fab;
using namespace fab::test;

namespace {

// An operation whose end the progress thread tells by a notice.
struct Noticed : Operation {
  explicit Noticed(Driver& notified) : driver(notified) {
    begin({.hook = [](Operation& done) noexcept { static_cast<Noticed&>(done).driver.request_callbacks(); }});
  }
  Driver& driver;
};

// Puts into the domain's own memory through the ring, which its thread serves, and runs `on_callbacks` there.
// Returns when that has set `ran`: the operation is done before its hook has run, which still needs it.
void put_and_notice(Side& side, const std::atomic<bool>& ran, std::function<void()> on_callbacks) {
  side.context->driver().on_callbacks = std::move(on_callbacks);
  const PeerId self = side.knows(side);
  auto memory = side.own(64);
  std::uint64_t word = 7;
  Noticed put(side.context->driver());
  Transfer transfer = Side::transfer(OpCode::write, memory.region->key(), 0, &word, sizeof word);
  transfer.operation = &put;
  while (side.context->post(self, {&transfer, 1}) == 0) std::this_thread::yield();
  while (!ran) std::this_thread::yield();
}

}  // namespace

TEST_CASE("a callback of its thread closes a domain, though no thread can be started") {
  Child child([](const Child::Report& report) {
    std::weak_ptr<DomainCore> rest;
    std::atomic<bool> closed{false};
    {
      auto side = std::make_unique<Side>("ring");
      rest = side->domain;
      const auto main = std::this_thread::get_id();
      bool by_thread = false;
      if (!refuse_calls({SYS_clone, SYS_clone3}, EAGAIN)) return report("skip");
      put_and_notice(*side, closed, [&, domain = std::weak_ptr(side->domain)] {
        by_thread = std::this_thread::get_id() != main;
        domain.lock()->close(true);
        closed = true;
      });
      if (!by_thread) return report("main");
    }
    while (!rest.expired()) std::this_thread::yield();  // the thread has let go of it
    report("gone");
  });
  const std::string said = child.hear(4);
  if (said == "skip") {
    MESSAGE("skipped: this machine allows no filters of system calls");
    return;
  }
  CHECK(said == "gone");
}
