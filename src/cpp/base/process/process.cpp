#include "base/process/process.h"

#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <string>
#include <system_error>

namespace fab {

namespace {

// 0: there is no such process; no value: that cannot be found out now, and errno says why.
std::optional<std::uint64_t> find_start_time(std::int32_t pid) noexcept {
  if (pid <= 0) return 0;  // to kill(2) these are groups, some of which there always are
  const auto failure = [pid]() -> std::optional<std::uint64_t> {
    const int error = errno;
    // A missing file proves nothing where there is no /proc, so the kernel is asked for the process as well.
    if ((error == ENOENT || error == ESRCH) && ::kill(pid, 0) != 0 && errno == ESRCH) return 0;
    errno = error;
    return {};
  };
  char path[32];
  std::snprintf(path, sizeof path, "/proc/%d/stat", pid);
  const OwnFd file(::open(path, O_RDONLY | O_CLOEXEC));
  if (!file.valid()) return failure();
  char text[1024];
  const auto length = ::read(file.get(), text, sizeof text - 1);
  if (length < 0) return failure();
  text[length] = 0;
  // The command name may hold anything, so fields are counted from its closing parenthesis.
  const char* field = std::strrchr(text, ')');
  if (!field || field[1] == 0 || field[2] == 'Z' || field[2] == 'X') return 0;
  constexpr int kStartTime = 22, kCommand = 2;
  for (int i = kCommand; i < kStartTime && field; ++i) field = std::strchr(field + 1, ' ');
  return field ? std::strtoull(field + 1, nullptr, 10) : 0;
}

// Returns what find_start_time() does; each thread looks up this process once.
std::optional<std::uint64_t> known_start_time(std::int32_t pid) noexcept {
  if (pid != ::getpid()) return find_start_time(pid);
  thread_local struct {
    std::int32_t pid = 0;
    std::uint32_t generation = 0;  // a child of fork() may get the number of an ancestor that has ended
    std::uint64_t start_time = 0;
  } own;
  const std::uint32_t generation = fork_generation();
  if (own.start_time == 0 || own.pid != pid || own.generation != generation) {
    const auto found = find_start_time(pid);
    if (!found) return {};
    own = {pid, generation, *found};
  }
  return own.start_time;
}

}  // namespace

std::uint64_t process_start_time(std::int32_t pid) {
  if (const auto found = known_start_time(pid)) return *found;
  throw std::system_error(errno, std::generic_category(), "/proc/" + std::to_string(pid) + "/stat");
}

bool process_ended(const ProcessId& id) noexcept {
  return known_start_time(id.pid).value_or(id.start_time) != id.start_time;
}

namespace {

// What /proc/PID/status says of a process's rights; nothing if it cannot be read.
struct Rights {
  std::array<unsigned long, 8> ids{};  // real, effective, saved, of the file system: users, then groups
  std::uint64_t permitted = 0, effective = 0;

  static std::optional<Rights> of(const std::string& process) {
    const std::string path = "/proc/" + process + "/status";
    const OwnFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
    std::array<char, 4096> bytes;
    const auto length = file.valid() ? ::read(file.get(), bytes.data(), bytes.size()) : -1;
    if (length < 0 && is_shortage(errno)) throw std::system_error(errno, std::generic_category(), path);
    if (length <= 0) return {};
    const std::string text(bytes.data(), static_cast<std::size_t>(length));
    const auto value = [&](const char* name) -> const char* {
      const auto found = text.find(name);
      return found == std::string::npos ? "" : text.c_str() + found + std::strlen(name);
    };
    Rights rights;
    const auto read_ids = [&](const char* from, std::size_t first) {
      for (std::size_t i = first; i < first + 4; ++i) {
        char* end = nullptr;
        rights.ids.at(i) = std::strtoul(from, &end, 10);
        if (end == from) return false;
        from = end;
      }
      return true;
    };
    if (!read_ids(value("\nUid:"), 0) || !read_ids(value("\nGid:"), 4)) return {};
    rights.permitted = std::strtoull(value("\nCapPrm:"), nullptr, 16);
    rights.effective = std::strtoull(value("\nCapEff:"), nullptr, 16);
    return rights;
  }
};

}  // namespace

std::optional<unsigned> user_of_process(std::int32_t pid) {
  const auto rights = Rights::of(std::to_string(pid));
  return rights ? std::optional(static_cast<unsigned>(rights->ids[1])) : std::nullopt;
}

bool may_open_ours(std::int32_t pid) {
  constexpr std::uint64_t kPtrace = 1u << 19;  // CAP_SYS_PTRACE
  const auto theirs = Rights::of(std::to_string(pid)), ours = Rights::of("self");
  if (!theirs || !ours || (theirs->effective & kPtrace) != 0) return true;
  const unsigned long user = theirs->ids[3], group = theirs->ids[7];
  for (std::size_t i = 0; i < 3; ++i)
    if (ours->ids[i] != user || ours->ids[4 + i] != group) return false;
  return ::prctl(PR_GET_DUMPABLE) == 1 && (ours->permitted & ~theirs->effective) == 0;
}

std::uint32_t fork_generation() noexcept {
  static std::atomic<std::uint32_t> generation{0};
  [[maybe_unused]] static const int registered =
      ::pthread_atfork(nullptr, nullptr, [] { generation.fetch_add(1, std::memory_order_relaxed); });
  return generation.load(std::memory_order_relaxed);
}

ProcessId this_process() {
  const auto start_time = known_start_time(::getpid());
  if (!start_time && is_shortage(errno))
    throw std::system_error(errno, std::generic_category(), "/proc/self/stat");
  return {::getpid(), start_time.value_or(0)};
}

ProcessWatch::ProcessWatch(const ProcessId& id)
    : pidfd_(static_cast<int>(::syscall(SYS_pidfd_open, id.pid, 0))) {
  if (!pidfd_.valid() && errno != ESRCH)
    throw std::system_error(errno, std::generic_category(), "pidfd_open");
  if (pidfd_.valid() && process_start_time(id.pid) != id.start_time) pidfd_.reset();
}

bool ProcessWatch::alive() const noexcept {
  if (!pidfd_.valid()) return false;
  pollfd poll{.fd = pidfd_.get(), .events = POLLIN, .revents = 0};
  // A signal that arrives meanwhile ends the call early (EINTR). That says nothing of the process.
  return ::poll(&poll, 1, 0) <= 0;
}

}  // namespace fab
