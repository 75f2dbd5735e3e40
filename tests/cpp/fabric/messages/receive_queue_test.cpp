#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <random>
#include <string>
#include <vector>

#include "message_peers.h"

using namespace fab;

TEST_CASE("the matching rule, with the receive first and with the message first") {
  struct Case {
    MatchRule rule;
    MessageHead message;
    int from;  // 0 and 1 are peers, 2 is a stranger
    bool fits;
  };
  constexpr std::uint64_t kAll = ~std::uint64_t{0};
  const MatchRule untagged{}, untagged_of_0{.source = 0}, untagged_group{.group = 3};
  const std::vector<Case> cases = {
      {tagged(7), head(7), 0, true},
      {tagged(7), head(8), 0, false},
      {tagged(7), head(7), 2, true},
      {tagged(0), head(0), 1, true},
      {tagged(kAll), head(kAll), 1, true},
      {tagged(kAll), head(kAll - 1), 1, false},
      {tagged(7, kAll), head(12345), 0, true},
      {tagged(7, kAll), head(12345), 2, true},
      {tagged(0, kAll, 1), head(9), 1, true},
      {tagged(0, kAll, 1), head(9), 0, false},
      {tagged(0x10, 0x0F), head(0x1A), 0, true},
      {tagged(0x1F, 0x0F), head(0x10), 0, true},
      {tagged(0x10, 0x0F), head(0x20), 0, false},
      {tagged(0x10, 0xF0), head(0x21), 0, false},
      {tagged(1ull << 63, 1), head((1ull << 63) | 1), 0, true},
      {tagged(1ull << 63, 1), head(1), 0, false},
      {tagged(7, 0, 0), head(7), 0, true},
      {tagged(7, 0, 0), head(7), 1, false},
      {tagged(7, 0, 1), head(7), 1, true},
      {tagged(7, 0, 0), head(7), 2, false},
      {tagged(7, 0, 0), head(8), 0, false},
      {tagged(7, 0, kNoPeer, 1), head(7, 2, 1), 0, true},
      {tagged(7, 0, kNoPeer, 1), head(7, 2, 2), 0, false},
      {tagged(7, 0, kNoPeer, 0), head(7, 2, 2), 0, false},
      {tagged(7, kAll, kNoPeer, 2), head(9, 2, 2), 2, true},
      {tagged(7, 0, 1, 2), head(7, 2, 2), 1, true},
      {tagged(7, 0, 0, 2), head(7, 2, 2), 1, false},
      {untagged, {.length = 2}, 0, true},
      {untagged, head(0), 0, false},
      {tagged(0), {.length = 2}, 0, false},
      {tagged(0, kAll), {.length = 2}, 0, false},
      {untagged_of_0, {.length = 2}, 0, true},
      {untagged_of_0, {.length = 2}, 1, false},
      {untagged_group, {.length = 2, .group = 3}, 1, true},
      {untagged_group, {.length = 2}, 1, false},
  };
  for (std::size_t i = 0; i < cases.size(); ++i)
    for (const bool receive_first : {true, false}) {
      CAPTURE(i);
      CAPTURE(receive_first);
      const Case& one = cases[i];
      AddressVector peers;
      std::deque<Peer> senders;
      for (int number = 0; number < 3; ++number) senders.emplace_back(peers, number);
      for (int number = 0; number < 2; ++number)
        REQUIRE(peers.insert(senders[number].name()) == static_cast<PeerId>(number));
      Posted posted(one.rule);
      ReceiveQueue queue;
      Origin origin(queue);
      if (receive_first) queue.post(posted.receive);
      origin.arrive(one.message, senders[one.from], "ab");
      if (!receive_first) queue.post(posted.receive);
      CHECK(posted.done() == one.fits);
      if (one.fits) {
        CHECK(posted.bytes.substr(0, 3) == "ab.");
        CHECK(posted.completion().tag == one.message.tag);
        CHECK(posted.completion().length == 2);
        CHECK(posted.completion().source == (one.from == 2 ? kNoPeer : static_cast<PeerId>(one.from)));
        CHECK(origin.buffered == 0);
      }
      CHECK(queue.sizes().unexpected == (one.fits ? 0u : 1u));
      CHECK(queue.sizes().posted == (one.fits ? 0u : 1u));
    }
}

TEST_CASE("the oldest receive takes a message, whatever kind it is, and a receive the oldest message") {
  AddressVector peers;
  Peer peer(peers, 0);
  peers.insert(peer.name());
  ReceiveQueue queue;
  Origin origin(queue);
  std::deque<Posted> posted;
  const MatchRule rules[] = {tagged(7, 1), tagged(7),       tagged(7, 0, 0),
                             tagged(6, 1), tagged(7, 0, 0), tagged(7)};
  for (const MatchRule& rule : rules) queue.post(posted.emplace_back(rule).receive);
  for (std::size_t next = 0; next < posted.size(); ++next) {
    origin.arrive(head(7, 1), peer, std::string(1, static_cast<char>('a' + next)));
    for (std::size_t i = 0; i < posted.size(); ++i) CHECK(posted[i].done() == (i <= next));
    CHECK(posted[next].bytes[0] == static_cast<char>('a' + next));
  }
  const std::string sent = "bcbdba";
  for (const char byte : sent)
    origin.arrive(head(static_cast<std::uint64_t>(byte), 1), peer, std::string(1, byte));
  const auto take = [&](const MatchRule& rule) {
    Posted one(rule);
    queue.post(one.receive);
    REQUIRE(one.done());
    return one.bytes[0];
  };
  CHECK(take(tagged('c')) == 'c');
  CHECK(take(tagged(0, ~std::uint64_t{0})) == 'b');
  CHECK(take(tagged('b')) == 'b');
  CHECK(take(tagged(0, ~std::uint64_t{0}, 0)) == 'd');
  CHECK(take(tagged(0, ~std::uint64_t{0})) == 'b');
  CHECK(take(tagged(0, ~std::uint64_t{0})) == 'a');
}

TEST_CASE(
    "a message of a stranger becomes one of a peer when the address is inserted, and stays one of nobody "
    "when it goes") {
  AddressVector peers;
  Peer known(peers, 0), late(peers, 1);
  peers.insert(known.name());
  ReceiveQueue queue;
  Origin origin(queue);
  origin.arrive(head(7), late, "ab");
  Posted directed(tagged(7, 0, 1));
  CHECK(queue.cancel(directed.operation) == false);
  const PeerId handle = peers.insert(late.name());
  CHECK(handle == 1);
  queue.post(directed.receive);
  REQUIRE(directed.done());
  CHECK(directed.completion().source == handle);

  origin.arrive(head(7), late, "cd");
  peers.remove(handle);
  Peer other(peers, 2);
  CHECK(peers.insert(other.name()) == handle);  // somebody else under the same number
  Posted wrong(tagged(7, 0, handle)), any(tagged(7));
  queue.post(wrong.receive);
  CHECK_FALSE(wrong.done());
  queue.post(any.receive);
  REQUIRE(any.done());
  CHECK(any.completion().source == kNoPeer);
  CHECK(queue.cancel(wrong.operation));
}

TEST_CASE("a message that is too long fills the memory and tells by how much") {
  AddressVector peers;
  Peer peer(peers, 0);
  ReceiveQueue queue;
  Origin origin(queue);
  for (const bool announced : {false, true})
    for (const bool receive_first : {true, false}) {
      Posted posted(tagged(7), 3);
      posted.bytes += "guard";
      posted.receive.local = reinterpret_cast<std::byte*>(posted.bytes.data());
      if (receive_first) queue.post(posted.receive);
      if (announced)
        origin.announce(head(7, 5), peer, 'x');
      else
        origin.arrive(head(7, 5), peer, "xxxxx");
      if (!receive_first) queue.post(posted.receive);
      REQUIRE(posted.done());
      CHECK(posted.completion().error == Errc::truncated);
      CHECK(posted.completion().length == 3);
      CHECK(posted.completion().overflow == 2);
      CHECK(posted.bytes == "xxxguard");
    }
  CHECK(origin.buffered == 0);
  CHECK(origin.released.size() == 2);
}

TEST_CASE("cancel gives exactly one outcome and the memory back") {
  AddressVector peers;
  Peer peer(peers, 0);
  ReceiveQueue queue;
  Origin origin(queue);
  CompletionQueue completions(8, CompletionQueue::WhenFull::forget_oldest);
  Posted first(tagged(7), 16, 0, &completions, 1), second(tagged(7), 16, 0, &completions, 1);
  queue.post(first.receive);
  queue.post(second.receive);
  const auto context_is = [](std::uint64_t wanted) {
    return [wanted](const Operation& operation) { return operation.completion().context == wanted; };
  };
  CHECK_FALSE(queue.cancel_oldest(context_is(2)));
  CHECK(queue.cancel_oldest(context_is(1)));  // the older of two with one context
  REQUIRE(first.done());
  CHECK_FALSE(second.done());
  CHECK(first.completion().error == Errc::canceled);
  CHECK_FALSE(queue.cancel(first.operation));
  origin.arrive(head(7), peer, "ab");
  CHECK(first.bytes == std::string(16, '.'));
  REQUIRE(second.done());
  CHECK_FALSE(queue.cancel(second.operation));
  Completion entries[4];
  REQUIRE(completions.read(entries) == 2);
  CHECK(entries[0].error == Errc::canceled);
  CHECK((entries[0].flags & completion_flag::kRecv) != 0);
  CHECK(entries[1].error == Errc::ok);
}

TEST_CASE(
    "without directed receives anybody's message will do, and of an untagged receive the tag does not "
    "count") {
  AddressVector peers;
  Peer peer(peers, 0), other(peers, 1);
  peers.insert(peer.name());
  const PeerId second = peers.insert(other.name());
  const AuthKey key{"secret", 1, {}};
  ReceiveQueue queue(false);
  Origin origin(queue);
  Posted from_other(tagged(7, 0, second)), waits_for_other(tagged(8, 0, second)), untagged({.tag = 3});
  from_other.receive.rule.key = &key;
  queue.post(from_other.receive);
  origin.arrive(head(7), peer, "ab");
  CHECK(from_other.done());
  origin.arrive(head(8), peer, "cd");
  queue.post(waits_for_other.receive);
  CHECK(waits_for_other.done());
  queue.post(untagged.receive);
  origin.arrive({.length = 2}, peer, "ef");
  CHECK(untagged.done());
}

TEST_CASE("a claimed message that is not wanted goes, as does one that closing finds") {
  AddressVector peers;
  Peer peer(peers, 0);
  ReceiveQueue queue;
  Origin origin(queue);
  CHECK(queue.claim(tagged(7)) == 0);
  CHECK_FALSE(queue.discard(tagged(7)));
  origin.arrive(head(7, 4), peer, "abcd");
  origin.announce(head(7, 4), peer, 9);
  origin.announce(head(7, 4), peer, 10);
  const auto arrived = queue.claim(tagged(7)), announced = queue.claim(tagged(7));
  CHECK(queue.claim(tagged(7)) != 0);
  CHECK(queue.discard_claimed(arrived));
  CHECK(origin.buffered == 0);
  CHECK(origin.released.empty());
  CHECK(queue.discard_claimed(announced));
  CHECK(origin.released == std::vector<std::uint64_t>{9});
  CHECK_FALSE(queue.discard_claimed(announced));
  queue.drop_all();
  CHECK(origin.released == std::vector<std::uint64_t>{9});
}

TEST_CASE("peek looks, claim hides, discard drops") {
  AddressVector peers;
  Peer peer(peers, 0);
  ReceiveQueue queue;
  Origin origin(queue);
  CHECK(queue.peek(tagged(7)) == nullptr);
  origin.arrive(head(7, 2), peer, "ab");
  origin.announce(head(7, 4), peer, 9);
  REQUIRE(queue.peek(tagged(7)) != nullptr);
  CHECK(queue.peek(tagged(7))->head.length == 2);
  const auto claim = queue.claim(tagged(7));
  REQUIRE(claim != 0);
  CHECK(queue.peek(tagged(7))->head.length == 4);
  CHECK(queue.discard(tagged(7)));
  CHECK(origin.released == std::vector<std::uint64_t>{9});
  Posted other(tagged(7)), mine({});
  queue.post(other.receive);
  CHECK_FALSE(other.done());
  CHECK(queue.receive_claimed(claim, mine.receive));
  CHECK(mine.bytes.substr(0, 2) == "ab");
  CHECK_FALSE(queue.receive_claimed(claim, mine.receive));
  CHECK_FALSE(queue.discard_claimed(claim));
  CHECK(origin.buffered == 0);
  queue.cancel(other.operation);
}

TEST_CASE("closing settles posted receives without an entry and lets go of messages") {
  AddressVector peers;
  Peer peer(peers, 0);
  CompletionQueue completions(1, CompletionQueue::WhenFull::refuse);
  ReceiveQueue queue;
  Origin origin(queue);
  REQUIRE(completions.reserve());
  Posted posted(tagged(7), 16, 0, &completions);
  queue.post(posted.receive);
  origin.arrive(head(8), peer, "ab");
  origin.announce(head(8, 100), peer, 4);
  queue.drop_all();
  REQUIRE(posted.done());
  CHECK(posted.completion().error == Errc::canceled);
  CHECK(completions.empty());
  CHECK(completions.reserve());  // its place is free again
  CHECK(queue.sizes().unexpected == 0);
  CHECK(origin.released.empty());  // nobody took it
}

TEST_CASE("a sender is known under its key, else without one, else by its key") {
  const auto reported = [](Peer& peer) {
    const Source source = peer.sender->reported();
    return std::pair(source.id, source.flags != 0);
  };
  const AuthKey key{"secret", 1, {5, 6}};
  AddressVector peers;
  Peer peer(peers, 0, key), other(peers, 0);
  CHECK(reported(peer) == std::pair(PeerId{4}, true));
  CHECK(peers.insert(peer.name(), {.auth = 4}) == 0);
  CHECK(reported(peer) == std::pair(PeerId{4}, true));
  CHECK(peers.insert(peer.name()) == 1);
  CHECK(reported(peer) == std::pair(PeerId{1}, false));
  CHECK(peers.insert(peer.name(), {.auth = 6}) == 2);
  peers.remove(1);
  CHECK(reported(peer) == std::pair(PeerId{2}, false));
  CHECK(reported(other) == std::pair(kNoPeer, false));
  CHECK_THROWS_AS(peers.set_key_user_id(5, 9), Error);

  AddressVector ids({.user_ids = true});
  Peer unknown(ids, 1, key);
  CHECK(unknown.sender->reported().id == kNoPeer);
  CHECK(unknown.sender->reported().flags == completion_flag::kAuthKey);
  ids.set_key_user_id(5, 9);
  CHECK(unknown.sender->reported().id == 9);
  ids.set_key_user_id(5, std::nullopt);
  CHECK(unknown.sender->reported().id == kNoPeer);
}

// Against a model that is too simple to be wrong.
TEST_CASE("random receives and messages meet as in a list that is searched from the front") {
  std::mt19937 random(1);
  for (int run = 0; run < 50; ++run) {
    AddressVector peers;
    const AuthKeys keys{{"first", 1}, {"second", 2}};
    std::deque<Peer> senders;
    for (int number = 0; number < 4; ++number) senders.emplace_back(peers, number, keys[number % 2]);
    for (int number = 0; number < 3; ++number) peers.insert(senders[number].name());
    ReceiveQueue queue;
    Origin origin(queue);
    struct Waiting {
      MessageHead head;
      PeerId from;
      const AuthKey* key;
      std::uint64_t number;
    };
    std::deque<Posted> receives;
    std::vector<Posted*> posted;
    std::vector<Waiting> waiting;
    std::uint64_t number = 0;
    for (int step = 0; step < 400; ++step) {
      const std::uint64_t tag = random() % 5;
      const auto group = static_cast<std::uint32_t>(random() % 2);
      if (random() % 2) {
        MatchRule rule =
            tagged(tag, random() % 3 ? 0 : random() % 8, random() % 2 ? kNoPeer : random() % 3, group);
        if (random() % 3 == 0) rule.key = &keys[random() % 2];
        Posted& receive = receives.emplace_back(rule, 8);
        queue.post(receive.receive);
        const auto found = std::ranges::find_if(
            waiting, [&](const Waiting& one) { return rule.fits(one.head, one.from, *one.key); });
        if (found == waiting.end()) {
          REQUIRE_FALSE(receive.done());
          posted.push_back(&receive);
        } else {
          REQUIRE(receive.done());
          std::uint64_t got;
          std::memcpy(&got, receive.bytes.data(), sizeof got);
          REQUIRE(got == found->number);
          waiting.erase(found);
        }
      } else {
        const std::size_t from = random() % 4;
        const PeerId handle = from == 3 ? kNoPeer : from;
        const MessageHead message = head(tag, 8, group);
        ++number;
        origin.arrive(message, senders[from],
                      std::string(reinterpret_cast<const char*>(&number), sizeof number));
        const auto found = std::ranges::find_if(posted, [&](const Posted* one) {
          return one->receive.rule.fits(message, handle, keys[from % 2]);
        });
        if (found == posted.end()) {
          waiting.push_back({message, handle, &keys[from % 2], number});
        } else {
          REQUIRE((*found)->done());
          std::uint64_t got;
          std::memcpy(&got, (*found)->bytes.data(), sizeof got);
          REQUIRE(got == number);
          posted.erase(found);
        }
      }
      REQUIRE(queue.sizes().posted == posted.size());
      REQUIRE(queue.sizes().unexpected == waiting.size());
    }
    queue.drop_all();
  }
}

TEST_CASE("an address that holds a part of another peer's takes no messages away from that peer's handle") {
  AddressVector peers;
  Peer victim(peers, 1);
  // Whoever gave this address out has put the part of somebody else beside his own.
  const PeerId crafted = peers.insert(Name{{victim.part, {"other.0", 0, "his own"}}}.encode());
  const PeerId real = peers.insert(victim.name());
  ReceiveQueue queue;
  Origin origin(queue);
  for (const bool receive_first : {true, false})
    for (const std::uint64_t ignore : {0u, 1u}) {
      CAPTURE(receive_first);
      Posted posted(tagged(7, ignore, real)), another(tagged(8));
      queue.post(another.receive);  // so that the other one is not the first
      if (receive_first) queue.post(posted.receive);
      origin.arrive(head(7), victim, "ab");
      if (!receive_first) queue.post(posted.receive);
      REQUIRE(posted.done());
      CHECK(posted.completion().source == real);
      REQUIRE(queue.cancel(another.operation));
    }
  Posted stranger(tagged(7, 0, 5));
  queue.post(stranger.receive);
  origin.arrive(head(7), victim, "ab");
  CHECK_FALSE(stranger.done());
  peers.remove(real);
  Posted left(tagged(7, 0, crafted));
  queue.post(left.receive);
  CHECK(left.done());
  queue.drop_all();
}
