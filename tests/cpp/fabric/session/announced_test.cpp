#include <doctest/doctest.h>

#include <list>
#include <set>

#include "fabric/session/pipe.h"

using namespace fab;
using namespace fab::test;
using Bytes = std::vector<std::byte>;

// Announced messages between sides that share memory: the receiver reads them where they lie, a slice at a
// time, and a ledger tells who was first when the sender gives up.
namespace {

struct Reader final : MemoryReader {
  void read(std::span<Read> reads) noexcept override {
    most_at_once = std::max(most_at_once, reads.size());
    for (Read& one : reads) {
      if (refuses) continue;
      PieceCursor from(one.from.data(), one.from.size());
      from.skip(one.begin);
      one.to.skip(one.begin);
      for (std::uint64_t left = one.length; left;) {
        const iovec piece = from.here(left), place = one.to.here(piece.iov_len);
        std::memcpy(place.iov_base, piece.iov_base, place.iov_len);
        from.advance(place.iov_len);
        one.to.advance(place.iov_len);
        left -= place.iov_len;
      }
      bytes += one.length;
      one.outcome = outcome;
    }
    if (after) after();
  }
  bool refuses = false;
  Errc outcome = Errc::ok;
  std::function<void()> after;
  std::size_t most_at_once = 0;
  std::uint64_t bytes = 0;
};

struct Ledger final : AnnouncementLedger {
  std::uint64_t open() noexcept override { return ++opened; }
  void end(std::uint64_t number) noexcept override { ended.insert(number & ~kStreamOnly); }
  bool revoke(std::uint64_t number) noexcept override { return !taken.contains(number & ~kStreamOnly); }
  bool stands(std::uint64_t) const noexcept override { return standing; }
  bool take(std::uint64_t number) noexcept override {
    return standing && taken.insert(number & ~kStreamOnly).second;
  }
  std::uint64_t opened = 0;
  bool standing = true;
  std::set<std::uint64_t> ended, taken;
};

struct Send {
  explicit Send(Bytes content, std::uint64_t tag = 7)
      : bytes(std::move(content)), probe(OpCode::send, tag, 0, bytes.data(), bytes.size()) {
    probe.transfer.flags = transfer_flag::kTagged;
  }
  Bytes bytes;
  Probe probe;
};

struct Landing {
  explicit Landing(std::size_t size, std::uint64_t tag = 7) : bytes(size) {
    operation.begin({.flags = completion_flag::kMessage | completion_flag::kRecv});
    receive.operation = &operation;
    receive.local = bytes.data();
    receive.length = size;
    receive.rule = {.tag = tag, .tagged = true};
  }
  Errc error() const { return operation.completion().error; }
  Bytes bytes;
  Operation operation;
  Receive receive;
};

struct Joined {
  Joined()
      : pipe(1,
             {.reader = &reader,
              .ledger = &ledger,
              .slice = &slice,
              .on_more = [this] { ++more; },
              .on_output = [this] { ++output; }},
             {.reader = &reader, .ledger = &ledger}) {}
  Reader reader;
  Ledger ledger;
  Slice slice;
  int more = 0, output = 0;
  Pipe pipe;
};

}  // namespace

TEST_CASE("an announced message is read where it lies, whichever side comes first") {
  for (const bool receive_first : {true, false})
    for (const bool refuses : {true, false}) {
      CAPTURE(receive_first);
      CAPTURE(refuses);
      Joined joined;
      Pipe& pipe = joined.pipe;
      joined.reader.refuses = refuses;
      Send send(random_bytes(pipe.random, 100'000));
      const iovec pieces[] = {piece(send.bytes, 0, 3), piece(send.bytes, 3, 60'000),
                              piece(send.bytes, 60'003, 39'997)};
      send.probe.transfer.local_pieces = pieces;
      send.probe.transfer.piece_count = 3;
      Landing landing(100'000);
      if (receive_first) pipe.b.receives.post(landing.receive);
      REQUIRE(send.probe.post(pipe.a) == 1);
      REQUIRE(pipe.run() == Errc::ok);
      if (!receive_first) {
        CHECK_FALSE(send.probe.done());
        CHECK(pipe.a.session.awaits_peer());
        joined.output = 0;
        pipe.b.receives.post(landing.receive);
        CHECK(joined.output == 1);
        REQUIRE(pipe.run() == Errc::ok);
      }
      REQUIRE(landing.operation.done());
      CHECK(landing.error() == Errc::ok);
      CHECK(landing.bytes == send.bytes);
      CHECK(send.probe.done());
      CHECK(send.probe.length() == 100'000);
      CHECK(pipe.a.counts.bytes_out == 100'000);
      CHECK(joined.reader.bytes == (refuses ? 0 : 100'000));
      CHECK(pipe.b.counts.posted == (refuses ? 1 : 0));  // then it is asked for through the stream
      CHECK(joined.ledger.ended == std::set<std::uint64_t>{1});
      CHECK(joined.ledger.taken == std::set<std::uint64_t>{1});
      CHECK_FALSE(pipe.a.session.messages().announces());
    }
}

TEST_CASE("what is read in one turn is a slice") {
  constexpr std::size_t kLength = 5 * Slice::kBytes / 2;
  Joined joined;
  Pipe& pipe = joined.pipe;
  Send send(random_bytes(pipe.random, kLength)), behind(random_bytes(pipe.random, 50'000));
  Landing landing(kLength), next(50'000);
  REQUIRE(send.probe.post(pipe.a) == 1);
  REQUIRE(behind.probe.post(pipe.a) == 1);
  REQUIRE(pipe.run() == Errc::ok);
  joined.slice.begin();
  pipe.b.receives.post(landing.receive);
  pipe.b.receives.post(next.receive);
  CHECK(joined.reader.bytes == Slice::kBytes);
  CHECK(joined.more >= 1);
  CHECK_FALSE(landing.operation.done());
  for (const std::uint64_t bytes : {2 * Slice::kBytes, kLength + 50'000}) {
    joined.slice.begin();
    pipe.b.session.go_on();
    CHECK(joined.reader.bytes == bytes);
  }
  CHECK(landing.bytes == send.bytes);
  CHECK(next.bytes == behind.bytes);
  CHECK(landing.operation.done());
  CHECK(next.operation.done());
  CHECK_FALSE(joined.slice.spent());
  REQUIRE(pipe.run() == Errc::ok);
  CHECK(send.probe.done());
  CHECK(behind.probe.done());
}

TEST_CASE("announcements that come together are read together, and none of them twice") {
  Joined joined;
  Pipe& pipe = joined.pipe;
  std::list<Send> sends;
  std::list<Landing> landings;
  for (int i = 0; i < 40; ++i) {
    REQUIRE(sends.emplace_back(random_bytes(pipe.random, i == 3 ? 300'000 : 17'000)).probe.post(pipe.a) == 1);
    pipe.b.receives.post(landings.emplace_back(i % 10 == 9 ? 0 : 300'000).receive);
  }
  while (pipe.a.session.has_output()) pipe.send(pipe.a);
  while (!pipe.a.wire.empty()) {
    joined.slice.begin();
    iovec in[2];
    REQUIRE(pipe.b.session.input(in) >= 1);
    const std::size_t bytes = std::min(in[0].iov_len, pipe.a.wire.size());
    std::memcpy(in[0].iov_base, pipe.a.wire.data(), bytes);
    pipe.a.wire.erase(0, bytes);
    REQUIRE(pipe.b.session.received(bytes) == Errc::ok);
    while (std::exchange(joined.more, 0) != 0) {
      joined.slice.begin();
      pipe.b.session.go_on();
    }
  }
  REQUIRE(pipe.run() == Errc::ok);
  CHECK(joined.reader.most_at_once > 8);
  CHECK(joined.reader.most_at_once <= 16);
  std::uint64_t total = 0;
  auto send = sends.begin();
  for (const Landing& landing : landings) {
    REQUIRE(landing.operation.done());
    CHECK(landing.error() == (landing.bytes.empty() ? Errc::truncated : Errc::ok));
    if (!landing.bytes.empty()) {
      total += send->bytes.size();
      CHECK(std::equal(send->bytes.begin(), send->bytes.end(), landing.bytes.begin()));
    }
    CHECK(send->probe.done());
    ++send;
  }
  CHECK(joined.reader.bytes == total);
  CHECK(joined.ledger.ended.size() == 40);
}

TEST_CASE("a message that its sender took back is lost for the receiver, whenever that is seen") {
  for (const bool before : {true, false}) {
    CAPTURE(before);
    Send send(Bytes(100'000));
    Landing landing(100'000);
    Joined joined;
    Pipe& pipe = joined.pipe;
    REQUIRE(send.probe.post(pipe.a) == 1);
    REQUIRE(pipe.run() == Errc::ok);
    const auto gives_up = [&] { joined.ledger.standing = false; };
    if (before)
      gives_up();
    else
      joined.reader.after = gives_up;
    pipe.b.receives.post(landing.receive);
    REQUIRE(landing.operation.done());
    CHECK(landing.error() == Errc::peer_lost);
    CHECK(joined.reader.bytes == (before ? 0 : 100'000));
    CHECK(joined.ledger.taken.empty());
  }
}

TEST_CASE("a sender that gives up goes by who was first") {
  Joined joined;
  Pipe& pipe = joined.pipe;
  Send waits(Bytes(100'000), 7), taken(Bytes(100'000), 8);
  Landing landing(100'000, 8);
  REQUIRE(waits.probe.post(pipe.a) == 1);
  REQUIRE(taken.probe.post(pipe.a) == 1);
  while (pipe.a.session.has_output()) pipe.send(pipe.a);
  while (!pipe.a.wire.empty()) REQUIRE(pipe.receive(pipe.a, pipe.b) == Errc::ok);
  pipe.b.receives.post(landing.receive);
  CHECK(landing.error() == Errc::ok);
  pipe.a.session.fail(Errc::peer_lost);  // what the receiver says of it is still under way
  CHECK(waits.probe.error() == Errc::peer_lost);
  CHECK(waits.probe.length() == 0);
  CHECK(taken.probe.error() == Errc::ok);
  CHECK(taken.probe.length() == 100'000);
  CHECK(pipe.a.counts.bytes_out == 100'000);
  CHECK(pipe.a.counts.errors == 1);
}

TEST_CASE(
    "a message that nobody wants is taken from the ledger, and one that cannot be read fails for both") {
  Joined joined;
  Pipe& pipe = joined.pipe;
  Send unwanted(Bytes(100'000), 7), broken(Bytes(100'000), 8);
  Landing landing(100'000, 8);
  REQUIRE(unwanted.probe.post(pipe.a) == 1);
  REQUIRE(broken.probe.post(pipe.a) == 1);
  REQUIRE(pipe.run() == Errc::ok);
  joined.output = 0;
  CHECK(pipe.b.receives.discard({.tag = 7, .tagged = true}));
  CHECK(joined.output == 1);
  CHECK(joined.ledger.taken == std::set<std::uint64_t>{1});
  joined.reader.outcome = Errc::bounds;
  pipe.b.receives.post(landing.receive);
  CHECK(landing.error() == Errc::bounds);
  REQUIRE(pipe.run() == Errc::ok);
  CHECK(unwanted.probe.error() == Errc::ok);
  CHECK(broken.probe.error() == Errc::bounds);
}

TEST_CASE("an injected message is announced from a copy") {
  Joined joined;
  Pipe& pipe = joined.pipe;
  Send send(random_bytes(pipe.random, 100'000));
  const Bytes sent = send.bytes;
  send.probe.transfer.delivery = Delivery::inject;
  REQUIRE(send.probe.post(pipe.a) == 1);
  REQUIRE(send.probe.done());
  std::ranges::fill(send.bytes, std::byte{0});
  Landing landing(100'000);
  pipe.b.receives.post(landing.receive);
  REQUIRE(pipe.run() == Errc::ok);
  CHECK(landing.bytes == sent);
  CHECK(joined.reader.bytes == 100'000);
}

TEST_CASE("credit for buffered messages comes back in large parts, and the stream is asked to send it") {
  std::list<Send> sends;  // the last one is told of its end by that of the pipe
  Joined joined;
  Pipe& pipe = joined.pipe;
  constexpr std::uint64_t kLength = 16'000, kCost = kLength + kMessageOverhead;
  constexpr std::uint64_t kFit = kMessageWindow / kCost, kPart = (kMessageWindow / 4 + kCost - 1) / kCost;
  for (std::uint64_t i = 0; i < kFit + 1; ++i)
    REQUIRE(sends.emplace_back(Bytes(kLength)).probe.post(pipe.a) == 1);
  REQUIRE(pipe.run() == Errc::ok);
  CHECK(pipe.a.session.messages().announces());  // the last one
  joined.output = 0;
  for (std::uint64_t i = 1; i <= kPart; ++i) {
    CHECK_FALSE(pipe.b.session.has_output());
    CHECK(pipe.b.receives.discard({.tag = 7, .tagged = true}));
    CHECK(joined.output == (i == kPart ? 1 : 0));
  }
  CHECK(pipe.b.session.has_output());
  REQUIRE(pipe.run() == Errc::ok);
  Send again(Bytes(kLength), 9), large(Bytes(kLength + 1'000), 9);
  REQUIRE(again.probe.post(pipe.a) == 1);
  REQUIRE(pipe.run() == Errc::ok);
  CHECK(again.probe.done());
}
