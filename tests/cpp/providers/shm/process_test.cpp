#include <doctest/doctest.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <fstream>
#include <functional>
#include <string>
#include <thread>

#include "fabric/completion/counter.h"
#include "providers/shm/harness.h"
#include "providers/shm/layout.h"

// Real processes and real faults. Every process is forked before its parent has threads, and opens its domain
// itself.
namespace {

using namespace fab;
using test::Side;

const std::array<std::string, 4> kWays = {"auto", "mapped", "cma", "ring"};
constexpr std::size_t kSize = 1 << 20;

// A process that runs `work(report)`, which sends bytes with `report`, and then sleeps until it is killed.
class Child {
 public:
  using Report = std::function<void(const std::string&)>;
  explicit Child(const std::function<void(const Report&)>& work) {
    int ends[2];
    REQUIRE(::pipe(ends) == 0);
    from_.reset(ends[0]);
    pid_ = ::fork();
    REQUIRE(pid_ >= 0);
    if (pid_ != 0) {
      ::close(ends[1]);
      return;
    }
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    const auto report = [&](const std::string& bytes) {
      if (::write(ends[1], bytes.data(), bytes.size()) != static_cast<ssize_t>(bytes.size())) ::_exit(1);
    };
    try {
      work(report);
    } catch (const std::exception& error) {
      std::fprintf(stderr, "child: %s\n", error.what());
      ::_exit(1);
    }
    for (;;) ::pause();
  }
  ~Child() { end(); }

  pid_t pid() const { return pid_; }
  // The next `size` bytes that it reports.
  std::string hear(std::size_t size) {
    std::string bytes(size, '\0');
    for (std::size_t got = 0; got < size;) {
      const auto now = ::read(from_.get(), bytes.data() + got, size - got);
      REQUIRE(now > 0);
      got += static_cast<std::size_t>(now);
    }
    return bytes;
  }
  void stop() {
    ::kill(pid_, SIGSTOP);
    int status;
    REQUIRE(::waitpid(pid_, &status, WUNTRACED) == pid_);
    REQUIRE(WIFSTOPPED(status));
  }
  void go_on() { ::kill(pid_, SIGCONT); }
  void end() {
    if (pid_ <= 0) return;
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
    pid_ = 0;
  }

 private:
  pid_t pid_ = 0;
  OwnFd from_;
};

// A process with mapped and with own memory, both of kSize bytes, that does nothing for its peers by itself.
// From here on these system calls answer `error` to every thread of this process; false where the machine
// allows no filters.
bool refuse_calls(std::initializer_list<unsigned> calls, unsigned error) {
  std::vector<sock_filter> filter{BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr))};
  for (const unsigned call : calls) {
    filter.push_back(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, call, 0, 1));
    filter.push_back(BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | error));
  }
  filter.push_back(BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW));
  const sock_fprog program{static_cast<unsigned short>(filter.size()), filter.data()};
  return ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
         ::syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &program) == 0;
}

// As a process that has no descriptor left, but for the pipes through which the sanitizers look at memory.
bool refuse_descriptors() {
  return refuse_calls({SYS_openat, SYS_pidfd_open, SYS_memfd_create, SYS_socket, SYS_epoll_create1}, EMFILE);
}

class Target : public Child {
 public:
  // `then`: what it does afterwards.
  explicit Target(const std::function<void(const Report&)>& then = [](const Report&) {})
      : Child([&then](const Report& report) {
          static Side side;
          static auto mapped = side.alloc(kSize), own = side.own(kSize);
          WireWriter out;
          out.put(mapped.region->key()).put(own.region->key()).put_bytes(side.name());
          report(WireWriter().put_bytes(out.bytes()).take());
          then(report);
        }) {
    const std::string size = hear(4);
    const std::string bytes = hear(WireReader(size).get<std::uint32_t>());
    WireReader in(bytes);
    mapped_key = in.get<std::uint64_t>();
    own_key = in.get<std::uint64_t>();
    name = in.get_bytes();
  }
  std::uint64_t mapped_key, own_key;
  std::string name;
};

std::string part_of(const std::string& name) { return Name::decode(name).parts.at(0).bytes; }

// The segment of a domain, as a peer attaches it.
Segment segment_of(const std::string& name) {
  const auto address = *shm::Address::decode(part_of(name));
  return Segment::attach(address.process, address.segment_fd, address.domain_id);
}

}  // namespace

TEST_CASE("puts, gets and atomics between processes give the same each way") {
  Target target;
  for (const std::string& way : kWays) {
    CAPTURE(way);
    Side side(way);
    const PeerId peer = side.peers->insert(target.name);
    for (const std::uint64_t key : {target.mapped_key, target.own_key}) {
      std::vector<std::byte> bytes(kSize), got(kSize);
      for (std::size_t i = 0; i < kSize; ++i) bytes[i] = static_cast<std::byte>(i * 31 + way.size());
      REQUIRE(side.put(peer, key, 0, bytes.data(), kSize) == Errc::ok);
      REQUIRE(side.get(peer, key, 0, got.data(), kSize) == Errc::ok);
      CHECK(got == bytes);
      std::uint64_t zero = 0, former = 1;
      REQUIRE(side.put(peer, key, 64, &zero, 8) == Errc::ok);
      REQUIRE(side.fetch_add(peer, key, 64, 5, former) == Errc::ok);
      CHECK(former == 0);
      REQUIRE(side.fetch_add(peer, key, 64, 5, former) == Errc::ok);
      CHECK(former == 5);
      CHECK(side.put(peer, key, kSize - 7, &zero, 8) == Errc::bounds);
      CHECK(side.put(peer, key ^ 1, 0, &zero, 8) == Errc::key_rejected);
    }
  }
}

TEST_CASE("several initiating processes sum exactly") {
  Target target;
  constexpr std::uint64_t kEach = 1000;
  {
    std::vector<std::unique_ptr<Child>> adders;
    for (const std::string& way : kWays)
      adders.push_back(std::make_unique<Child>([&](const Child::Report& report) {
        Side side(way);
        const PeerId peer = side.peers->insert(target.name);
        std::uint64_t former;
        for (std::uint64_t i = 0; i < kEach; ++i)
          for (const std::uint64_t key : {target.mapped_key, target.own_key})
            if (side.fetch_add(peer, key, 0, 1, former) != Errc::ok) return report("x");
        report("+");
      }));
    for (auto& adder : adders) CHECK(adder->hear(1) == "+");
  }
  Side side;
  const PeerId peer = side.peers->insert(target.name);
  for (const std::uint64_t key : {target.mapped_key, target.own_key}) {
    std::uint64_t sum = 0;
    REQUIRE(side.get(peer, key, 0, &sum, 8) == Errc::ok);
    CHECK(sum == kEach * kWays.size());
  }
}

TEST_CASE("a stopped target is still put to and got from; what only it can do is lost at the deadline") {
  Target target;
  DomainOptions options;
  options.peer_deadline = 0.3;
  for (const std::string way : {"auto", "cma"}) {
    CAPTURE(way);
    Side side(way, options);
    const PeerId peer = side.peers->insert(target.name);
    target.stop();
    std::uint64_t word = 7, got = 0, former = 0;
    for (const std::uint64_t key : {target.mapped_key, target.own_key}) {
      REQUIRE(side.put(peer, key, 8, &word, 8) == Errc::ok);
      REQUIRE(side.get(peer, key, 8, &got, 8) == Errc::ok);
      CHECK(got == 7);
    }
    if (way == "auto") CHECK(side.fetch_add(peer, target.mapped_key, 8, 1, former) == Errc::ok);
    CHECK(side.fetch_add(peer, target.own_key, 8, 1, former) == Errc::peer_lost);
    target.go_on();
    CHECK(side.fetch_add(peer, target.own_key, 16, 1, former) == Errc::ok);  // over a new path
  }
}

// What is called unreachable may be posted again over another link, so it must not have happened.
TEST_CASE("a put whose notice nobody takes changes no byte if it is called unreachable") {
  DomainOptions options;
  options.peer_deadline = 0.3;
  // It looks for channels, and has no descriptor to open one with.
  Target target([](const Child::Report& report) { report(refuse_descriptors() ? "+" : "?"); });
  if (target.hear(1) == "?") {
    MESSAGE("this machine allows no seccomp filters");
    return;
  }
  for (const std::string way : {"auto", "mapped", "cma"}) {
    CAPTURE(way);
    Side side(way, options);
    const PeerId peer = side.peers->insert(target.name);
    for (const std::uint64_t key : {target.mapped_key, target.own_key}) {
      std::vector<std::byte> bytes(kSize, std::byte{7}), got(kSize);
      Transfer put = Side::transfer(OpCode::write, key, 0, bytes.data(), kSize);
      put.flags |= transfer_flag::kRemoteData;
      CHECK(side.run(peer, {put}).error == Errc::unreachable);
      // A path of its own, as the first one is lost.
      Side reader;
      REQUIRE(reader.get(reader.peers->insert(target.name), key, 0, got.data(), kSize) == Errc::ok);
      CHECK(std::ranges::all_of(got, [](std::byte byte) { return byte == std::byte{0}; }));
    }
  }
}

TEST_CASE("a killed target ends everything outstanding, long before the deadline") {
  for (const std::string& way : kWays) {
    CAPTURE(way);
    Target target, other;
    DomainOptions options;
    options.peer_deadline = 10'000;
    Side side(way, options);
    const PeerId peer = side.peers->insert(target.name), alive = side.peers->insert(other.name);
    std::uint64_t word = 7, former = 0;
    REQUIRE(side.put(peer, target.own_key, 8, &word, 8) == Errc::ok);
    target.stop();
    // Waits in the ring for a target that will not answer.
    Operation operation;
    operation.begin(1, 0, 0, nullptr, nullptr, nullptr);
    Transfer add = Side::transfer(OpCode::fetch_atomic, target.own_key, 8, &word, 8);
    add.atomic = AtomicOp::sum;
    add.type = DataType::u64;
    add.result = reinterpret_cast<std::byte*>(&former);
    add.operation = &operation;
    REQUIRE(side.context->post(peer, {&add, 1}) == 1);
    target.end();
    REQUIRE(side.context->wait([&] { return operation.done(); }, Deadline::in_seconds(60)));
    CHECK(operation.completion().error == Errc::peer_lost);
    const auto event = side.events->read();
    REQUIRE(event);
    CHECK(event->type == EventType::peer_lost);
    CHECK(event->peer == peer);
    CHECK_THROWS_AS(side.put(peer, target.own_key, 8, &word, 8), Error);  // nobody to open a path to
    CHECK(side.put(alive, other.own_key, 8, &word, 8) == Errc::ok);
  }
}

TEST_CASE("a killed target is noticed on the direct way") {
  for (const std::string way : {"auto", "cma"}) {
    CAPTURE(way);
    Target target;
    Side side(way);
    const PeerId peer = side.peers->insert(target.name);
    std::uint64_t word = 7;
    REQUIRE(side.put(peer, target.mapped_key, 8, &word, 8) == Errc::ok);
    target.end();
    Errc outcome = Errc::ok;
    const auto deadline = Deadline::in_seconds(30);
    try {
      while (outcome == Errc::ok && !deadline.passed())
        outcome = side.put(peer, target.mapped_key, 8, &word, 8);
    } catch (const Error& error) {
      outcome = error.code();
    }
    CHECK((outcome == Errc::peer_lost || outcome == Errc::unreachable));
  }
}

TEST_CASE("a target that has become another program is gone") {
  for (const auto& way : kWays) {
    CAPTURE(way);
    int ends[2];
    REQUIRE(::pipe(ends) == 0);
    const OwnFd from(ends[0]), to(ends[1]);
    Target target([&](const Child::Report&) {
      char go;
      if (::read(from.get(), &go, 1) == 1) ::execl("/bin/sleep", "sleep", "1000", nullptr);
      ::_exit(1);
    });
    Side side(way);
    const PeerId peer = side.peers->insert(target.name);
    std::uint64_t value = 1;
    const auto put = [&](std::uint64_t key) {
      return side.run(peer, {side.transfer(OpCode::write, key, 0, &value, 8)}, 5);
    };
    if (way != "ring") REQUIRE(put(target.own_key).error == Errc::ok);
    if (way == "auto" || way == "mapped") REQUIRE(put(target.mapped_key).error == Errc::ok);
    const std::string program = "/proc/" + std::to_string(target.pid()) + "/comm";
    REQUIRE(::write(to.get(), "x", 1) == 1);
    const auto is_sleep = [&] {
      std::ifstream file(program);
      std::string name;
      return std::getline(file, name) && name == "sleep";
    };
    const auto patience = Deadline::in_seconds(30);
    while (!is_sleep() && !patience.passed()) ::usleep(1000);
    REQUIRE(is_sleep());
    // The first puts after that may find what is still mapped.
    Errc outcome = Errc::ok;
    while ((outcome == Errc::ok || outcome == Errc::bounds) && !patience.passed()) try {
        outcome = put(target.mapped_key).error;
      } catch (const Error& error) {
        outcome = error.code();
      }
    CHECK((outcome == Errc::peer_lost || outcome == Errc::unreachable));
    CHECK_FALSE(side.context->reaches(peer).ok);
  }
}

TEST_CASE("an initiator that dies inside a region does not keep it from closing") {
  int ends[2];
  REQUIRE(::pipe(ends) == 0);
  Child initiator([&](const Child::Report& report) {
    // As far as the owner can see: in the middle of a copy.
    std::string bytes(512, '\0');
    bytes.resize(static_cast<std::size_t>(::read(ends[0], bytes.data(), bytes.size())));
    WireReader in(bytes);
    const std::uint64_t key = in.get<std::uint64_t>();
    static Segment segment = segment_of(std::string(in.get_bytes()));
    AccessSlot& slot = segment.slots()[segment.claim_slot(this_process())];
    slot.active.exchange(static_cast<std::uint64_t>(segment.regions().find(key)) + 1);
    report("!");
  });
  Side side;
  auto memory = side.own(64);
  WireWriter out;
  out.put(memory.region->key()).put_bytes(side.name());
  REQUIRE(::write(ends[1], out.bytes().data(), out.bytes().size()) ==
          static_cast<ssize_t>(out.bytes().size()));
  initiator.hear(1);
  initiator.stop();
  CHECK_FALSE(memory.region->close(Deadline::in_seconds(0.05)));
  CHECK_FALSE(memory.region->close(Deadline::in_seconds(0)));
  initiator.end();
  CHECK(memory.region->close({}));
  ::close(ends[0]);
  ::close(ends[1]);
}

TEST_CASE("what a dead initiator left behind is cleared away, and the target goes on serving") {
  int ends[2];
  REQUIRE(::pipe(ends) == 0);
  Child initiator([&](const Child::Report& report) {
    std::string bytes(512, '\0');
    bytes.resize(static_cast<std::size_t>(::read(ends[0], bytes.data(), bytes.size())));
    WireReader in(bytes);
    const std::uint64_t key = in.get<std::uint64_t>();
    static Side side("ring");
    const PeerId peer = side.peers->insert(std::string(in.get_bytes()));
    std::uint64_t word = 7;
    report(side.put(peer, key, 0, &word, 8) == Errc::ok ? "+" : "-");
    for (;;) side.put(peer, key, 0, &word, 8);
  });
  Side side;
  auto memory = side.own(64);
  WireWriter out;
  out.put(memory.region->key()).put_bytes(side.name());
  REQUIRE(::write(ends[1], out.bytes().data(), out.bytes().size()) ==
          static_cast<ssize_t>(out.bytes().size()));
  CHECK(initiator.hear(1) == "+");
  const AccessSlot& slot = side.domain->segment().slots()[0];
  CHECK(SlotOwner::unpack(slot.owner.load()).pid == initiator.pid());
  initiator.end();
  CHECK(side.context->wait([&] { return slot.owner.load() == 0; }, Deadline::in_seconds(30)));

  Side other("ring");
  std::uint64_t word = 9;
  CHECK(other.put(other.knows(side), memory.region->key(), 0, &word, 8) == Errc::ok);
  CHECK(std::memcmp(memory.data(), &word, 8) == 0);
  CHECK(memory.region->close({}));
  ::close(ends[0]);
  ::close(ends[1]);
}

TEST_CASE("where the kernel forbids cross-memory attach, the ring takes over") {
  Target target;
  Child initiator([&](const Child::Report& report) {
    static Side early;  // has a path that was opened while it was allowed
    const PeerId before = early.peers->insert(target.name);
    std::uint64_t word = 11, got = 0;
    bool good = early.put(before, target.own_key, 8, &word, 8) == Errc::ok &&
                early.context->report(before).how == "cross-memory attach";
    if (!refuse_calls({SYS_process_vm_readv, SYS_process_vm_writev}, EPERM)) return report("?");
    static Side side;
    const PeerId peer = side.peers->insert(target.name);
    good = good && side.put(peer, target.own_key, 0, &word, 8) == Errc::ok;
    good = good && side.get(peer, target.own_key, 0, &got, 8) == Errc::ok && got == 11;
    good = good && side.context->report(peer).how == "ring";
    good = good && side.put(peer, target.mapped_key, 0, &word, 8) == Errc::ok;
    good = good && side.context->report(peer).how == "mapped";
    good = good && side.put(peer, target.own_key, kSize, &word, 8) == Errc::bounds;
    std::vector<std::byte> large(kSize);
    good = good && early.put(before, target.own_key, 0, large.data(), large.size()) == Errc::ok;
    good = good && early.context->report(before).how == "ring";
    bool refused = false;
    try {
      Side forced("cma");
    } catch (const Error& error) {
      refused = error.code() == Errc::not_supported;
    }
    report(good && refused ? "+" : "-");
  });
  const std::string outcome = initiator.hear(1);
  if (outcome == "?") {
    MESSAGE("this machine allows no seccomp filters");
    return;
  }
  CHECK(outcome == "+");
}

TEST_CASE("a process that gave up its privileges is told why it cannot use shared memory") {
  if (::geteuid() != 0) {
    MESSAGE("only root can give up privileges");
    return;
  }
  Child hardened([](const Child::Report& report) {
    if (::setresgid(65534, 65534, 65534) != 0 || ::setresuid(65534, 65534, 65534) != 0) return report("?");
    const Info info = shm::make_shm_provider()->discover().front();  // not dumpable any more
    report(!info.usable && info.why.find("/proc") != std::string::npos ? "+" : "-");
  });
  CHECK(hardened.hear(1) == "+");
}

TEST_CASE("slots of dead processes are taken over by one claimant each") {
  const std::uint8_t id[16] = {1};
  Segment segment = Segment::create(id);
  constexpr int kThreads = 4, kEach = 25;
  for (int round = 0; round < 100; ++round) {
    Child dead([&](const Child::Report& report) {
      for (int i = 0; i < kThreads * kEach; ++i) {
        AccessSlot& slot = segment.slots()[segment.claim_slot(this_process())];
        if (i % 2) slot.owner.fetch_or(SlotOwner::kClaiming);  // as one that dies before it has the slot
        slot.active.store(1);
      }
      report("!");
    });
    dead.hear(1);
    dead.end();
    std::vector<std::vector<int>> claimed(kThreads);
    std::vector<std::thread> threads;
    for (auto& mine : claimed)
      threads.emplace_back([&] {
        for (int i = 0; i < kEach; ++i) mine.push_back(segment.claim_slot(this_process()));
      });
    for (auto& thread : threads) thread.join();
    std::vector<int> all;
    for (const auto& mine : claimed) all.insert(all.end(), mine.begin(), mine.end());
    std::sort(all.begin(), all.end());
    CHECK(std::adjacent_find(all.begin(), all.end()) == all.end());
    CHECK(all.front() >= 0);
    CHECK(segment.header().slots_used.load() <= kThreads * kEach + kThreads);
    for (const int index : all) {
      AccessSlot& slot = segment.slots()[index];
      CHECK(slot.owner.load() == SlotOwner::pack(this_process()));
      CHECK(slot.active.load() == 0);
      slot.owner.store(0);
    }
  }
}

TEST_CASE("a process that has no descriptor left takes no slot of a living one") {
  const std::uint8_t id[16] = {1};
  Segment segment = Segment::create(id);
  const int mine = segment.claim_slot(this_process());
  Child poor([&](const Child::Report& report) {
    const ProcessId self = this_process();
    if (!refuse_descriptors()) return report("?");
    Segment::free_if_dead(segment.slots()[mine]);
    const int index = segment.claim_slot(self);
    report(index >= 0 && index != mine ? "+" : "-");
  });
  const std::string outcome = poor.hear(1);
  if (outcome == "?") {
    MESSAGE("this machine allows no seccomp filters");
    return;
  }
  CHECK(outcome == "+");
  CHECK(segment.slots()[mine].owner.load() == SlotOwner::pack(this_process()));
}
