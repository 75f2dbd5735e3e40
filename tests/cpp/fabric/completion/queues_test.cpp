#include <doctest/doctest.h>
#include <poll.h>
#include <unistd.h>

#include <array>
#include <fstream>
#include <thread>

#include "fabric/address_vector/address_vector.h"
#include "fabric/completion/completion_queue.h"
#include "fabric/completion/event_queue.h"
#include "fabric/completion/operation.h"

namespace fab {
namespace {

Completion numbered(std::uint64_t context) {
  Completion completion;
  completion.context = context;
  return completion;
}

TEST_CASE("a queue of the user's size refuses, and tells of entries that peers lost") {
  CompletionQueue queue(2, CompletionQueue::WhenFull::refuse);
  CHECK(queue.reserve());
  CHECK(queue.reserve());
  CHECK_FALSE(queue.reserve());
  queue.push(numbered(1));
  queue.push_remote(numbered(9));  // the second place is promised
  queue.push(numbered(2));
  std::array<Completion, 4> out;
  CHECK_THROWS_AS(queue.read(out), Error);
  REQUIRE(queue.read(out) == 2);
  CHECK(out[0].context == 1);
  CHECK(out[1].context == 2);
  CHECK(queue.reserve());
}

#ifndef __SANITIZE_THREAD__  // whose calloc() writes to all that it returns
TEST_CASE("room that is not used costs no memory") {
  const auto resident = [] {
    std::ifstream told("/proc/self/statm");
    std::size_t all = 0, pages = 0;
    told >> all >> pages;
    return pages * static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  };
  const std::size_t before = resident();
  const CompletionQueue queue(1 << 22, CompletionQueue::WhenFull::refuse);  // 256 MiB
  CHECK(queue.size() == 1 << 22);
  CHECK(resident() < before + (32 << 20));
}
#endif

TEST_CASE("an endpoint's own queue keeps the latest entries") {
  CompletionQueue queue(3, CompletionQueue::WhenFull::forget_oldest);
  for (std::uint64_t i = 0; i < 10; ++i) {
    CHECK(queue.reserve());
    queue.push(numbered(i));
  }
  std::array<Completion, 4> out;
  REQUIRE(queue.read(out) == 3);
  CHECK(out[0].context == 7);
  CHECK(queue.empty());
}

TEST_CASE("the descriptor is readable exactly while there are entries") {
  CompletionQueue queue(4, CompletionQueue::WhenFull::refuse);
  const int fd = queue.event_fd();
  const auto readable = [&] {
    pollfd poll{.fd = fd, .events = POLLIN, .revents = 0};
    return ::poll(&poll, 1, 0) == 1;
  };
  CHECK_FALSE(readable());
  queue.push_remote(numbered(1));
  queue.push_remote(numbered(2));
  CHECK(readable());
  std::array<Completion, 1> out;
  queue.read(out);
  CHECK(readable());
  queue.read(out);
  CHECK_FALSE(readable());
}

TEST_CASE("an operation settles once, with its first error and the bytes that moved") {
  CompletionQueue queue(4, CompletionQueue::WhenFull::refuse);
  Operation operation;
  CHECK(queue.reserve());
  operation.begin({.transfers = 3, .context = 5, .queue = &queue});
  operation.settle(Errc::ok, 10);
  operation.settle(Errc::bounds, 20);
  CHECK_FALSE(operation.done());
  operation.settle(Errc::access, 30);
  CHECK(operation.done());
  CHECK(operation.completion().error == Errc::bounds);
  CHECK(operation.completion().length == 10);
  std::array<Completion, 4> out;
  REQUIRE(queue.read(out) == 1);
  CHECK(out[0].context == 5);
}

std::string name_of(int number) { return Name{{{"tcp.0", 0, std::to_string(number)}}}.encode(); }

TEST_CASE("handles take the lowest free index, and a reused one is another generation") {
  AddressVector vector;
  for (int i = 0; i < 5; ++i) CHECK(vector.insert(name_of(i)) == static_cast<PeerId>(i));
  const auto generation = vector.generation(1);
  vector.remove(3);
  vector.remove(1);
  CHECK_THROWS_AS(vector.remove(1), Error);
  CHECK_THROWS_AS(vector.lookup(1), Error);
  CHECK(vector.insert(name_of(10)) == 1);
  CHECK(vector.insert(name_of(11)) == 3);
  CHECK(vector.insert(name_of(12)) == 5);
  CHECK(vector.generation(1) != generation);
  CHECK(vector.find({"tcp.0", 0, "11"}) == 3);
  CHECK(vector.find({"tcp.0", 0, "1"}) == kNoPeer);
  CHECK(vector.generation(1u << 30) == 0);
  CHECK(vector.generation(kNoPeer) == 0);
  CHECK_THROWS_AS(vector.insert("nonsense"), Error);
}

TEST_CASE("insertion from several threads gives distinct handles") {
  AddressVector vector;
  std::vector<std::thread> threads;
  std::vector<std::vector<PeerId>> handles(4);
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&, t] {
      for (int i = 0; i < 500; ++i) {
        handles[static_cast<std::size_t>(t)].push_back(vector.insert(name_of(t * 1000 + i)));
        vector.generation(static_cast<PeerId>(i));
      }
    });
  for (auto& thread : threads) thread.join();
  std::vector<bool> seen(2000);
  for (int t = 0; t < 4; ++t)
    for (int i = 0; i < 500; ++i) {
      const PeerId peer = handles[static_cast<std::size_t>(t)][static_cast<std::size_t>(i)];
      REQUIRE(peer < 2000);
      CHECK_FALSE(seen[peer]);
      seen[peer] = true;
      CHECK(vector.lookup(peer) == name_of(t * 1000 + i));
    }
}

TEST_CASE("events come in the order in which they were told, losses with the words of their error") {
  EventQueue queue;
  CHECK(queue.empty());
  CHECK_FALSE(queue.read());
  queue.tell_lost({.type = EventType::link_lost, .error = Errc::no_memory, .peer = 7, .link = "tcp.1"});
  queue.push({.type = EventType::inserted, .data = 3});
  queue.push({.type = EventType::inserted, .error = Errc::invalid, .text = "too short"});
  queue.tell_lost({.peer = 8});
  CHECK_FALSE(queue.empty());
  const auto link = queue.read();
  REQUIRE(link);
  CHECK(link->type == EventType::link_lost);
  CHECK(link->peer == 7);
  CHECK(link->link() == "tcp.1");
  CHECK(link->text == describe(Errc::no_memory));
  CHECK(queue.read()->data == 3);
  CHECK(queue.read()->text == "too short");
  const auto peer = queue.read();
  CHECK(peer->type == EventType::peer_lost);
  CHECK(peer->error == Errc::peer_lost);
  CHECK(peer->link().empty());
  CHECK(queue.empty());
}

TEST_CASE("losses without room are counted and told once; there is room again for each that was read") {
  EventQueue queue(2);
  for (PeerId peer = 0; peer < 5; ++peer) queue.tell_lost({.peer = peer, .link = std::string(100, 'x')});
  queue.push({.type = EventType::registered, .data = 9});
  CHECK_THROWS_WITH_AS(queue.read(), doctest::Contains("3 more"), Error);
  CHECK(queue.read()->peer == 0);
  queue.tell_lost({.peer = 5});
  CHECK(queue.read()->peer == 1);
  CHECK(queue.read()->data == 9);
  CHECK(queue.read()->peer == 5);
  CHECK_FALSE(queue.read());
  for (const std::int64_t size : {std::int64_t{0}, std::int64_t{-1}, EventQueue::kMostLosses + 1, INT64_MIN})
    CHECK_THROWS_AS(EventQueue{size}, Error);
}

}  // namespace
}  // namespace fab
