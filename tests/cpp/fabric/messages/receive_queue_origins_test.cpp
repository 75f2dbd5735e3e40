#include <doctest/doctest.h>

#include <memory>
#include <string>
#include <vector>

#include "message_peers.h"

using namespace fab;

TEST_CASE("another origin goes on with what was announced, but for what means nothing to it") {
  AddressVector peers;
  Peer peer(peers, 0);
  ReceiveQueue queue;
  Origin heir(queue), third(queue);
  {
    Origin origin(queue);
    for (const std::uint64_t id : {std::uint64_t{1}, 2 | kStreamOnly, std::uint64_t{3}, std::uint64_t{4}})
      origin.announce(head(7, 1), peer, id);
    ReceiveQueue::adopt(heir, 3, third);  // not its own
    ReceiveQueue::adopt(origin, 4, third);
    queue.leave(origin, &heir);
  }
  CHECK(queue.sizes().unexpected == 3);
  Posted posted[] = {Posted(tagged(7), 1), Posted(tagged(7), 1), Posted(tagged(7), 1)};
  for (Posted& one : posted) {
    queue.post(one.receive);
    CHECK(one.done());
  }
  CHECK(heir.released == std::vector<std::uint64_t>{1, 3});
  CHECK(third.released == std::vector<std::uint64_t>{4});
}

TEST_CASE("an origin that leaves takes along what it announced, waiting or claimed, and nothing of others") {
  AddressVector peers;
  Peer peer(peers, 0);
  ReceiveQueue queue;
  Origin other(queue);
  other.announce(head(7, 1), peer, 1);
  {
    Origin origin(queue);
    origin.announce(head(8, 1), peer, 2);
    origin.announce(head(9, 1), peer, 3);
    origin.arrive(head(9, 1), peer, "x");
    CHECK(queue.claim(tagged(8)) == 1);
  }
  CHECK_FALSE(queue.discard_claimed(1));
  CHECK(queue.sizes().unexpected == 2);
  Posted there(tagged(9), 1), others(tagged(7), 1);
  queue.post(there.receive);
  queue.post(others.receive);
  CHECK(there.bytes == "x");
  CHECK(other.released == std::vector<std::uint64_t>{1});
  CHECK(queue.sizes().unexpected == 0);
}

TEST_CASE("an origin may end while it is told of a message") {
  struct Ends final : MessageOrigin {
    explicit Ends(ReceiveQueue& queue) : queue_(queue) {}
    void fetch(const Message&, const Matched& matched) noexcept override {
      queue_.leave(*this);
      ReceiveQueue::finish(matched, Errc::peer_lost);
    }
    void release(const Message&) noexcept override { queue_.leave(*this); }
    void consumed(std::uint64_t) noexcept override { queue_.leave(*this); }
    ReceiveQueue& queue_;
  };
  AddressVector peers;
  Peer peer(peers, 0);
  ReceiveQueue queue;
  Ends origin(queue);
  for (const bool announced : {true, false})
    for (const bool claimed : {true, false})
      for (const bool wanted : {true, false}) {
        CAPTURE(announced);
        CAPTURE(claimed);
        CAPTURE(wanted);
        auto message = std::make_unique<Message>();
        message->head = head(7, 1);
        message->sender = peer.sender;
        message->comes_from(&origin);
        message->announced = announced;
        message->bytes = std::make_unique<std::byte[]>(1);
        queue.keep(std::move(message));
        Posted posted(tagged(7), 1);
        if (claimed) {
          const std::uint64_t claim = queue.claim(tagged(7));
          CHECK((wanted ? queue.receive_claimed(claim, posted.receive) : queue.discard_claimed(claim)));
        } else if (wanted) {
          queue.post(posted.receive);
        } else {
          CHECK(queue.discard(tagged(7)));
        }
        CHECK(posted.done() == wanted);
        CHECK(queue.sizes().unexpected == 0);
      }
}

TEST_CASE("when an origin ends, what it announced goes and what arrived stays") {
  AddressVector peers;
  Peer peer(peers, 0);
  ReceiveQueue queue;
  std::uint64_t claimed = 0;
  {
    Origin origin(queue);
    origin.announce(head(7, 4), peer, 9);
    origin.announce(head(8, 4), peer, 10);
    claimed = queue.claim(tagged(8));
    origin.arrive(head(7, 2), peer, "ab");
  }
  Posted posted(tagged(7)), lost(tagged(8));
  CHECK_FALSE(queue.receive_claimed(claimed, lost.receive));
  queue.post(posted.receive);
  REQUIRE(posted.done());
  CHECK(posted.bytes.substr(0, 2) == "ab");
}
