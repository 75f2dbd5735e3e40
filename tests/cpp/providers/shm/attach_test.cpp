#include "providers/shm/attach.h"

#include <doctest/doctest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <string>

#include "base/fd.h"

// Copies by cross-memory attach to a process that becomes another program, which has memory at the same
// addresses.
namespace {

using namespace fab;
using namespace fab::shm;

constexpr std::uint8_t kDomain[16] = {1, 2, 3};
constexpr std::size_t kSize = 4096;
constexpr char kOld = 'o', kNew = 'n';

// What the process tells: who has it now, and, the first time, where it has what.
struct Told {
  char program;
  std::int32_t segment_fd;
  std::uint64_t segment, memory;
};

std::byte* map_at(void* address, char fill) {
  const int flags = MAP_PRIVATE | MAP_ANONYMOUS | (address ? MAP_FIXED_NOREPLACE : 0);
  void* const mapped = ::mmap(address, kSize, PROT_READ | PROT_WRITE, flags, -1, 0);
  if (mapped == MAP_FAILED) ::_exit(1);
  std::memset(mapped, fill, kSize);
  return static_cast<std::byte*>(mapped);
}

void tell(int fd, const Told& told) {
  if (::write(fd, &told, sizeof told) != static_cast<ssize_t>(sizeof told)) ::_exit(1);
}

// A process with a segment and some memory. When it is told to, it becomes a program that has memory where
// the former one had, and, `everywhere`, also where that one had its segment.
class Changeling {
 public:
  explicit Changeling(bool everywhere) {
    int out[2], in[2];
    REQUIRE(::pipe(out) == 0);
    REQUIRE(::pipe(in) == 0);
    pid_ = ::fork();
    REQUIRE(pid_ >= 0);
    if (pid_ == 0) be(out[1], in[0], everywhere);
    ::close(out[1]);
    ::close(in[0]);
    from_.reset(out[0]);
    to_.reset(in[1]);
    told_ = hear();
    REQUIRE(told_.program == kOld);
    segment_ = Segment::attach({pid_, process_start_time(pid_)}, told_.segment_fd, kDomain);
  }
  ~Changeling() {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  Changeling(const Changeling&) = delete;
  Changeling& operator=(const Changeling&) = delete;

  void change() {
    REQUIRE(::write(to_.get(), "x", 1) == 1);
    REQUIRE(hear().program == kNew);
  }
  Segment& segment() { return segment_; }
  pid_t pid() const { return pid_; }
  iovec memory() const { return {reinterpret_cast<void*>(told_.memory), kSize}; }
  // A byte of its memory, whichever program it is.
  char byte() const {
    char seen = 0;
    const iovec here{&seen, 1}, there{reinterpret_cast<void*>(told_.memory), 1};
    REQUIRE(::process_vm_readv(pid_, &here, 1, &there, 1, 0) == 1);
    return seen;
  }

 private:
  [[noreturn]] static void be(int out, int in, bool everywhere) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    const Segment segment = Segment::create(kDomain);
    const Told told{kOld, segment.fd(), segment.header().mapped_at,
                    reinterpret_cast<std::uint64_t>(map_at(nullptr, kOld))};
    tell(out, told);
    char go;
    if (::read(in, &go, 1) != 1) ::_exit(1);
    ::setenv("FAB_OUT", std::to_string(out).c_str(), 1);
    ::setenv("FAB_MEMORY", std::to_string(told.memory).c_str(), 1);
    ::setenv("FAB_SEGMENT", std::to_string(everywhere ? told.segment : 0).c_str(), 1);
    ::execl("/proc/self/exe", "attach_test", "--no-skip", "--test-case=another program", nullptr);
    ::_exit(1);
  }
  Told hear() const {
    Told told{};
    REQUIRE(::read(from_.get(), &told, sizeof told) == static_cast<ssize_t>(sizeof told));
    return told;
  }

  pid_t pid_ = 0;
  OwnFd from_, to_;
  Told told_{};
  Segment segment_;
};

Errc copy(AttachProof& proof, const Changeling& peer, bool write, char* bytes) {
  AttachBatch batch;
  batch.begin(proof, write, kSize);
  *batch.local() = {bytes, kSize};
  *batch.remote() = peer.memory();
  batch.add(1, 1, kSize, Errc::ok);
  const Errc stopped = batch.run();
  return stopped == Errc::ok ? batch.verdict(0) : stopped;
}

}  // namespace

TEST_CASE("another program" * doctest::skip()) {
  const auto number = [](const char* name) { return std::strtoull(std::getenv(name), nullptr, 10); };
  for (const char* place : {"FAB_MEMORY", "FAB_SEGMENT"})
    if (const auto address = number(place)) map_at(reinterpret_cast<void*>(address), kNew);
  tell(static_cast<int>(number("FAB_OUT")), {kNew, 0, 0, 0});
  for (;;) ::pause();
}

TEST_CASE("a process that has become another program is not taken for the former one") {
  for (const bool everywhere : {false, true}) {
    CAPTURE(everywhere);
    Changeling peer(everywhere);
    const int slot = peer.segment().claim_slot(this_process());
    REQUIRE(slot >= 0);
    AttachProof proof(peer.pid(), peer.segment(), kDomain, &peer.segment().slots()[slot]);
    char bytes[kSize];
    std::memset(bytes, 'p', sizeof bytes);
    for (int round = 0; round < 3; ++round) CHECK(copy(proof, peer, true, bytes) == Errc::ok);
    CHECK(peer.byte() == 'p');
    std::memset(bytes, 0, sizeof bytes);
    CHECK(copy(proof, peer, false, bytes) == Errc::ok);
    CHECK(bytes[0] == 'p');

    peer.change();
    CHECK(peer.byte() == kNew);
    CHECK(copy(proof, peer, false, bytes) == Errc::peer_lost);
    std::memset(bytes, 'p', sizeof bytes);
    CHECK(copy(proof, peer, true, bytes) == Errc::peer_lost);
    if (!everywhere) CHECK(peer.byte() == kNew);
    AttachProof later(peer.pid(), peer.segment(), kDomain, &peer.segment().slots()[slot]);
    CHECK(copy(later, peer, true, bytes) == Errc::peer_lost);
  }
}
