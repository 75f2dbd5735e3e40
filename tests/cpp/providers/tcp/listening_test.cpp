// Where an endpoint listens, and what becomes of it where it cannot, or not any more.
#include <doctest/doctest.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <exception>
#include <fstream>
#include <optional>

#include "base/crypto/tls_kernel.h"
#include "providers/tcp/harness.h"

using namespace fab;
using namespace fab::test;

namespace {

// How many more descriptors this process may have.
class FewDescriptors {
 public:
  explicit FewDescriptors(rlim_t more) {
    REQUIRE(::getrlimit(RLIMIT_NOFILE, &usual_) == 0);
    // Those below the lowest free number are taken, and there may be others behind it.
    const int lowest = ::dup(0);
    REQUIRE(lowest >= 0);
    ::close(lowest);
    rlimit few = usual_;
    few.rlim_cur = static_cast<rlim_t>(lowest) + more;
    REQUIRE(::setrlimit(RLIMIT_NOFILE, &few) == 0);
  }
  ~FewDescriptors() { ::setrlimit(RLIMIT_NOFILE, &usual_); }
  FewDescriptors(const FewDescriptors&) = delete;
  FewDescriptors& operator=(const FewDescriptors&) = delete;

 private:
  rlimit usual_{};
};

// This thread has the rights of a user, where it has those of root.
class WithoutRights {
 public:
  WithoutRights() { set(65534); }
  ~WithoutRights() { set(was_); }
  WithoutRights(const WithoutRights&) = delete;
  WithoutRights& operator=(const WithoutRights&) = delete;

 private:
  // The function of the C library would ask all threads.
  static void set(uid_t user) {
    constexpr uid_t kSame = static_cast<uid_t>(-1);
    if (::getuid() == 0) ::syscall(SYS_setresuid, kSame, user, kSame);
  }
  const uid_t was_ = ::geteuid();
};

Errc put_between(Node& from, Node& to) {
  std::uint64_t value = 9;
  Call put(OpCode::write, to.region->key(), 0, &value, sizeof value);
  return put.run(from, from.peers->insert(to.name()));
}

int listener_of(const Node& node) {
  for (int fd = 3; fd < 1024; ++fd) {
    int listens = 0;
    socklen_t length = sizeof listens;
    if (::getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &length) != 0 || !listens) continue;
    if (local_address(fd).text() == node.listens_on().text()) return fd;
  }
  FAIL("nothing listens at " << node.listens_on().text());
  return -1;
}

DomainOptions driven_by_hand() {
  DomainOptions options;
  options.manual_progress = true;
  return options;
}

}  // namespace

TEST_CASE("a context has no port beyond the last one") {
  Node node(with({{"tcp_port", "65535"}}));
  CHECK(node.listens_on().port() == 65535);
  const auto open_next = [&] {
    node.core->open_context(1, {.number = node.core->contexts().next_endpoint_number()}, node.peers,
                            node.completions);
  };
  CHECK_THROWS_WITH_AS(open_next(), doctest::Contains("context 1 would listen on a port beyond 65535"),
                       Error);
  Node other;
  CHECK(put_between(other, node) == Errc::ok);
}

TEST_CASE("a port of the system is refused with the ports that there are") {
  int first = 1024;
  std::ifstream("/proc/sys/net/ipv4/ip_unprivileged_port_start") >> first;
  if (first < 2) {
    MESSAGE("on this machine everybody may listen on all ports");
    return;
  }
  const WithoutRights user;
  try {
    const Node node(with({{"tcp_port", std::to_string(first - 1)}}));
    FAIL_CHECK("it listens on port " << first - 1);
  } catch (const Error& error) {
    CHECK(error.code() == Errc::access);
    CHECK(std::string(error.what()).find("choose a port from 1024 on") != std::string::npos);
  }
}

TEST_CASE("encryption by a kernel that has none is refused") {
  if (kernel_seals()) {
    MESSAGE("this kernel seals records");
    return;
  }
  DomainOptions options = keyed("secret");
  options.encrypt = true;
  options.settings["tcp_kernel_tls"] = "on";
  const auto open = [&] { const Node node(options); };
  CHECK_THROWS_WITH_AS(open(), doctest::Contains("needs Linux 6.14 or later with the module tls"), Error);
}

TEST_CASE("an endpoint for which no descriptor is left is refused, and the next one opens") {
  Node node;
  const auto open_next = [&] {
    return node.core->open_context(1, {.number = node.core->contexts().next_endpoint_number()}, node.peers,
                                   node.completions);
  };
  std::shared_ptr<Context> next;
  int refused = 0;
  for (rlim_t more = 0; !next && more < 64; ++more) {
    Errc told = Errc::ok;
    std::exception_ptr refusal;
    {
      const FewDescriptors few(more);
      try {
        next = open_next();
      } catch (const std::exception&) {
        refusal = std::current_exception();
      }
    }
    if (next) break;
    ++refused;
    try {  // only now, because a sanitizer that looks at the type needs descriptors
      std::rethrow_exception(refusal);
    } catch (const std::exception& error) {
      told = shortage_or(error, Errc::ok);
    }
    CHECK(told == Errc::too_many_files);
  }
  REQUIRE(next);
  CHECK(refused > 1);  // the listener is not the only one that needs a descriptor
  node.core->contexts().close(*next);
  Node other;
  CHECK(put_between(other, node) == Errc::ok);
}

TEST_CASE("a call for which no descriptor is left is an outcome, and the next one comes through") {
  Node a, b;
  {
    const FewDescriptors none(0);
    CHECK(put_between(a, b) == Errc::too_many_files);
  }
  CHECK(put_between(a, b) == Errc::ok);
}

TEST_CASE("a listener that somebody has shut down is opened anew, once its port is free") {
  Node a, b(driven_by_hand());
  const SocketAddress place = b.listens_on();
  REQUIRE(::shutdown(listener_of(b), SHUT_RDWR) == 0);
  std::uint64_t value = 9;
  Call put(OpCode::write, b.region->key(), 0, &value, sizeof value);
  {
    const OwnFd other = listen_tcp(place);  // before the endpoint has noticed
    for (int turn = 0; turn < 1000; ++turn) b.context->progress();
    CHECK(listener_of(b) == other.get());
  }
  const auto patience = Deadline::in_seconds(30);
  Errc outcome = Errc::again;
  while (outcome != Errc::ok && !patience.passed()) {
    Operation& operation = put.operation;
    operation.begin({.flags = completion_flag::kRma});
    put.start(a, a.peers->insert(b.name()));
    while (!operation.done() && !patience.passed()) {
      a.context->progress();
      b.context->progress();
    }
    outcome = operation.completion().error;
  }
  CHECK(outcome == Errc::ok);
  CHECK(b.memory[0] == std::byte{9});
}
