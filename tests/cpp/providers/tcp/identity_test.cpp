#include <doctest/doctest.h>
#include <sys/resource.h>

#include <optional>

#include "base/crypto/stretched_key.h"
#include "fabric/session/frames/frame.h"
#include "providers/tcp/harness.h"

// Who is at the other end of a stream, and what that end is let do.

using namespace fab;
using namespace fab::test;

namespace {

// An endpoint that is spoken for by hand, over its own sockets.
struct ByHand {
  explicit ByHand(bool bound = true) {
    identity.keys = &keys;
    identity.by_address = true;
    identity.take_id(bound ? KeyPair::make() : nullptr, "tcp.0", 0, EndpointId{0, 0, 0, 1});
    identity.part.bytes = where().encode();
  }
  EndpointAddress where() const {
    return {.id = identity.id,
            .kind = identity.kind,
            .network = this_network(),
            .addresses = {local_address(listener.get())}};
  }
  std::string name() const { return Name{{identity.part}}.encode(); }
  OwnFd accept() const {
    OwnFd call;
    while (!call.valid()) call = OwnFd(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
    return call;
  }
  AuthKeys keys{1};
  OwnFd listener = listen_tcp(parse_socket_address("127.0.0.1", 0));
  Identity identity;
};

EndpointAddress place_of(const Node& node) { return *EndpointAddress::parse(node.context->parts()[0].bytes); }

void say(const OwnFd& socket, const std::string& text) {
  REQUIRE(::send(socket.get(), text.data(), text.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(text.size()));
}

std::string hear(const OwnFd& socket) {
  std::string message(kHelloHeader, '\0');
  if (!read_all(socket.get(), message.data(), message.size())) return {};
  const auto parsed = HelloHeader::parse(message);
  REQUIRE(parsed);
  message.resize(kHelloHeader + parsed->length);
  REQUIRE(read_all(socket.get(), message.data() + kHelloHeader, parsed->length));
  return message;
}

// A domain on a port of the user's choice, whose id is its address.
DomainOptions at_a_port() {
  const OwnFd probe = listen_tcp(parse_socket_address("127.0.0.1", 0));
  return with({{"tcp_port", std::to_string(local_address(probe.get()).port())}});
}

OwnFd call_to(const Node& node) {
  const SocketAddress address = node.listens_on();
  OwnFd socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  REQUIRE(::connect(socket.get(), address.get(), address.length()) == 0);
  return socket;
}

// The whole handshake, by the caller; its outcome.
Errc shake(const OwnFd& socket, CallerHandshake& caller) {
  say(socket, caller.hello());
  while (!caller.done()) {
    const std::string message = hear(socket);
    if (message.empty()) return Errc::peer_lost;
    const auto step = caller.receive(message);
    if (step.error != Errc::ok) return step.error;
    if (!step.answer.empty()) say(socket, step.answer);
  }
  return Errc::ok;
}

}  // namespace

TEST_CASE("a call that the peer's own has made needless ends without touching what that one began") {
  DomainOptions options;
  options.manual_progress = true;  // what the peer does between two turns is looked at in one
  Node a(std::move(options));
  std::optional<ByHand> b(std::in_place);  // with the smaller id, so that its call goes first
  while (b->identity.id >= place_of(a).id) b.emplace();

  std::uint64_t value = 1;
  Call put(OpCode::write, a.region->key(), 0, &value, 8);
  put.start(a, a.peers->insert(b->name()));
  OwnFd needless = b->accept();
  char byte;
  while (::recv(needless.get(), &byte, 1, MSG_DONTWAIT | MSG_PEEK) != 1) a.context->progress();

  OwnFd call = call_to(a);
  CallerHandshake caller(b->identity, 0, place_of(a), 1);
  say(call, caller.hello());
  while (::recv(call.get(), &byte, 1, MSG_DONTWAIT | MSG_PEEK) != 1) a.context->progress();
  say(call, caller.receive(hear(call)).answer);
  while (a.context->progress()) {
  }
  needless.reset();
  a.context->progress();
  CHECK_FALSE(put.operation.done());
  call.reset();
  CHECK(put.outcome(a) == Errc::peer_lost);
}

TEST_CASE("a caller proves its key once, however often it is asked") {
  Node a(keyed("secret"));
  ByHand b(false);
  std::uint64_t value = 1;
  Call put(OpCode::write, a.region->key(), 0, &value, 8);
  put.start(a, a.peers->insert(b.name()));
  const OwnFd call = b.accept();
  say(call, Challenge{.id = b.identity.id}.encode() + Challenge{.id = b.identity.id}.encode());
  CHECK(put.outcome(a) == Errc::protocol);
  unsigned proofs = 0;
  for (std::string message = hear(call); !message.empty(); message = hear(call))
    proofs += HelloHeader::parse(message.substr(0, kHelloHeader))->type == HelloType::proof;
  CHECK(proofs == 1);
}

TEST_CASE("who has not proven an id serves only itself, and is nobody") {
  Node a, b;
  const PeerId to_a = b.peers->insert(a.name());
  std::uint64_t value = 7;
  const auto put = [&] {
    Call call(OpCode::write, a.region->key(), 0, &value, 8);
    return call.run(b, to_a);
  };
  // Under the id of A, as if that were an address.
  ByHand stranger(false);
  stranger.identity.id = place_of(a).id;
  stranger.identity.part.bytes = stranger.where().encode();
  const auto claim = [&] {
    CallerHandshake caller(stranger.identity, 0, place_of(b), 1);
    OwnFd socket = call_to(b);
    CHECK(shake(socket, caller) == Errc::ok);
    return socket;
  };
  const OwnFd before = claim();
  CHECK(put() == Errc::ok);  // and goes to A
  CHECK(a.memory[0] == std::byte{7});
  const OwnFd after = claim();
  a.memory[0] = std::byte{0};
  CHECK(put() == Errc::ok);
  CHECK(a.memory[0] == std::byte{7});
  char byte;
  for (const OwnFd* socket : {&before, &after})
    CHECK(::recv(socket->get(), &byte, 1, MSG_DONTWAIT | MSG_PEEK) < 0);  // nothing came, and both stay
}

TEST_CASE("who calls with the public key of another endpoint is refused") {
  Node a, b;
  ByHand stranger;
  const PeerId to_a = b.peers->insert(a.name());
  CallerHandshake caller(stranger.identity, 0, place_of(b), 1);
  std::string hello = caller.hello();
  hello[kHelloHeader + 12] = static_cast<char>(hello[kHelloHeader + 12] ^ 1);  // another id
  const OwnFd socket = call_to(b);
  say(socket, hello);
  CHECK(hear(socket).empty());
  std::uint64_t value = 7;
  Call put(OpCode::write, a.region->key(), 0, &value, 8);
  CHECK(put.run(b, to_a) == Errc::ok);
}

TEST_CASE("a stranger that listens where a peer was gets nothing, neither the put nor a proof") {
  Node a(keyed("secret"));
  ByHand gone, stranger;
  EndpointAddress where = stranger.where();
  where.id = gone.identity.id;
  Part part = gone.identity.part;
  part.bytes = where.encode();
  std::uint64_t value = 1;
  Call put(OpCode::write, a.region->key(), 0, &value, 8);
  put.start(a, a.peers->insert(Name{{part}}.encode()));
  const OwnFd call = stranger.accept();
  CHECK(HelloHeader::parse(hear(call).substr(0, kHelloHeader))->type == HelloType::hello);
  Errc expected = Errc::unreachable;
  Challenge challenge{.id = stranger.identity.id};
  SUBCASE("as itself") {}
  SUBCASE("as the peer") {
    challenge.id = gone.identity.id;
    expected = Errc::key_rejected;
  }
  SUBCASE("as the peer, with the public key of the peer") {
    challenge = {.id = gone.identity.id, .binding = gone.identity.binding, .link = "tcp.0"};
    expected = Errc::key_rejected;
  }
  say(call, challenge.encode());
  CHECK(put.outcome(a) == expected);
  CHECK(hear(call).empty());
}

TEST_CASE("endpoints whose ids are addresses have a stream for each direction") {
  Node a(at_a_port()), b;
  const PeerId to_b = a.peers->insert(b.name()), to_a = b.peers->insert(a.name());
  std::uint64_t value = 7;
  for (int round = 0; round < 3; ++round) {
    Call out(OpCode::write, b.region->key(), 0, &value, 8),
        back(OpCode::write, a.region->key(), 0, &value, 8);
    CHECK(out.run(a, to_b) == Errc::ok);
    CHECK(back.run(b, to_a) == Errc::ok);
  }
  CHECK(a.context->report(to_b).how == b.listens_on().text());
  CHECK(b.context->report(to_a).how == a.listens_on().text());
}

TEST_CASE("an endpoint whose id is an address uses the stream of a caller that has proven its own") {
  Node a(at_a_port()), b;
  const PeerId to_b = a.peers->insert(b.name()), to_a = b.peers->insert(a.name());
  std::uint64_t value = 7;
  Call out(OpCode::write, a.region->key(), 0, &value, 8), back(OpCode::write, b.region->key(), 0, &value, 8);
  CHECK(out.run(b, to_a) == Errc::ok);
  CHECK(back.run(a, to_b) == Errc::ok);
  CHECK(b.context->report(to_a).how == a.listens_on().text());
  CHECK(a.context->report(to_b).how != b.listens_on().text());
}

TEST_CASE("a caller whose id is an address replaces what it began itself, and nothing else") {
  Node b;
  ByHand a(false), stranger(false);
  const auto pair = KeyPair::make();
  a.identity.show(pair);
  stranger.identity.show(KeyPair::make());
  const auto enter = [&](const ByHand& from, std::uint64_t number) {
    OwnFd socket = call_to(b);
    CallerHandshake caller(from.identity, 0, place_of(b), number);
    CHECK(shake(socket, caller) == Errc::ok);
    return socket;
  };
  const OwnFd first = enter(a, 1), other = enter(stranger, 1), second = enter(a, 2);
  CHECK(hear(first).empty());  // what it has sent there before comes no more, after what it sends now
  char byte;
  for (const OwnFd* socket : {&other, &second})
    CHECK(::recv(socket->get(), &byte, 1, MSG_DONTWAIT | MSG_PEEK) < 0);
}

TEST_CASE("a made-up name with the id of a peer leads to no stream of that peer") {
  Node b;
  std::uint64_t value = 1;
  Call lured(OpCode::write, b.region->key(), 0, &value, 8);
  Node a;
  ByHand stranger(false);
  EndpointAddress crafted = stranger.where();
  crafted.id = place_of(b).id;
  stranger.identity.id = crafted.id;
  Part part = stranger.identity.part;
  part.bytes = crafted.encode();
  lured.start(a, a.peers->insert(Name{{part}}.encode()));
  const OwnFd call = stranger.accept();
  AcceptorHandshake called(stranger.identity, place_of(local_address(call.get())));
  say(call, called.receive(hear(call)).answer);
  called.receive(hear(call));
  say(call, called.welcome(5));
  Call put(OpCode::write, b.region->key(), 0, &value, 8);
  CHECK(put.run(a, a.peers->insert(b.name())) == Errc::ok);
  CHECK(b.memory[0] == std::byte{1});
}

TEST_CASE("a peer of another version is named with what both speak, and called again after that") {
  Node a;
  ByHand b;
  std::uint64_t value = 1;
  const PeerId peer = a.peers->insert(b.name());
  for (int round = 0; round < 2; ++round) {
    Call put(OpCode::write, a.region->key(), 0, &value, 8),
        again(OpCode::write, a.region->key(), 0, &value, 8);
    put.start(a, peer);
    const OwnFd call = b.accept();
    say(call, Refusal{.reason = Errc::not_supported, .versions = {.lowest = 4, .highest = 5}}.encode());
    CHECK(put.outcome(a) == Errc::not_supported);
    try {
      again.start(a, peer);
      FAIL("it was called");
    } catch (const Error& error) {
      CHECK(error.code() == Errc::not_supported);
      CHECK(std::string(error.what())
                .find("versions 3-3, the peer at " + b.where().addresses[0].text() + " 4-5") !=
            std::string::npos);
    }
  }
}

TEST_CASE("a notice over a network link ends the stream") {
  Node a;
  ByHand stranger;
  CallerHandshake caller(stranger.identity, 0, place_of(a), 1);
  const OwnFd socket = call_to(a);
  REQUIRE(shake(socket, caller) == Errc::ok);
  std::byte notice[kHeaderBytes];
  encode({.type = FrameType::notify, .key = a.region->key(), .total = 8, .data = 5}, notice);
  say(socket, {reinterpret_cast<const char*>(notice), sizeof notice});
  CHECK(hear(socket).empty());
  CHECK(a.completions->empty());
}

TEST_CASE("a proof under any of the keys is answered by one under the same") {
  Node target({}, 64, {{"first", 1}, {"second", 2}});
  ByHand peer;
  for (const std::string secret : {"first", "second", "third"}) {
    CAPTURE(secret);
    peer.keys[0].secret = stretched_key(secret);
    CallerHandshake caller(peer.identity, 0, place_of(target), 1);
    CHECK(shake(call_to(target), caller) == (secret == "third" ? Errc::key_rejected : Errc::ok));
  }
}

TEST_CASE("a caller that comes back takes the place of its own stream, and of nobody else") {
  rlimit before{};
  REQUIRE(::getrlimit(RLIMIT_NOFILE, &before) == 0);
  rlimit few = before;
  few.rlim_cur = 400;  // for 150 streams from loopback, both ends of which are here
  REQUIRE(::setrlimit(RLIMIT_NOFILE, &few) == 0);
  {
    Node a;
    std::vector<OwnFd> streams;
    std::vector<std::unique_ptr<ByHand>> callers;
    for (std::size_t i = 0; i < 150; ++i) {
      callers.push_back(std::make_unique<ByHand>());
      callers.back()->listener.reset();
      CallerHandshake caller(callers.back()->identity, 0, place_of(a), 1);
      streams.push_back(call_to(a));
      REQUIRE(shake(streams.back(), caller) == Errc::ok);
    }
    CallerHandshake again(callers.back()->identity, 0, place_of(a), 2);
    const OwnFd back = call_to(a);
    REQUIRE(shake(back, again) == Errc::ok);
    char byte;
    CHECK(::recv(streams.back().get(), &byte, 1, 0) == 0);
    for (std::size_t i = 0; i + 1 < streams.size(); ++i)
      REQUIRE(::recv(streams[i].get(), &byte, 1, MSG_DONTWAIT | MSG_PEEK) < 0);
  }
  REQUIRE(::setrlimit(RLIMIT_NOFILE, &before) == 0);
}
