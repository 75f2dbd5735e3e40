#include "providers/shm/eager_ring.h"

#include <doctest/doctest.h>
#include <sys/mman.h>

#include <algorithm>
#include <deque>
#include <memory>
#include <random>
#include <span>
#include <vector>

#include "fabric/types/peer_id.h"
#include "providers/shm/harness.h"

using namespace fab;
using namespace fab::shm;

namespace {

// Both ends of a channel's messages, in memory of this process.
struct Ends {
  std::unique_ptr<EagerIndices> indices = std::make_unique<EagerIndices>();
  std::unique_ptr<EagerCell[]> cells = std::make_unique<EagerCell[]>(kCells);
  std::unique_ptr<std::byte[]> payloads = std::make_unique<std::byte[]>(kPayloadBytes);
  const EagerMemory memory{*indices, cells.get(), payloads.get()};
  EagerWriter writer{memory};
  EagerReader reader{memory};

  bool push(const std::vector<std::byte>& bytes, std::uint64_t tag = 7) {
    Transfer transfer{};
    transfer.local = const_cast<std::byte*>(bytes.data());
    transfer.length = bytes.size();
    transfer.key = tag;
    transfer.flags = transfer_flag::kTagged;
    return writer.push(transfer);
  }
};

std::vector<std::byte> pattern(std::size_t length, std::uint64_t seed) {
  std::vector<std::byte> bytes(length);
  for (std::size_t i = 0; i < length; ++i) bytes[i] = static_cast<std::byte>(seed * 31 + i);
  return bytes;
}

// A message to receive, and the memory for it.
struct Landing {
  explicit Landing(std::size_t size) : memory(size) {}
  void post(Context& context, std::byte* to, std::uint64_t tag) {
    operation.begin({});
    Receive receive;
    receive.operation = &operation;
    receive.local = to;
    receive.length = memory.size();
    receive.rule = {.tag = tag, .tagged = true};
    context.inbox().receive(receive);
  }
  Errc outcome(Context& context) {
    REQUIRE(context.wait([&] { return operation.done(); }, Deadline::in_seconds(30)));
    return operation.completion().error;
  }
  std::vector<std::byte> memory;
  Operation operation;
};

Transfer message(const void* from, std::size_t length, std::uint64_t tag) {
  Transfer made =
      fab::test::Side::transfer(OpCode::send, tag, 0, const_cast<void*>(from), length, Delivery::transmit);
  made.flags = transfer_flag::kTagged;
  return made;
}

}  // namespace

TEST_CASE("messages of all lengths come out as they went in, however full it is") {
  Ends ends;
  std::mt19937_64 random(3);
  std::deque<std::vector<std::byte>> sent;
  std::uint64_t pushed = 0, taken = 0;
  while (taken < 20'000) {
    const std::size_t length = random() % 4 ? random() % 200 : random() % (kLargestMessage + 1);
    auto bytes = pattern(length, pushed);
    if (random() % 5 < 3 && ends.push(bytes, pushed)) {
      sent.push_back(std::move(bytes));
      ++pushed;
      continue;
    }
    for (std::uint64_t most = random() % 300; most && ends.reader.ready(); --most, ++taken) {
      MessageHead head;
      const std::byte* const at = ends.reader.look(head);
      REQUIRE(at != nullptr);
      REQUIRE(head.tag == taken);
      REQUIRE(head.length == sent.front().size());
      REQUIRE(std::ranges::equal(std::span(at, head.length), sent.front()));
      sent.pop_front();
      ends.reader.skip();
    }
    ends.reader.tell_taken();
  }
  while (ends.push({})) {
  }
  CHECK_FALSE(ends.push(pattern(1, 1)));
  CHECK_FALSE(ends.writer.all_taken());
}

TEST_CASE("what is too long goes another way, and takes its number with it") {
  Ends ends;
  REQUIRE(ends.push(pattern(kLargestMessage, 1)));
  CHECK_FALSE(ends.push(pattern(kLargestMessage + 1, 1)));
  CHECK(ends.writer.skip() == 1);
  REQUIRE(ends.push(pattern(1, 2)));
  ends.reader.skip();
  CHECK_FALSE(ends.reader.ready());
  ends.reader.skip();
  CHECK(ends.reader.ready());
}

TEST_CASE("nonsense of the other side is seen") {
  Ends ends;
  MessageHead head;
  SUBCASE("a cell") {
    REQUIRE(ends.push(pattern(kLargestMessage, 1)));
    EagerCell& cell = ends.cells[0];
    REQUIRE(ends.reader.look(head) != nullptr);
    SUBCASE("bytes outside of the memory") { cell.offset = kPayloadBytes - kLargestMessage + 1; }
    SUBCASE("far outside") { cell.offset = ~0u; }
    SUBCASE("too many bytes") { cell.length = kLargestMessage + 1; }
    SUBCASE("unknown flags") { cell.flags = 0xff; }
    SUBCASE("no group") { cell.group = static_cast<std::uint32_t>(kMaxGroupId) + 1; }
    CHECK(ends.reader.look(head) == nullptr);
  }
  SUBCASE("messages taken that were never sent") {
    while (ends.push(pattern(kLargestMessage, 1))) {
    }
    for (const std::uint32_t taken : {1000u, ~0u}) {
      ends.indices->taken.store(taken);
      CHECK_FALSE(ends.push(pattern(kLargestMessage, 1)));
    }
    ends.indices->taken.store(1);
    CHECK(ends.push(pattern(kLargestMessage, 1)));
  }
}

TEST_CASE("one message of many that are read together has no memory: only that one fails") {
  constexpr std::size_t kLength = 64 * 1024;
  constexpr std::uint64_t kCount = 12, kBad = 5;
  fab::test::Side sender, receiver;
  const PeerId peer = sender.knows(receiver);
  auto* const nothing =
      static_cast<std::byte*>(::mmap(nullptr, kLength, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  bool at_sender = false;
  SUBCASE("at the receiver") {}
  SUBCASE("at the sender") { at_sender = true; }
  std::deque<Landing> landings;
  std::vector<std::vector<std::byte>> contents;
  for (std::uint64_t i = 0; i < kCount; ++i) {
    Landing& landing = landings.emplace_back(kLength);
    landing.post(*receiver.context, i == kBad && !at_sender ? nothing : landing.memory.data(), i);
    contents.push_back(pattern(kLength, i));
  }
  std::vector<Transfer> batch;
  for (std::uint64_t i = 0; i < kCount; ++i)
    batch.push_back(message(i == kBad && at_sender ? nothing : contents[i].data(), kLength, i));
  const Completion told = sender.run(peer, batch);
  CHECK(told.error == Errc::bounds);
  CHECK(told.length == (kCount - 1) * kLength);
  for (std::uint64_t i = 0; i < kCount; ++i) {
    CHECK(landings[i].outcome(*receiver.context) == (i == kBad ? Errc::bounds : Errc::ok));
    if (i != kBad) CHECK(landings[i].memory == contents[i]);
  }
  ::munmap(nothing, kLength);
}
