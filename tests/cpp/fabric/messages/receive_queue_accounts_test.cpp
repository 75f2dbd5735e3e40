#include <doctest/doctest.h>
#include <sys/mman.h>

#include <string>

#include "base/memory/fault_guard.h"
#include "message_peers.h"

using namespace fab;

// Buffers for many messages, and what completions, the queue and the links tell of messages.

TEST_CASE("one buffer for many messages") {
  AddressVector peers;
  Peer peer(peers, 0);
  CompletionQueue completions(8, CompletionQueue::WhenFull::forget_oldest);
  Posted many(tagged(7), 10, 3, &completions), next(tagged(7), 10, 0, &completions);
  ReceiveQueue queue;
  Origin origin(queue);
  origin.arrive(head(7, 3), peer, "abc");
  queue.post(many.receive);
  queue.post(next.receive);
  origin.arrive(head(7, 2), peer, "de");
  CHECK_FALSE(many.done());
  SUBCASE("it ends when less than asked for is left") {
    origin.arrive(head(7, 3), peer, "fgh");
    REQUIRE(many.done());
    CHECK(many.bytes == "abcdefgh..");
    CHECK(many.completion().length == 8);
    Completion entries[8];
    REQUIRE(completions.read(entries) == 4);
    for (int i = 0; i < 3; ++i) {
      constexpr std::uint64_t kOffsets[] = {0, 3, 5}, kLengths[] = {3, 2, 3};
      CHECK(entries[i].offset == kOffsets[i]);
      CHECK(entries[i].length == kLengths[i]);
      CHECK((entries[i].flags & completion_flag::kMore) != 0);
    }
    CHECK((entries[3].flags & completion_flag::kMultiReceive) != 0);
  }
  SUBCASE("or when the next message does not fit, which then goes on to the next receive whole") {
    origin.announce(head(7, 6), peer, 'z');
    REQUIRE(many.done());
    CHECK(many.completion().error == Errc::ok);
    CHECK(many.completion().length == 5);
    REQUIRE(next.done());
    CHECK(next.bytes == "zzzzzz....");
  }
  SUBCASE("canceled in between it keeps what came") {
    CHECK(queue.cancel(many.operation));
    CHECK(many.completion().error == Errc::canceled);
    CHECK(many.bytes == "abcde.....");
  }
}

TEST_CASE("memory in pieces for many messages") {
  AddressVector peers;
  Peer peer(peers, 0);
  Posted many(tagged(7), 10, 1);
  ReceiveQueue queue;
  Origin origin(queue);
  const iovec pieces[] = {{many.bytes.data() + 6, 4}, {many.bytes.data(), 6}};
  many.receive.pieces = pieces;
  many.receive.piece_count = 2;
  origin.arrive(head(7, 3), peer, "abc");
  queue.post(many.receive);
  origin.announce(head(7, 3), peer, 'x');
  origin.arrive(head(7, 2), peer, "de");
  CHECK(many.bytes == "xxde..abcx");
}

TEST_CASE("a buffer for many takes what waits already, up to its last byte") {
  AddressVector peers;
  Peer peer(peers, 0);
  for (const bool waiting : {true, false})
    for (const std::string last : {"", "hij", "hijk"}) {
      CAPTURE(waiting);
      CAPTURE(last);
      ReceiveQueue queue;
      Origin origin(queue);
      Posted many(tagged(7), 10, 3), next(tagged(7), 10);
      const auto post = [&] {
        queue.post(many.receive);
        queue.post(next.receive);
      };
      if (!waiting) post();
      origin.arrive(head(7, 4), peer, "abcd");
      origin.arrive(head(7, 3), peer, "efg");  // as much is left as was asked for
      if (!last.empty()) origin.arrive(head(7, last.size()), peer, last);
      if (waiting) post();
      CHECK(many.done() == !last.empty());
      CHECK(many.bytes == (last == "hij" ? "abcdefghij" : "abcdefg..."));
      CHECK(next.done() == (last == "hijk"));
      CHECK(next.bytes.substr(0, 4) == (last == "hijk" ? "hijk" : "...."));
      CHECK(queue.cancel(many.operation) == last.empty());
      CHECK(queue.cancel(next.operation) == (last != "hijk"));
      // What is posted now has nothing of those before.
      Posted another(tagged(7), 4);
      queue.post(another.receive);
      origin.arrive(head(7, 2), peer, "kl");
      CHECK(another.bytes == "kl..");
      CHECK(queue.sizes().posted == 0);
      CHECK(queue.sizes().unexpected == 0);
    }
}

TEST_CASE("a buffer for many that is used up takes nothing of what waits behind") {
  AddressVector peers;
  Peer peer(peers, 0);
  for (const std::string first : {"a", "abcdefg", "abcdefghi", "abcdefghijk"}) {
    CAPTURE(first);
    ReceiveQueue queue;
    Origin origin(queue);
    origin.arrive(head(7, first.size()), peer, first);
    origin.arrive(head(7, 10), peer, "0123456789");
    origin.arrive(head(7, 1), peer, "x");
    Posted many(tagged(7), 10, 3);
    queue.post(many.receive);
    REQUIRE(many.done());
    const std::string taken = first.substr(0, 10);
    CHECK(many.bytes == taken + std::string(10 - taken.size(), '.'));
    CHECK(many.completion().length == taken.size());
    CHECK(queue.sizes().unexpected == 2);
    CHECK(queue.sizes().posted == 0);
    CHECK(queue.peek(tagged(7))->head.length == 10);
  }
}

TEST_CASE("what a completion and the queue tell of messages") {
  AddressVector peers;
  Peer peer(peers, 0);
  ReceiveQueue queue;
  Origin origin(queue);
  Posted with_data(tagged(1)), plain(tagged(2)), later(tagged(3));
  queue.post(with_data.receive);
  queue.post(plain.receive);
  CHECK(queue.sizes().posted == 2);
  origin.arrive({.tag = 1, .length = 2, .data = 77, .tagged = true, .has_data = true}, peer, "ab");
  origin.arrive(head(2), peer, "cd");
  CHECK(with_data.completion().data == 77);
  CHECK((with_data.completion().flags & completion_flag::kRemoteData) != 0);
  CHECK((plain.completion().flags & completion_flag::kRemoteData) == 0);
  CHECK((plain.completion().flags & completion_flag::kMultiReceive) == 0);
  CHECK(plain.completion().overflow == 0);
  origin.arrive(head(3), peer, "ef");
  CHECK(queue.sizes().unexpected == 1);
  queue.post(later.receive);
  const ReceiveQueue::Sizes sizes = queue.sizes();
  CHECK(sizes.posted == 0);
  CHECK(sizes.unexpected == 0);
  CHECK(sizes.matched_posted == 2);
  CHECK(sizes.matched_unexpected == 1);
  CHECK(sizes.posted_lengths.longest == 2);
  CHECK(sizes.unexpected_lengths.longest == 1);
  origin.arrive(head(3), peer, "gh");
  Posted claimed({});
  REQUIRE(queue.receive_claimed(queue.claim(tagged(3)), claimed.receive));
  CHECK(queue.sizes().matched_unexpected == 2);
}

TEST_CASE("a completion has the flags of what happened and no others") {
  constexpr std::uint32_t kRecv = completion_flag::kMessage | completion_flag::kRecv;
  AddressVector peers;
  Peer peer(peers, 0);
  ReceiveQueue queue;
  Origin origin(queue);
  Posted plain(tagged(1)), canceled(tagged(2)), one_byte(tagged(3), 16, 1), whole(tagged(4), 16, 4);
  for (Posted* posted : {&plain, &canceled, &one_byte, &whole}) queue.post(posted->receive);
  origin.arrive(head(1), peer, "ab");
  CHECK(plain.completion().flags == kRecv);
  queue.cancel(canceled.operation);
  CHECK(canceled.completion().flags == kRecv);
  origin.arrive(head(3), peer, "ab");
  queue.cancel(one_byte.operation);
  CHECK(one_byte.completion().flags == (kRecv | completion_flag::kMultiReceive));
  origin.arrive(head(4, 13), peer, "0123456789abc");
  CHECK(whole.completion().flags == (kRecv | completion_flag::kMultiReceive));
}

TEST_CASE("a message for memory that is not there fails, and is gone") {
  AddressVector peers;
  Peer peer(peers, 0);
  ReceiveQueue queue;
  Origin origin(queue);
  arm_fault_guard();
  void* const page = ::mmap(nullptr, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  origin.arrive(head(7), peer, "ab");
  Posted posted(tagged(7));
  posted.receive.local = static_cast<std::byte*>(page);
  queue.post(posted.receive);
  REQUIRE(posted.done());
  CHECK(posted.completion().error == Errc::bounds);
  CHECK(posted.completion().length == 0);
  CHECK(origin.buffered == 0);
  ::munmap(page, 4096);
}

TEST_CASE("each link counts what waited, what waits and what met a receive") {
  AddressVector peers;
  LinkCounters counters;
  Peer peer(peers, 0, kNoAuthKey, &counters);
  ReceiveQueue queue;
  Origin origin(queue);
  for (const char* bytes : {"ab", "cd", "ef", "gh"}) origin.arrive(head(7), peer, bytes);
  CHECK(counters.waiting == 4);
  CHECK(counters.unexpected.entries == 4);
  CHECK(counters.unexpected.longest == 4);
  CHECK(counters.unexpected.sum == 10);
  CHECK(counters.receives == 0);
  Posted late(tagged(7)), claimed({}), early(tagged(7));
  queue.post(late.receive);
  CHECK(counters.waiting == 3);
  CHECK(counters.receives == 1);
  REQUIRE(queue.receive_claimed(queue.claim(tagged(7)), claimed.receive));
  CHECK(counters.waiting == 2);
  CHECK(counters.receives == 2);
  CHECK(queue.discard(tagged(7)));
  CHECK(queue.discard(tagged(7)));
  CHECK(counters.waiting == 0);
  CHECK(counters.receives == 2);
  queue.post(early.receive);
  origin.arrive(head(7), peer, "ij");
  CHECK(early.done());
  CHECK(counters.receives == 3);
  CHECK(counters.unexpected.entries == 4);
}

TEST_CASE("what came from an origin that ended may still be thrown away") {
  AddressVector peers;
  Peer peer(peers, 0);
  ReceiveQueue queue;
  {
    Origin origin(queue);
    origin.arrive(head(7), peer, "ab");
    origin.arrive(head(8), peer, "cd");
  }
  CHECK(queue.discard(tagged(7)));
  CHECK(queue.discard_claimed(queue.claim(tagged(8))));
  CHECK(queue.sizes().unexpected == 0);
}

TEST_CASE("what is held are the bytes that are here, with what tells of them") {
  constexpr std::uint64_t kLarge = 1 << 20;
  AddressVector peers;
  Peer peer(peers, 0);
  ReceiveQueue queue;
  Origin origin(queue);
  origin.announce(head(7, kLarge), peer, 1);  // its bytes are still with the sender
  const std::size_t announced = queue.held();
  CHECK(announced >= sizeof(Message));
  CHECK(announced < kLarge);
  auto in_pieces = std::make_unique<Message>();
  in_pieces->head = head(7, kLarge);
  in_pieces->sender = peer.sender;
  in_pieces->announced = true;
  in_pieces->comes_from(&origin);
  in_pieces->where.resize(1000);
  queue.keep(std::move(in_pieces));
  CHECK(queue.held() >= 2 * announced + 1000 * sizeof(iovec));
  CHECK(queue.held() < kLarge);
  const std::size_t before = queue.held();
  origin.arrive(head(8, 500), peer, std::string(500, 'x'));
  CHECK(queue.held() == before + announced + 500);
}

TEST_CASE("of what strangers left, the messages of those who have become known meanwhile stay") {
  AddressVector peers;
  Peer known(peers, 1), first(peers, 2), second(peers, 3);
  ReceiveQueue queue;
  {
    Origin origin(queue);
    origin.arrive(head(7), known, "ab");
    origin.arrive(head(8), first, "cd");
    origin.arrive(head(9), second, "ef");
  }
  const std::size_t each = queue.held() / 3;
  peers.insert(known.name());
  queue.drop_stranded(2 * each);
  CHECK(queue.peek(tagged(7)));
  CHECK(!queue.peek(tagged(8)));
  CHECK(queue.peek(tagged(9)));
  Posted posted(tagged(7));
  queue.post(posted.receive);  // the others that strangers left are still known as such
  CHECK(posted.bytes.substr(0, 2) == "ab");
  queue.drop_stranded(0);
  CHECK(queue.held() == 0);
}
