#include <doctest/doctest.h>

#include <list>

#include "fabric/session/pipe.h"

using namespace fab;
using namespace fab::test;
using Bytes = std::vector<std::byte>;

namespace {

struct Send {
  Send(Bytes content, std::uint64_t tag, Delivery delivery = Delivery::transmit)
      : bytes(std::move(content)), probe(OpCode::send, tag, 0, bytes.data(), bytes.size()) {
    probe.transfer.flags = transfer_flag::kTagged;
    probe.transfer.delivery = delivery;
  }
  Bytes bytes;
  Probe probe;
};

struct Landing {
  Landing(std::size_t size, std::uint64_t tag, std::uint64_t ignore = 0) : bytes(size) {
    operation.begin({.flags = completion_flag::kMessage | completion_flag::kRecv});
    receive.operation = &operation;
    receive.local = bytes.data();
    receive.length = size;
    receive.rule = {.tag = tag, .ignore = ignore, .tagged = true};
  }
  const Completion& completion() const { return operation.completion(); }
  Bytes bytes;
  Operation operation;
  Receive receive;
};

}  // namespace

TEST_CASE("messages of all sizes in both directions arrive once, whole and in order") {
  for (unsigned seed = 1; seed <= 30; ++seed) {
    CAPTURE(seed);
    Pipe pipe(seed);
    constexpr int kMessages = 60;
    struct Way {
      Side& from;
      Side& to;
      std::list<Send> sends;
      std::list<Landing> landings;
      std::size_t posted = 0;
    };
    Way ways[2] = {{pipe.a, pipe.b, {}, {}}, {pipe.b, pipe.a, {}, {}}};
    const std::size_t most = seed % 5 ? 40'000 : 6'000'000;
    for (int step = 0; step < 2 * kMessages * 2; ++step) {
      Way& way = ways[pipe.random() % 2];
      if (pipe.random() % 2 && way.sends.size() < kMessages) {
        constexpr Delivery kLevels[] = {Delivery::inject, Delivery::transmit, Delivery::delivery};
        Send& send = way.sends.emplace_back(random_bytes(pipe.random, pipe.some_length(most)), 7,
                                            kLevels[pipe.random() % 3]);
        REQUIRE(send.probe.post(way.from) == 1);
        if (send.probe.transfer.delivery == Delivery::inject) {
          REQUIRE(send.probe.done());
          send.probe.transfer.local = nullptr;  // the memory may be used again
        }
      } else if (way.landings.size() < kMessages) {
        const std::uint64_t ignore = pipe.random() % 2 ? 0 : 0xFF;
        way.to.receives.post(way.landings.emplace_back(most, 7, ignore).receive);
      }
      for (auto turns = pipe.random() % 4; turns; --turns) REQUIRE(pipe.turn() == Errc::ok);
    }
    for (Way& way : ways) {
      while (way.landings.size() < way.sends.size())
        way.to.receives.post(way.landings.emplace_back(most, 7).receive);
      while (way.sends.size() < way.landings.size())
        REQUIRE(way.sends.emplace_back(Bytes(3, std::byte{1}), 7).probe.post(way.from) == 1);
    }
    REQUIRE(pipe.run() == Errc::ok);
    for (Way& way : ways) {
      auto landing = way.landings.begin();
      for (const Send& send : way.sends) {
        REQUIRE(send.probe.done());
        CHECK(send.probe.error() == Errc::ok);
        REQUIRE(landing->operation.done());
        CHECK(landing->completion().error == Errc::ok);
        REQUIRE(landing->completion().length == send.bytes.size());
        CHECK(std::equal(send.bytes.begin(), send.bytes.end(), landing->bytes.begin()));
        ++landing;
      }
      CHECK(way.from.counts.posted == way.from.counts.settled);
    }
  }
}

TEST_CASE("what nobody receives costs the receiver a bounded amount, and the rest stays with the sender") {
  Pipe pipe(3);
  std::list<Send> sends;
  for (int i = 0; i < 500; ++i) {
    Probe& probe = sends.emplace_back(Bytes(8000, std::byte{7}), 7).probe;
    while (probe.post(pipe.a) == 0) REQUIRE(pipe.turn() == Errc::ok);
  }
  REQUIRE(pipe.run() == Errc::ok);
  const auto done = std::ranges::count_if(sends, [](const Send& send) { return send.probe.done(); });
  CHECK(done > 100);
  CHECK(done * (8000 + static_cast<long>(kMessageOverhead)) <= static_cast<long>(kMessageWindow));
  CHECK(pipe.b.receives.sizes().unexpected == 500);
  CHECK(pipe.a.session.messages().announces());
  for (int i = 0; i < 500; ++i) {
    Landing landing(8000, 7);
    pipe.b.receives.post(landing.receive);
    REQUIRE(pipe.run() == Errc::ok);
    REQUIRE(landing.operation.done());
    REQUIRE(landing.bytes == sends.front().bytes);
  }
  CHECK(std::ranges::all_of(sends, [](const Send& send) { return send.probe.done(); }));
  CHECK_FALSE(pipe.a.session.messages().announces());
}

TEST_CASE("a completion tells what the sender said of the message, and no more") {
  for (const std::size_t length : {std::size_t{10}, std::size_t{30'000}})
    for (const bool data : {true, false}) {
      CAPTURE(length);
      CAPTURE(data);
      Pipe pipe(2);
      Send send(Bytes(length), 0x123456789ABCDEF0);
      send.probe.transfer.data = 99;
      if (data) send.probe.transfer.flags |= transfer_flag::kRemoteData;
      Landing landing(length, 0x123456789ABCDEF0);
      pipe.b.receives.post(landing.receive);
      REQUIRE(send.probe.post(pipe.a) == 1);
      REQUIRE(pipe.run() == Errc::ok);
      REQUIRE(landing.operation.done());
      constexpr std::uint32_t kRecv = completion_flag::kMessage | completion_flag::kRecv;
      CHECK(landing.completion().flags == (data ? kRecv | completion_flag::kRemoteData : kRecv));
      CHECK(landing.completion().data == (data ? 99 : 0));
      CHECK(landing.completion().tag == 0x123456789ABCDEF0);
    }
}

TEST_CASE("as many messages may be announced, one after the other, as anybody likes") {
  Pipe pipe(3);
  for (std::size_t i = 0; i <= kMaxOutstanding; ++i) {
    Send send(Bytes(20'000), 7);
    Landing landing(0, 7);
    pipe.b.receives.post(landing.receive);
    REQUIRE(send.probe.post(pipe.a) == 1);
    REQUIRE(pipe.run() == Errc::ok);
    REQUIRE(landing.operation.done());
  }
}

TEST_CASE("a discarded message is over for its sender") {
  Pipe pipe(4);
  Send large(Bytes(100'000), 7);
  REQUIRE(large.probe.post(pipe.a) == 1);
  REQUIRE(pipe.run() == Errc::ok);
  CHECK_FALSE(large.probe.done());
  CHECK(pipe.b.receives.discard({.tag = 7, .tagged = true}));
  REQUIRE(pipe.run() == Errc::ok);
  REQUIRE(large.probe.done());
  CHECK(large.probe.error() == Errc::ok);
}

TEST_CASE("more receives of announced messages than a session may have requests") {
  Pipe pipe(5);
  std::list<Send> sends;
  std::list<Landing> landings;
  constexpr std::size_t kMany = kMaxOutstanding;
  for (std::size_t i = 0; i < kMany; ++i) {
    Send& send = sends.emplace_back(Bytes(20'000, static_cast<std::byte>(i)), 7);
    REQUIRE(send.probe.post(pipe.a) == 1);
    pipe.b.receives.post(landings.emplace_back(8, 7).receive);
  }
  Send one_more(Bytes(20'000), 7);
  CHECK(one_more.probe.post(pipe.a) == 0);  // the sender has to wait
  Send small(Bytes(8), 8);
  CHECK(small.probe.post(pipe.a) == 1);
  REQUIRE(pipe.run() == Errc::ok);
  auto landing = landings.begin();
  for (const Send& send : sends) {
    REQUIRE(send.probe.done());
    REQUIRE(landing->completion().error == Errc::truncated);
    REQUIRE(landing->bytes[7] == send.bytes[7]);
    ++landing;
  }
}

TEST_CASE("a connection that ends settles everything once, wherever the message is") {
  for (unsigned seed = 1; seed <= 60; ++seed) {
    CAPTURE(seed);
    Pipe pipe(seed);
    std::list<Send> sends;
    std::list<Landing> landings;
    for (int i = 0; i < 20; ++i) {
      Send& send = sends.emplace_back(random_bytes(pipe.random, pipe.some_length(300'000)), 7,
                                      pipe.random() % 2 ? Delivery::delivery : Delivery::transmit);
      send.probe.post(pipe.a);
      if (pipe.random() % 2) pipe.b.receives.post(landings.emplace_back(300'000, 7).receive);
      for (auto turns = pipe.random() % 6; turns; --turns) REQUIRE(pipe.turn() == Errc::ok);
    }
    pipe.a.session.fail(Errc::peer_lost);
    pipe.b.session.fail(Errc::peer_lost);
    for (const Send& send : sends) REQUIRE(send.probe.done());
    CHECK(pipe.a.counts.posted == pipe.a.counts.settled);
    // Posted receives that met no message wait on; the others have an outcome, and what arrived whole is
    // still there.
    auto sent = sends.begin();
    for (Landing& landing : landings) {
      if (!landing.operation.done()) continue;
      if (landing.completion().error == Errc::ok) {
        REQUIRE(landing.completion().length == sent->bytes.size());
        CHECK(std::equal(sent->bytes.begin(), sent->bytes.end(), landing.bytes.begin()));
      } else {
        CHECK(landing.completion().error == Errc::peer_lost);
      }
      ++sent;
    }
    pipe.b.receives.drop_all();
    for (const Landing& landing : landings) CHECK(landing.operation.done());
  }
}

TEST_CASE("frames that no peer sends end the connection and nothing else") {
  const auto sent = [](const FrameHeader& header) {
    Pipe pipe(9);
    char bytes[sizeof(FrameHeader)];
    encode(header, reinterpret_cast<std::byte*>(bytes));
    pipe.a.wire.assign(bytes, sizeof bytes);
    Errc error = Errc::ok;
    while (error == Errc::ok && !pipe.a.wire.empty()) error = pipe.receive(pipe.a, pipe.b);
    return error;
  };
  CHECK(sent({.type = FrameType::pull, .total = 5, .id = 1}) == Errc::protocol);
  CHECK(sent({.type = FrameType::release, .id = 1}) == Errc::protocol);
  CHECK(sent({.type = FrameType::credit, .total = 1}) == Errc::protocol);
  CHECK(sent({.type = FrameType::message, .length = 5, .total = 6}) == Errc::protocol);
  CHECK(sent({.type = FrameType::message, .length = kMaxMessage + 1, .total = kMaxMessage + 1}) ==
        Errc::protocol);
  CHECK(sent({.type = FrameType::message, .remote = 1 << 24}) == Errc::protocol);
  CHECK(sent({.type = FrameType::announce, .total = 5}) == Errc::protocol);
  CHECK(sent({.type = FrameType::announce, .length = 8, .total = 5, .id = 1}) == Errc::protocol);
}

TEST_CASE("who asks for a message asks once, and releases it when it has come") {
  for (const bool early : {true, false}) {
    Send send(Bytes(100'000), 7);
    Pipe pipe(9);
    REQUIRE(send.probe.post(pipe.a) == 1);
    while (pipe.a.session.has_output()) pipe.send(pipe.a);
    FrameHeader announced;
    REQUIRE(decode(reinterpret_cast<const std::byte*>(pipe.a.wire.data()), announced));
    const auto hears = [&](FrameHeader header) {
      char bytes[sizeof(FrameHeader)];
      header.id = announced.id;
      encode(header, reinterpret_cast<std::byte*>(bytes));
      pipe.b.wire.assign(bytes, sizeof bytes);
      Errc error = Errc::ok;
      while (error == Errc::ok && !pipe.b.wire.empty()) error = pipe.receive(pipe.b, pipe.a);
      return error;
    };
    CHECK(hears({.type = FrameType::pull, .total = 100'000}) == Errc::ok);
    if (early) {
      CHECK(hears({.type = FrameType::release}) == Errc::protocol);
      CHECK_FALSE(send.probe.done());
    } else {
      CHECK(hears({.type = FrameType::pull, .total = 100'000}) == Errc::protocol);
    }
  }
}

TEST_CASE("more than the window of messages beside the stream ends the connection") {
  Side side(1);
  const Bytes bytes(kMaxMessage);
  Errc error = Errc::ok;
  std::uint64_t count = 0;
  for (; error == Errc::ok && count < 1000; ++count) {
    Matched arrived{.head = {.length = kMaxMessage}};
    error = side.session.accept(arrived, bytes.data());
  }
  CHECK(error == Errc::protocol);
  CHECK(count == kMessageWindow / (kMaxMessage + kMessageOverhead) + 1);
}

TEST_CASE("more than the window of messages ends the connection") {
  Pipe pipe(10);
  Errc error = Errc::ok;
  for (int i = 0; i < 100 && error == Errc::ok; ++i) {
    std::string frame(sizeof(FrameHeader) + kMaxMessage, 0);
    encode({.type = FrameType::message, .length = kMaxMessage, .total = kMaxMessage},
           reinterpret_cast<std::byte*>(frame.data()));
    pipe.a.wire += frame;
    while (error == Errc::ok && !pipe.a.wire.empty()) error = pipe.receive(pipe.a, pipe.b);
  }
  CHECK(error == Errc::protocol);
  CHECK(pipe.b.receives.sizes().unexpected <= kMessageWindow / kMaxMessage);
}

TEST_CASE("damaged streams of messages break nothing") {
  for (unsigned seed = 1; seed <= 400; ++seed) {
    CAPTURE(seed);
    Pipe pipe(seed);
    std::list<Send> sends;
    std::list<Landing> landings;
    for (int i = 0; i < 12; ++i) {
      for (Side* side : {&pipe.a, &pipe.b}) {
        sends.emplace_back(Bytes(pipe.some_length(40'000)), pipe.random() % 2).probe.post(*side);
        if (pipe.random() % 2) side->receives.post(landings.emplace_back(20'000, 0, 1).receive);
      }
    }
    Errc error = Errc::ok;
    for (int turn = 0; turn < 200 && error == Errc::ok; ++turn) {
      pipe.send(pipe.a);
      pipe.send(pipe.b);
      for (Side* side : {&pipe.a, &pipe.b})
        if (!side->wire.empty() && pipe.random() % 8 == 0)
          side->wire[pipe.random() % std::min<std::size_t>(side->wire.size(), 96)] ^=
              static_cast<char>(1 << pipe.random() % 8);
      error = pipe.receive(pipe.a, pipe.b);
      if (error == Errc::ok) error = pipe.receive(pipe.b, pipe.a);
    }
    pipe.a.session.fail(Errc::protocol);
    pipe.b.session.fail(Errc::protocol);
    for (const Send& send : sends) REQUIRE(send.probe.done());
    pipe.a.receives.drop_all();
    pipe.b.receives.drop_all();
    for (const Landing& landing : landings) REQUIRE(landing.operation.done());
  }
}
