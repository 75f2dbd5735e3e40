#pragma once

#include <doctest/doctest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "fabric/domain/domain_core.h"
#include "fabric/session/frames/handshake.h"
#include "providers/tcp/provider.h"

namespace fab::test {

inline const Info& loopback() {
  static const Info info = tcp::make_tcp_provider()->discover().front();
  return info;
}

// A domain with one context, and a region of `size` bytes.
struct Node {
  using Keys = std::vector<AuthKeyRing::Key>;
  explicit Node(DomainOptions options = {}, std::size_t size = 1 << 20, Keys keys = {})
      : core(DomainCore::open(
            [](const DomainServices& services) {
              return tcp::make_tcp_provider()->open(loopback(), "tcp.0", services);
            },
            std::move(options))),
        completions(core->open_completion_queue(1024, CompletionQueue::WhenFull::forget_oldest)),
        context(core->open_context(
            0, {.number = core->contexts().next_endpoint_number(), .keys = std::move(keys)}, peers,
            completions, core->open_event_queue())),
        memory(size) {
    MemoryRegion::Parameters parameters;
    parameters.buffers = {{memory.data(), memory.size()}};
    parameters.access = access::kAll;
    region = core->register_memory(std::move(parameters));
  }
  ~Node() {
    core->contexts().close(*context);
    region->close({});
    core->close(true);
  }
  std::string name() const { return Name{context->parts()}.encode(); }
  SocketAddress listens_on() const { return EndpointAddress::parse(context->parts()[0].bytes)->addresses[0]; }

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
    operation.begin({.flags = completion_flag::kRma});
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

inline DomainOptions with(std::map<std::string, std::string> settings, double deadline = 10) {
  DomainOptions options;
  options.settings = std::move(settings);
  options.peer_deadline = deadline;
  return options;
}

inline DomainOptions keyed(const std::string& key) {
  DomainOptions options;
  options.auth_key = key;
  return options;
}

struct Remote {  // what a child process tells of itself
  std::string name;
  std::uint64_t key = 0;
};

inline void write_all(int fd, const void* data, std::size_t size) {
  const char* at = static_cast<const char*>(data);
  while (size) {
    const auto wrote = ::write(fd, at, size);
    if (wrote <= 0) return;
    at += wrote;
    size -= static_cast<std::size_t>(wrote);
  }
}

inline bool read_all(int fd, void* data, std::size_t size) {
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

}  // namespace fab::test
