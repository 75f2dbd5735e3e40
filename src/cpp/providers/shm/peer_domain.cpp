#include "providers/shm/peer_domain.h"

#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstdio>
#include <ctime>
#include <utility>

#include "base/memory/foreign_file.h"

namespace fab::shm {
namespace {

constexpr std::int64_t kLookPeriod = 10'000'000;  // ns; the kernel does not reuse a pid within this time

}  // namespace

FileId FileId::of(int fd) {
  struct stat status;
  check_call(::fstat(fd, &status), "fstat");
  return {status.st_dev, status.st_ino};
}

PeerDomain::PeerDomain(const Address& address, Poller& poller, bool& left)
    : address_(address),
      segment_(Segment::attach(address.process, address.segment_fd, address.domain_id)),
      watch_(address.process),
      poller_(poller),
      left_(left) {
  // The watch knows the right process, and was made after the segment was opened. If that process still
  // lives, the segment is its own.
  if (!watch_.alive())
    throw Error(Errc::unreachable, "process " + std::to_string(address.process.pid) + " is gone");
}

PeerDomain::~PeerDomain() {
  if (watched_) poller_.remove(watch_.fd(), *this);
}

std::int64_t PeerDomain::coarse_clock() noexcept {
  timespec now;
  ::clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
  return now.tv_sec * 1'000'000'000 + now.tv_nsec;
}

void PeerDomain::look(std::int64_t now) noexcept {
  next_look_ = now + kLookPeriod;
  if (!gone_) gone_ = !watch_.alive() || !holds_segment();
}

// A process that calls execve keeps its number and its start time, and loses the descriptor of its segment. A
// segment that may not be looked at counts as held. So does the segment of a process whose first thread has
// ended, because /proc shows nothing of such a process.
bool PeerDomain::holds_segment() const noexcept {
  char path[48];
  struct stat status;
  std::snprintf(path, sizeof path, "/proc/%d/fd/%d", address_.process.pid, address_.segment_fd);
  if (::stat(path, &status) == 0) return FileId{status.st_dev, status.st_ino} == file_;
  if (errno != ENOENT) return true;
  std::snprintf(path, sizeof path, "/proc/%d/exe", address_.process.pid);
  return ::stat(path, &status) != 0;
}

bool PeerDomain::serves(std::uint16_t context_slot) const noexcept {
  return context_slot < kMaxContexts && (segment_.header().doorbells[context_slot].load() & kDoorbellFd) != 0;
}

void PeerDomain::watch() {
  if (watched_ || gone_) return;
  poller_.add(watch_.fd(), EPOLLIN, *this);
  watched_ = true;
}

void PeerDomain::on_ready(std::uint32_t) noexcept {
  gone_ = left_ = true;
  watched_ = false;
  poller_.remove(watch_.fd(), *this);
}

void PeerDomain::wake(std::uint32_t context_slot, std::uint32_t bits) noexcept {
  if (context_slot >= kMaxContexts) return;
  ContextSlot& there = segment_.board().contexts[context_slot];
  there.work.fetch_or(bits, std::memory_order_seq_cst);
  // Whoever takes the flag rings. Nobody else needs to, until the owner sleeps again.
  if (there.sleeping.load(std::memory_order_seq_cst) == 0 || there.sleeping.exchange(0) == 0) return;
  const std::atomic<std::uint64_t>& bell_there = segment_.header().doorbells[context_slot];
  const std::uint64_t doorbell = bell_there.load();
  if ((doorbell & kDoorbellFd) == 0) return;
  Doorbell& bell = doorbells_[context_slot];
  if (bell.seen != doorbell) {
    // The pipe is opened for reading as well, so that a write never meets a pipe without a reader (SIGPIPE).
    // The owner takes the number back before it closes the pipe. So a number that is still there named the
    // doorbell when it was opened. An owner that has changed it meanwhile looks at `work` afterwards.
    ForeignFile pipe = open_foreign(address_.process.pid, static_cast<int>((doorbell & kDoorbellFd) - 1),
                                    ForeignKind::pipe, O_RDWR);
    hindrance_ = pipe.error;
    bell.fd = std::move(pipe.fd);
    const bool usable = bell.fd.valid() && bell_there.load() == doorbell && watch_.alive();
    bell.seen = usable ? doorbell : 0;
    if (!usable) {
      bell.fd.reset();
      there.sleeping.store(1);  // the bell has not rung, so the next wake() tries again
      return;
    }
  }
  const char ring = 1;
  [[maybe_unused]] const auto written = ::write(bell.fd.get(), &ring, 1);  // a full pipe rings already
}

std::shared_ptr<const MappedFile> PeerDomain::map(int number, std::uint64_t size) noexcept try {
  const ForeignFile found = open_foreign(address_.process.pid, number, ForeignKind::sealed_memory, O_RDWR);
  const struct stat& status = found.status;
  if (!found.fd.valid() || std::cmp_less(status.st_size, size) || !watch_.alive()) return nullptr;
  std::erase_if(files_, [](const auto& file) { return file.expired(); });
  for (const auto& known : files_)
    if (auto file = known.lock(); file && file->device == status.st_dev && file->inode == status.st_ino &&
                                  file->mapping.size() >= size)  // the owner may have made it longer since
      return file;
  auto file = std::make_shared<const MappedFile>(
      MappedFile{status.st_dev, status.st_ino,
                 Mapping::shared(found.fd.get(), 0, static_cast<std::size_t>(status.st_size))});
  files_.push_back(file);
  return file;
} catch (...) {
  return nullptr;  // no room for the mapping: the bytes go another way
}

}  // namespace fab::shm
