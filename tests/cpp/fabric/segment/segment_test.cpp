#include "fabric/segment/segment.h"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <string>

#include "base/process/process.h"
#include "fabric/types/error.h"

// What a segment keeps others from doing, and what is found out about the segment of another process before
// anything in it is believed.
namespace fab {
namespace {

constexpr std::uint8_t kId[16] = {1, 2, 3};

std::string why_not(const ProcessId& owner, int fd) {
  try {
    Segment::attach(owner, fd, kId);
    return {};
  } catch (const Error& error) {
    CHECK(error.code() == Errc::unreachable);
    return error.what();
  }
}

bool says(const std::string& text, const char* part) { return text.find(part) != std::string::npos; }

// A process that has inherited all descriptors of this one.
struct Heir {
  pid_t pid = ::fork();
  Heir() {
    if (pid == 0)
      for (;;) ::pause();
  }
  ~Heir() {
    ::kill(pid, SIGKILL);
    ::waitpid(pid, nullptr, 0);
  }
  ProcessId id() const { return {pid, process_start_time(pid)}; }
};

}  // namespace

TEST_CASE("others read the table of a segment, and cannot write to it") {
  const Segment segment = Segment::create(kId);
  const std::string path = "/proc/self/fd/" + std::to_string(segment.fd());
  const OwnFd file(::open(path.c_str(), O_RDWR | O_CLOEXEC));
  REQUIRE(file.valid());
  CHECK(::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0) == MAP_FAILED);
  CHECK(::pwrite(file.get(), "x", 1, 0) == -1);
  CHECK(::ftruncate(file.get(), 0) == -1);
  const Mapping seen = Mapping::shared(file.get(), 0, 4096, false);
  CHECK(::mprotect(seen.data(), 4096, PROT_READ | PROT_WRITE) == -1);
  segment.header().waiter_slot.store(7);
  const Segment there = Segment::attach(this_process(), segment.fd(), kId);
  CHECK(there.header().waiter_slot.load() == 7);
  there.board().contexts[3].work.store(9);
  CHECK(segment.board().contexts[3].work.load() == 9);
  CHECK(there.in_owner(&there.slots()[5]) == &segment.slots()[5]);
  CHECK(there.id_in_owner() == segment.header().domain_id);
}

TEST_CASE("a segment is taken only from the process that made it, and sealed") {
  const Segment segment = Segment::create(kId);
  CHECK(why_not(this_process(), segment.fd()).empty());
  const Heir heir;
  CHECK(says(why_not(heir.id(), segment.fd()), "shows the segment of process"));
  const OwnFd unsealed(::memfd_create("unsealed", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  CHECK(says(why_not(this_process(), unsealed.get()), "not sealed against shrinking"));
  const OwnFd writable = make_memory_file("writable", 4096);
  CHECK(says(why_not(this_process(), writable.get()), "has closed its domain"));
  int ends[2];
  REQUIRE(::pipe(ends) == 0);
  CHECK(says(why_not(this_process(), ends[0]), "of another kind"));
  ::close(ends[0]);
  ::close(ends[1]);
  CHECK(says(why_not(this_process(), 1'000'000), "has closed its domain"));
}

TEST_CASE("a domain vouches for a channel to one target, as long as there is the channel") {
  Segment segment = Segment::create(kId);
  const Segment there = Segment::attach(this_process(), segment.fd(), kId);
  const MadeChannel first{.target_context_slot = 1, .context_slot = 2, .context = 3};
  MadeChannel second = first;
  second.target_domain[15] = 1;
  const auto a = segment.publish(100, first), b = segment.publish(101, second);
  CHECK(a != b);
  CHECK(there.has_made(a, 100, first));
  CHECK(there.has_made(b, 101, second));
  CHECK_FALSE(there.has_made(a, 101, first));
  CHECK_FALSE(there.has_made(a, 100, second));
  CHECK_FALSE(there.has_made(kMaxChannels, 0, {}));
  CHECK_FALSE(there.has_made(~0u, 100, first));
  segment.withdraw(a);
  CHECK_FALSE(there.has_made(a, 100, first));
  CHECK(segment.publish(102, second) == a);
}

TEST_CASE("a slot that nobody has holds up nobody, whatever is written into it") {
  const Segment segment = Segment::create(kId);
  segment.board().slots_used.store(~0u);
  for (std::uint32_t i = 0; i < kMaxSlots; ++i) segment.slots()[i].active.store(1);
  CHECK(segment.wait_unused(0, Deadline::in_seconds(60)));
  CHECK(segment.slots_used() == kMaxSlots);
}

TEST_CASE("an owner that is no process holds up nobody") {
  const Segment segment = Segment::create(kId);
  segment.board().slots_used.store(3);
  const std::uint64_t written[] = {SlotOwner::pack({0, 1}), SlotOwner::pack({0, 1u << 20}),
                                   SlotOwner::pack({(1 << SlotOwner::kPidBits) - 1, 1})};
  for (std::size_t i = 0; i < std::size(written); ++i) {
    segment.slots()[i].owner.store(written[i]);
    segment.slots()[i].active.store(1);
  }
  CHECK(segment.wait_unused(0, Deadline::in_seconds(60)));
  CHECK(segment.user_of(1) == 0);
}

}  // namespace fab
