// Lack of memory under everything that two tcp endpoints do with each other: nothing ends the process, hangs
// or leaks; every operation that was taken has one outcome; and what comes later works.
#include <doctest/doctest.h>
#include <sys/resource.h>

#include <array>
#include <cstring>
#include <filesystem>
#include <new>
#include <optional>

#include "fabric/messages/receive_queue.h"
#include "failing_memory.h"
#include "providers/tcp/harness.h"

namespace fab {
namespace {

using test::Call;
using test::FailingMemory;
using test::Node;

constexpr std::size_t kSize = 200'000;

DomainOptions manual(std::string key = {}) {
  DomainOptions options;
  options.manual_progress = true;  // so that all of it is this thread's
  options.auth_key = std::move(key);
  return options;
}

// Two endpoints, driven by this thread.
struct Two {
  explicit Two(const std::string& key = {}) : a(manual(key), kSize), b(manual(key), kSize) {
    to_b = a.peers->insert(b.name());
    to_a = b.peers->insert(a.name());
    a.context->bind(events_of_a);
    b.context->bind(events_of_b);
  }
  void turn() {
    a.context->progress();
    b.context->progress();
  }
  template <class Done>
  bool drive(Done done) {
    const auto deadline = Deadline::in_seconds(20);
    while (!done()) {
      if (deadline.passed()) return false;
      turn();
    }
    return true;
  }
  Node a, b;
  PeerId to_b, to_a;
  std::shared_ptr<EventQueue> events_of_a = a.core->open_event_queue(),
                              events_of_b = b.core->open_event_queue();
};

bool of_shortage(Errc error) {
  // Who finds its connection closed does not know why.
  return error == Errc::no_memory || error == Errc::peer_lost || error == Errc::unreachable;
}

// What the operations of a program came to.
struct Outcomes {
  unsigned refused = 0, failed = 0, done = 0;
};

// Runs `call`, in a scope in which memory may lack, to its end.
void run(Two& two, FailingMemory& memory, Call& call, Outcomes& outcomes) {
  bool taken = false;
  {
    const FailingMemory::Scope scope(memory);
    const auto deadline = Deadline::in_seconds(20);
    try {
      while (!taken && !deadline.passed()) {
        taken = two.a.context->post(two.to_b, {&call.transfer, 1}) == 1;
        if (!taken) two.turn();
      }
    } catch (const std::exception& error) {
      CHECK(shortage_or(error, Errc::ok) == Errc::no_memory);
      CHECK_FALSE(call.operation.done());
      ++outcomes.refused;
      return;
    }
    REQUIRE(taken);
    REQUIRE(two.drive([&] { return call.operation.done(); }));
  }
  const Errc error = call.operation.completion().error;
  if (error != Errc::ok) CHECK_MESSAGE(of_shortage(error), describe(error));
  ++(error == Errc::ok ? outcomes.done : outcomes.failed);
}

std::size_t descriptors() {
  std::size_t count = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) ++count;
  return count;
}

// A put, a get and an update, and then the same once more with memory.
// Returns how many losses named the lack of memory.
unsigned puts_gets_and_updates(FailingMemory& memory, const std::string& key) {
  Two two(key);
  std::vector<std::byte> data(kSize, std::byte{7}), back(kSize);
  std::uint64_t one = 1, before = 99;
  const auto calls = [&](FailingMemory& lacking) {
    Outcomes outcomes;
    Call put(OpCode::write, two.b.region->key(), 8, data.data(), kSize - 8);
    run(two, lacking, put, outcomes);
    Call get(OpCode::read, two.b.region->key(), 8, back.data(), kSize - 8);
    run(two, lacking, get, outcomes);
    Call add(OpCode::fetch_atomic, two.b.region->key(), 0, &one, 8);
    add.transfer.result = reinterpret_cast<std::byte*>(&before);
    run(two, lacking, add, outcomes);
    return outcomes;
  };
  calls(memory);
  std::memset(back.data(), 0, back.size());
  FailingMemory plenty(0);
  Outcomes later;
  // A connection that ended meanwhile may be noticed only now: by one operation.
  for (int tries = 0; later.done < 3 && tries < 3; ++tries) later = calls(plenty);
  CHECK(later.done == 3);
  CHECK(std::memcmp(back.data(), data.data(), kSize - 8) == 0);
  unsigned told = 0;
  for (EventQueue* const events : {two.events_of_a.get(), two.events_of_b.get()})
    while (const auto event = events->read()) {
      CHECK(event->type == EventType::peer_lost);
      CHECK(event->link() == "tcp.0");
      CHECK(of_shortage(event->error));
      if (event->error != Errc::no_memory) continue;
      CHECK(event->text.find("memory") != std::string::npos);
      ++told;
    }
  return told;
}

TEST_CASE("puts, gets and updates over a connection that has yet to be made") {
  const std::size_t open = descriptors();
  for (const char* const key : {"", "secret"})
    for (const auto lack : {FailingMemory::Lack::once, FailingMemory::Lack::lasting}) {
      unsigned told = 0;
      const std::uint64_t made =
          test::with_each_failing([&](FailingMemory& memory) { told += puts_gets_and_updates(memory, key); },
                                  FailingMemory::Of::thread, lack);
      CHECK(made > 20);
      CHECK(told > 0);
    }
  CHECK(descriptors() == open);
}

TEST_CASE("connections that are made, crossing ones as well") {
  const std::size_t open = descriptors();
  for (const char* const key : {"", "secret"})
    for (const bool crossing : {false, true}) {
      const std::uint64_t made = test::with_each_failing([&](FailingMemory& memory) {
        Two two(key);
        std::uint64_t value = 5;
        Call first(OpCode::write, two.b.region->key(), 0, &value, 8);
        Call second(OpCode::write, two.a.region->key(), 0, &value, 8);
        bool taken = false;
        {
          const FailingMemory::Scope scope(memory);
          try {
            two.a.context->report(two.to_b);  // opens the path
            if (crossing) two.b.context->report(two.to_a);
          } catch (const std::exception& error) {
            CHECK(shortage_or(error, Errc::ok) == Errc::no_memory);
          }
          {
            const FailingMemory::Spared spared;
            taken = two.a.context->post(two.to_b, {&first.transfer, 1}) == 1;
            if (crossing) two.b.context->post(two.to_a, {&second.transfer, 1});
          }
          REQUIRE(
              two.drive([&] { return first.operation.done() && (!crossing || second.operation.done()); }));
        }
        REQUIRE(taken);
        const Errc outcome = first.operation.completion().error;
        CHECK_MESSAGE((outcome == Errc::ok || of_shortage(outcome)), describe(outcome));
        for (int tries = 0; tries < 3; ++tries) {
          Call again(OpCode::write, two.b.region->key(), 0, &value, 8);
          two.a.context->post(two.to_b, {&again.transfer, 1});
          REQUIRE(two.drive([&] { return again.operation.done(); }));
          if (again.operation.completion().error == Errc::ok) break;
          CHECK(tries < 2);
        }
      });
      CHECK(made > 20);
    }
  CHECK(descriptors() == open);
}

// A message on its way from `a` to `b`.
struct Mail {
  explicit Mail(std::size_t size)
      : sent(size, std::byte{9}), got(size), send(OpCode::send, 0, 0, sent.data(), size) {
    taken.begin({});
    receive.operation = &taken;
    receive.local = got.data();
    receive.length = size;
  }
  std::vector<std::byte> sent, got;
  Call send;
  Operation taken;
  Receive receive{};
  bool posted = false, expected = false;
};

TEST_CASE("messages, and closing while some are under way") {
  const std::size_t open = descriptors();
  for (const bool early : {true, false}) {
    const std::uint64_t made = test::with_each_failing([&](FailingMemory& memory) {
      Two two;
      std::vector<std::unique_ptr<Mail>> mails;
      for (const std::size_t size : {0, 100, 9000, 90'000}) mails.push_back(std::make_unique<Mail>(size));
      {
        const FailingMemory::Scope scope(memory);
        const auto expect = [&] {
          for (const auto& mail : mails) try {
              two.b.context->inbox().receive(mail->receive);
              mail->expected = true;
            } catch (const std::bad_alloc&) {
              mail->taken.withdraw();
            }
        };
        if (early) expect();
        for (const auto& mail : mails) try {
            const auto deadline = Deadline::in_seconds(20);
            while (!(mail->posted = two.a.context->post(two.to_b, {&mail->send.transfer, 1}) == 1)) {
              REQUIRE_FALSE(deadline.passed());
              two.turn();
            }
          } catch (const std::exception& error) {
            CHECK(shortage_or(error, Errc::ok) == Errc::no_memory);
            mail->send.operation.withdraw();
          }
        for (int turns = 0; !early && turns < 20; ++turns) two.turn();
        if (!early) expect();
        const auto settled = [&] {
          for (const auto& mail : mails)
            if (mail->posted && !mail->send.operation.done()) return false;
          return true;
        };
        const auto patience = Deadline::in_seconds(early ? 1 : 5);
        while (!settled() && !patience.passed()) two.turn();  // who is not received may wait
        two.b.core->contexts().close(*two.b.context);
        two.a.core->contexts().close(*two.a.context);
      }
      for (const auto& mail : mails) {
        if (mail->posted) REQUIRE(mail->send.operation.done());
        if (mail->expected) REQUIRE(mail->taken.done());
        if (mail->expected && mail->taken.completion().error == Errc::ok && mail->taken.completion().length)
          CHECK(mail->got.front() == std::byte{9});
        if (!memory.failed()) CHECK(mail->send.operation.completion().error == Errc::ok);
      }
    });
    CHECK(made > 20);
  }
  CHECK(descriptors() == open);
}

}  // namespace
}  // namespace fab
