#include <arpa/inet.h>
#include <doctest/doctest.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/wait.h>

#include <csignal>
#include <list>
#include <random>
#include <thread>

#include "base/interfaces.h"
#include "fabric/domain_core.h"
#include "providers/tcp/tcp_hello.h"
#include "providers/tcp/tcp_provider.h"

using namespace fab;

namespace {

const Info& loopback() {
  static const Info info = tcp::make_tcp_provider()->discover().front();
  return info;
}

// A domain with one context, and a region of `size` bytes.
struct Node {
  explicit Node(DomainOptions options = {}, std::size_t size = 1 << 20)
      : core(DomainCore::open(
            [](const DomainServices& services) {
              return tcp::make_tcp_provider()->open(loopback(), "tcp.0", services);
            },
            std::move(options))),
        completions(core->open_completion_queue(1024, CompletionQueue::WhenFull::forget_oldest)),
        context(core->open_context(0, peers, completions, core->open_event_queue())),
        memory(size) {
    MemoryRegion::Parameters parameters;
    parameters.buffers = {{memory.data(), memory.size()}};
    parameters.access = access::kAll;
    region = core->register_memory(parameters);
  }
  ~Node() {
    core->close_context(*context);
    region->close();
    core->close(true);
  }
  std::string name() const { return Name{context->parts()}.encode(); }

  std::shared_ptr<AddressVector> peers = std::make_shared<AddressVector>();
  std::shared_ptr<DomainCore> core;
  std::shared_ptr<CompletionQueue> completions;
  std::shared_ptr<Context> context;
  std::vector<std::byte> memory;
  std::shared_ptr<MemoryRegion> region;
};

// One operation of one transfer.
struct Call {
  Operation operation;
  Transfer transfer{};
  Call(OpCode op, std::uint64_t key, std::uint64_t remote, void* local, std::uint64_t length) {
    transfer.operation = &operation;
    transfer.op = op;
    transfer.key = key;
    transfer.remote = remote;
    transfer.local = static_cast<std::byte*>(local);
    transfer.length = length;
    transfer.delivery = Delivery::delivery;
    transfer.atomic = AtomicOp::sum;
    transfer.type = DataType::u64;
    operation.begin(1, 0, completion_flag::kRma, nullptr, nullptr, nullptr);
  }
  void start(Node& node, PeerId peer) {
    while (node.context->post(peer, {&transfer, 1}) == 0) node.context->progress();
  }
  Errc outcome(Node& node) {
    REQUIRE(node.context->wait([&] { return operation.done(); }, Deadline::in_seconds(30)));
    return operation.completion().error;
  }
  Errc run(Node& node, PeerId peer) {
    start(node, peer);
    return outcome(node);
  }
};

DomainOptions with(std::map<std::string, std::string> settings, double deadline = 10) {
  DomainOptions options;
  options.settings = std::move(settings);
  options.peer_deadline = deadline;
  return options;
}

DomainOptions keyed(const std::string& key) {
  DomainOptions options;
  options.auth_key = key;
  return options;
}

struct Remote {  // what a child process tells of itself
  std::string name;
  std::uint64_t key = 0;
};

void write_all(int fd, const void* data, std::size_t size) {
  const char* at = static_cast<const char*>(data);
  while (size) {
    const auto wrote = ::write(fd, at, size);
    if (wrote <= 0) return;
    at += wrote;
    size -= static_cast<std::size_t>(wrote);
  }
}

bool read_all(int fd, void* data, std::size_t size) {
  char* at = static_cast<char*>(data);
  while (size) {
    const auto got = ::read(fd, at, size);
    if (got <= 0) return false;
    at += got;
    size -= static_cast<std::size_t>(got);
  }
  return true;
}

// A target in a process of its own, which lives until it is told to end. Threads do not survive a fork, so it
// starts as a fresh copy of this program.
class Target {
 public:
  explicit Target(const std::string& port = "0") {
    int to[2], from[2];
    REQUIRE(::pipe(to) == 0);
    REQUIRE(::pipe(from) == 0);
    pid_ = ::fork();
    if (pid_ == 0) {
      ::dup2(to[0], 0);
      ::dup2(from[1], 1);
      for (const int fd : {to[0], to[1], from[0], from[1]}) ::close(fd);
      ::execl("/proc/self/exe", "target", "--test-case=target process", "--no-skip", "--minimal=false",
              nullptr);
      ::_exit(1);
    }
    ::close(to[0]);
    ::close(from[1]);
    in_ = to[1];
    out_ = from[0];
    write_all(in_, (port + "\n").data(), port.size() + 1);
    std::uint64_t magic = 0, size = 0;
    for (char c; magic != kMagic;) {  // skips what the test runner prints first
      REQUIRE(read_all(out_, &c, 1));
      magic = magic >> 8 | static_cast<std::uint64_t>(static_cast<unsigned char>(c)) << 56;
    }
    REQUIRE(read_all(out_, &size, sizeof size));
    remote_.name.resize(size);
    REQUIRE(read_all(out_, remote_.name.data(), size));
    REQUIRE(read_all(out_, &remote_.key, sizeof remote_.key));
  }
  ~Target() {
    ::close(in_);  // the end of its input ends it
    ::close(out_);
    ::kill(pid_, SIGCONT);
    ::waitpid(pid_, nullptr, 0);
  }
  void signal(int number) { ::kill(pid_, number); }
  const Remote& remote() const { return remote_; }
  static constexpr std::uint64_t kMagic = 0x7465677261743a21;

 private:
  pid_t pid_;
  int in_, out_;
  Remote remote_;
};

}  // namespace

TEST_CASE("target process" * doctest::skip()) {
  std::string port;
  for (char c; read_all(0, &c, 1) && c != '\n';) port += c;
  Node node(with({{"tcp_port", port}}, 5), 64 << 20);
  const std::string name = node.name();
  const std::uint64_t size = name.size(), key = node.region->key();
  write_all(1, &Target::kMagic, 8);
  write_all(1, &size, 8);
  write_all(1, name.data(), size);
  write_all(1, &key, 8);
  char c;
  while (read_all(0, &c, 1)) {
  }
}

TEST_CASE("put, get and atomics between two domains") {
  Node a, b;
  const PeerId peer = a.peers->insert(b.name());
  const std::uint64_t key = b.region->remote().key;
  CHECK(a.context->reaches(peer).ok);
  std::mt19937 random(1);
  for (const std::size_t length : {0u, 1u, 7u, 8u, 255u, 256u, 257u, 4096u, 65'536u, 1'000'000u}) {
    CAPTURE(length);
    std::vector<std::byte> out(length), back(length + 1);
    for (auto& byte : out) byte = static_cast<std::byte>(random());
    Call put(OpCode::write, key, 17, out.data(), length), get(OpCode::read, key, 17, back.data(), length);
    REQUIRE(put.run(a, peer) == Errc::ok);
    CHECK(std::equal(out.begin(), out.end(), b.memory.begin() + 17));
    REQUIRE(get.run(a, peer) == Errc::ok);
    CHECK(std::equal(out.begin(), out.end(), back.begin()));
  }
  std::uint64_t one = 1, former = 99;
  // Under the lock, for the thread sanitizer: it does not see that an answer on the socket orders things as
  // well.
  b.context->locked([&](Endpoint&) { std::fill(b.memory.begin(), b.memory.end(), std::byte{0}); });
  for (std::uint64_t i = 0; i < 100; ++i) {
    Call add(OpCode::fetch_atomic, key, 64, &one, 8);
    add.transfer.result = reinterpret_cast<std::byte*>(&former);
    REQUIRE(add.run(a, peer) == Errc::ok);
    CHECK(former == i);
  }
  Call refused(OpCode::write, key + 1, 0, &one, 8), beyond(OpCode::read, key, 1 << 20, &one, 8);
  CHECK(refused.run(a, peer) == Errc::key_rejected);
  CHECK(beyond.run(a, peer) == Errc::bounds);
  CHECK(a.context->counts(peer).errors == 2);
  CHECK(a.context->report(peer).link == "tcp.0");
  CHECK(a.context->report(peer).how.starts_with("127.0.0.1:"));
}

TEST_CASE("an endpoint talks to itself") {
  Node a;
  const PeerId self = a.peers->insert(a.name());
  std::uint64_t value = 7, back = 0;
  for (int i = 0; i < 10; ++i) {
    Call put(OpCode::write, a.region->key(), 80, &value, 8), get(OpCode::read, a.region->key(), 80, &back, 8);
    REQUIRE(put.run(a, self) == Errc::ok);
    REQUIRE(get.run(a, self) == Errc::ok);
    CHECK(back == 7);
  }
}

TEST_CASE("remote data names its sender as soon as the address vector knows it") {
  Node a, b;
  const PeerId to_b = a.peers->insert(b.name());
  const auto received = [&] {
    Completion entry;
    REQUIRE(b.core->wait([&] { return !b.completions->empty(); }, Deadline::in_seconds(10)));
    REQUIRE(b.completions->read({&entry, 1}) == 1);
    return entry;
  };
  std::uint64_t value = 1;
  const auto put = [&](std::uint64_t data) {
    Call call(OpCode::write, b.region->key(), 0, &value, 8);
    call.transfer.flags = transfer_flag::kRemoteData;
    call.transfer.data = data;
    REQUIRE(call.run(a, to_b) == Errc::ok);
  };
  put(11);
  Completion entry = received();
  CHECK(entry.data == 11);
  CHECK(entry.source == kNoPeer);
  const PeerId stranger = b.peers->insert(Node().name());
  const PeerId to_a = b.peers->insert(a.name());
  put(12);
  CHECK(received().source == to_a);
  b.peers->remove(to_a);
  put(13);
  CHECK(received().source == kNoPeer);
  b.peers->remove(stranger);
}

TEST_CASE("many operations, posted without waiting, from several threads") {
  Node a, b;
  const PeerId peer = a.peers->insert(b.name());
  const std::uint64_t key = b.region->key();
  std::vector<std::thread> threads;
  for (int t = 0; t < 3; ++t)
    threads.emplace_back([&] {
      std::uint64_t one = 1;
      std::list<Call> calls;
      for (int i = 0; i < 5000; ++i) calls.emplace_back(OpCode::atomic, key, 128, &one, 8).start(a, peer);
      for (Call& call : calls) CHECK(call.outcome(a) == Errc::ok);
    });
  for (auto& thread : threads) thread.join();
  std::uint64_t sum = 0, nothing = 0;
  Call look(OpCode::fetch_atomic, key, 128, &nothing, 8);
  look.transfer.result = reinterpret_cast<std::byte*>(&sum);
  REQUIRE(look.run(a, peer) == Errc::ok);
  CHECK(sum == 15'000);
}

TEST_CASE("crossing calls end in one stream that carries both directions") {
  for (int round = 0; round < 60; ++round) {
    CAPTURE(round);
    Node a({}, 4096), b({}, 4096);
    const PeerId to_b = a.peers->insert(b.name()), to_a = b.peers->insert(a.name());
    std::atomic<int> ready{0};
    const auto talk = [&](Node& from, PeerId peer, std::uint64_t key, std::uint64_t value) {
      std::list<Call> calls;
      std::vector<std::uint64_t> values(50, value);
      ready.fetch_add(1);
      while (ready.load() != 2) {
      }
      for (std::size_t i = 0; i < values.size(); ++i)
        calls.emplace_back(OpCode::write, key, i * 8, &values[i], 8).start(from, peer);
      for (Call& call : calls) CHECK(call.outcome(from) == Errc::ok);
    };
    std::thread other([&] { talk(b, to_a, a.region->key(), 2); });
    talk(a, to_b, b.region->key(), 1);
    other.join();
    CHECK(a.memory[8 * 49] == std::byte{2});
    CHECK(b.memory[8 * 49] == std::byte{1});
    CHECK(a.context->counts(to_b).settled == 50);
    CHECK(b.context->counts(to_a).settled == 50);
    // One connection: each end's address is the other's peer.
    const std::string how_a = a.context->report(to_b).how, how_b = b.context->report(to_a).how;
    const bool a_called = Name::decode(b.name()).parts[0].bytes.size() > 0 && how_a != how_b;
    CHECK(a_called);
  }
}

TEST_CASE("who lacks the key is refused, and nothing moves") {
  Node locked(keyed("secret")), same(keyed("secret")), other(keyed("wrong")), open;
  std::uint64_t value = 5;
  const auto attempt = [&](Node& from, Node& to) {
    Call put(OpCode::write, to.region->key(), 0, &value, 8);
    return put.run(from, from.peers->insert(to.name()));
  };
  CHECK(attempt(same, locked) == Errc::ok);
  CHECK(attempt(other, locked) == Errc::key_rejected);
  CHECK(attempt(open, locked) == Errc::key_rejected);
  CHECK(attempt(locked, open) == Errc::key_rejected);
  CHECK(attempt(locked, other) == Errc::key_rejected);
  CHECK(attempt(locked, same) == Errc::ok);
  CHECK(open.memory[0] == std::byte{0});
  CHECK(other.memory[0] == std::byte{0});
}

TEST_CASE("a port in use is refused by name") {
  Node first;
  const auto where = tcp::Whereabouts::parse(first.context->parts()[0].bytes);
  REQUIRE(where);
  const auto port = std::to_string(where->addresses[0].port());
  try {
    Node second(with({{"tcp_port", port}}));
    FAIL("it listened");
  } catch (const Error& error) {
    CHECK(error.code() == Errc::address_in_use);
    CHECK(std::string(error.what()).find("127.0.0.1:" + port) != std::string::npos);
  }
  for (const char* bad : {"x", "70000", "-1", ""}) CHECK_THROWS_AS(Node(with({{"tcp_port", bad}})), Error);
  for (const char* bad : {"127.0.0.1:x", "[::1", "203.0.113.7"})
    CHECK_THROWS_AS(Node(with({{"tcp_listen", bad}})), Error);
}

TEST_CASE("nobody there: the operations fail as unreachable") {
  Node a;
  std::string name;
  {
    Node gone;
    name = gone.name();
  }
  const PeerId peer = a.peers->insert(name);
  std::uint64_t value = 1;
  Call put(OpCode::write, 1, 0, &value, 8);
  CHECK(put.run(a, peer) == Errc::unreachable);
}

TEST_CASE("another endpoint under the same port is not taken for the peer") {
  Node a, b;
  auto part = b.context->parts()[0];
  auto where = tcp::Whereabouts::parse(part.bytes);
  where->id[3] ^= 1;
  part.bytes = where->encode();
  const PeerId peer = a.peers->insert(Name{{part}}.encode());
  std::uint64_t value = 1;
  Call put(OpCode::write, b.region->key(), 0, &value, 8);
  CHECK(put.run(a, peer) == Errc::unreachable);
}

TEST_CASE("loopback addresses of another host do not count as reachable") {
  Node a, b;
  auto part = b.context->parts()[0];
  auto where = tcp::Whereabouts::parse(part.bytes);
  where->network[0] ^= 1;
  part.bytes = where->encode();
  const Reach reach = a.context->reaches(a.peers->insert(Name{{part}}.encode()));
  CHECK_FALSE(reach.ok);
  CHECK(reach.why.find("loopback") != std::string::npos);
  part.link = "tcp.1";
  CHECK(a.context->reaches(a.peers->insert(Name{{part}}.encode())).why.find("tcp.0") != std::string::npos);
}

TEST_CASE("strangers who talk nonsense, or nothing, disturb nobody") {
  Node a, b(with({}, 1));
  const auto where = tcp::Whereabouts::parse(b.context->parts()[0].bytes);
  std::mt19937 random(5);
  std::vector<OwnFd> strangers;
  for (int i = 0; i < 40; ++i) {
    OwnFd socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    REQUIRE(::connect(socket.get(), where->addresses[0].get(), where->addresses[0].length()) == 0);
    std::string noise(1 + random() % 5000, '\0');
    for (char& c : noise) c = static_cast<char>(random());
    if (i % 2)
      noise.replace(0, std::min<std::size_t>(noise.size(), 8),
                    std::string("pft1\1\0\1\0", 8).substr(0, noise.size()));
    if (i % 4) [[maybe_unused]]
      const auto sent = ::send(socket.get(), noise.data(), noise.size(), MSG_NOSIGNAL);
    strangers.push_back(std::move(socket));
  }
  std::uint64_t value = 3;
  Call put(OpCode::write, b.region->key(), 0, &value, 8);
  CHECK(put.run(a, a.peers->insert(b.name())) == Errc::ok);
  // At its deadline, every one of them is cut off.
  for (const OwnFd& socket : strangers) {
    pollfd poll{.fd = socket.get(), .events = POLLIN, .revents = 0};
    CHECK(::poll(&poll, 1, 10'000) == 1);
    char rest[256];
    ssize_t got;
    while ((got = ::recv(socket.get(), rest, sizeof rest, 0)) > 0) {
    }
    CHECK(got <= 0);
  }
}

TEST_CASE("a peer that breaks the protocol after the handshake is cut off, and others go on") {
  Node a, b;
  const auto where = *tcp::Whereabouts::parse(b.context->parts()[0].bytes);
  OwnFd socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  REQUIRE(::connect(socket.get(), where.addresses[0].get(), where.addresses[0].length()) == 0);
  tcp::Hello hello;
  hello.from.fill(9);
  hello.to = where.id;
  hello.stream = 1;
  tcp::Whereabouts own{.id = hello.from, .network = {}, .addresses = where.addresses};
  hello.part = {"tcp.0", 0, own.encode()};
  const std::string text = hello.encode() + std::string(48, '\x7f');
  REQUIRE(::send(socket.get(), text.data(), text.size(), 0) == static_cast<ssize_t>(text.size()));
  std::string got;
  char bytes[512];
  for (ssize_t n; (n = ::recv(socket.get(), bytes, sizeof bytes, 0)) > 0;)
    got.append(bytes, static_cast<std::size_t>(n));
  REQUIRE(got.size() >= tcp::kHelloHeader);
  CHECK(tcp::HelloHeader::parse(got.substr(0, tcp::kHelloHeader))->type == tcp::HelloType::welcome);
  std::uint64_t value = 3;
  Call put(OpCode::write, b.region->key(), 0, &value, 8);
  CHECK(put.run(a, a.peers->insert(b.name())) == Errc::ok);
}

TEST_CASE("a killed target ends what is outstanding to it, and nothing else") {
  Node a(with({}, 3)), healthy;
  Target target;
  const PeerId peer = a.peers->insert(target.remote().name), other = a.peers->insert(healthy.name());
  std::vector<std::byte> data(32 << 20);
  Call first(OpCode::write, target.remote().key, 0, data.data(), 8);
  REQUIRE(first.run(a, peer) == Errc::ok);
  std::list<Call> calls;
  for (int i = 0; i < 4; ++i)
    calls.emplace_back(OpCode::write, target.remote().key, 0, data.data(), data.size());
  calls.emplace_back(OpCode::write, target.remote().key, 0, data.data(), 8).transfer.delivery =
      Delivery::inject;
  for (Call& call : calls) call.start(a, peer);
  target.signal(SIGKILL);
  int lost = 0;
  for (Call& call : calls) lost += call.outcome(a) == Errc::peer_lost;
  CHECK(lost >= 1);
  Call again(OpCode::write, target.remote().key, 0, data.data(), 8);
  CHECK(again.run(a, peer) == Errc::unreachable);
  Call put(OpCode::write, healthy.region->key(), 0, data.data(), 1000);
  CHECK(put.run(a, other) == Errc::ok);
}

TEST_CASE("a stopped target counts as lost at the deadline, a slow but living one does not") {
  Node a(with({}, 1));
  Target target;
  const PeerId peer = a.peers->insert(target.remote().name);
  std::vector<std::byte> data(64 << 20);
  Call first(OpCode::write, target.remote().key, 0, data.data(), data.size());
  REQUIRE(first.run(a, peer) == Errc::ok);
  target.signal(SIGSTOP);
  Call put(OpCode::write, target.remote().key, 0, data.data(), data.size());
  CHECK(put.run(a, peer) == Errc::peer_lost);
  target.signal(SIGCONT);
  Call again(OpCode::write, target.remote().key, 0, data.data(), 8);
  CHECK(again.run(a, peer) == Errc::ok);
}

TEST_CASE("a target that comes back under its port is used again by the same name") {
  Node a(with({}, 2));
  std::string port;
  {
    Node probe;
    port = std::to_string(tcp::Whereabouts::parse(probe.context->parts()[0].bytes)->addresses[0].port());
  }
  std::uint64_t value = 1;
  auto target = std::make_unique<Target>(port);
  const std::string name = target->remote().name;
  const PeerId peer = a.peers->insert(name);
  Call put(OpCode::write, target->remote().key, 0, &value, 8);
  REQUIRE(put.run(a, peer) == Errc::ok);
  target->signal(SIGKILL);
  target.reset();
  target = std::make_unique<Target>(port);
  CHECK(target->remote().name == name);
  Errc outcome;
  do {  // until the loss was noticed
    Call again(OpCode::write, target->remote().key, 0, &value, 8);
    outcome = again.run(a, peer);
  } while (outcome == Errc::peer_lost);
  CHECK(outcome == Errc::ok);
}

TEST_CASE("sending from memory that is not there fails that operation only") {
  Node a, b;
  void* hole = ::mmap(nullptr, 1 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  REQUIRE(hole != MAP_FAILED);
  MemoryRegion::Parameters parameters;
  parameters.buffers = {{hole, 1 << 20}};
  parameters.access = access::kAll;
  const auto region = b.core->register_memory(parameters);
  const PeerId peer = a.peers->insert(b.name());
  ::mprotect(hole, 1 << 20, PROT_NONE);
  std::vector<std::byte> local(1 << 20);
  Call get(OpCode::read, region->key(), 0, local.data(), local.size());
  CHECK(get.run(a, peer) == Errc::bounds);
  Call from_hole(OpCode::write, b.region->key(), 0, hole, 1 << 20);
  CHECK(from_hole.run(a, peer) == Errc::bounds);
  Call good(OpCode::write, b.region->key(), 0, local.data(), local.size());
  CHECK(good.run(a, peer) == Errc::ok);
  region->close();
  ::munmap(hole, 1 << 20);
}

TEST_CASE("closing a region under load: not a byte afterwards") {
  Node a, b;
  const PeerId peer = a.peers->insert(b.name());
  for (int round = 0; round < 30; ++round) {
    std::vector<std::byte> memory(2 << 20);
    MemoryRegion::Parameters parameters;
    parameters.buffers = {{memory.data(), memory.size()}};
    parameters.access = access::kAll;
    const auto region = b.core->register_memory(parameters);
    std::vector<std::byte> ones(memory.size(), std::byte{1});
    std::list<Call> calls;
    for (int i = 0; i < 6; ++i)
      calls.emplace_back(i % 2 ? OpCode::read : OpCode::write, region->key(), 0, ones.data(), ones.size())
          .start(a, peer);
    Call small(OpCode::write, b.region->key(), 0, ones.data(), 8);
    if (round % 2) REQUIRE(small.run(a, peer) == Errc::ok);
    region->close();
    std::fill(memory.begin(), memory.end(), std::byte{0});
    for (Call& call : calls) {
      const Errc error = call.outcome(a);
      CHECK((error == Errc::ok || error == Errc::key_rejected));
    }
    CHECK(std::count(memory.begin(), memory.end(), std::byte{1}) == 0);
  }
}

TEST_CASE("parsers of names and handshakes take any bytes") {
  std::mt19937 random(77);
  tcp::Whereabouts where{.id = {1, 2, 3}, .network = tcp::this_network(), .addresses = {}};
  where.addresses = {parse_socket_address("127.0.0.1", 4711), parse_socket_address("[::1]:80", 0)};
  tcp::Hello hello;
  hello.from = where.id;
  hello.stream = 5;
  hello.part = {"tcp.0", 3, where.encode()};
  const std::string part = where.encode(), body = hello.encode().substr(tcp::kHelloHeader);
  REQUIRE(tcp::Whereabouts::parse(part));
  CHECK(tcp::Whereabouts::parse(part)->addresses[1].text() == "[::1]:80");
  CHECK(tcp::Whereabouts::parse(part)->encode() == part);
  REQUIRE(tcp::Hello::parse(body));
  CHECK(tcp::Hello::parse(body)->encode() == hello.encode());
  for (std::size_t cut = 0; cut < part.size(); ++cut)
    CHECK_FALSE(tcp::Whereabouts::parse(part.substr(0, cut)));
  for (std::size_t cut = 0; cut < body.size(); ++cut) CHECK_FALSE(tcp::Hello::parse(body.substr(0, cut)));
  for (int i = 0; i < 100'000; ++i) {
    std::string mutated = i % 2 ? part : body;
    for (auto changes = random() % 4 + 1; changes; --changes)
      mutated[random() % mutated.size()] = static_cast<char>(random());
    if (const auto parsed = tcp::Whereabouts::parse(mutated)) CHECK(parsed->encode() == mutated);
    if (const auto parsed = tcp::Hello::parse(mutated))
      CHECK(parsed->encode().substr(tcp::kHelloHeader) == mutated);
    tcp::HelloHeader::parse(mutated.substr(0, 12));
    tcp::Welcome::parse(mutated);
    tcp::parse_refuse(mutated.substr(0, 4));
  }
}
