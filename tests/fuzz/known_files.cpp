#include "known_files.h"

#include <fcntl.h>
#include <sanitizer/asan_interface.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdarg>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <string>
#include <string_view>
#include <vector>

#include "input.h"

extern "C" {
int __real_open(const char*, int, ...);
int __real_close(int);
int __real_fstat(int, struct stat*);
int __real_fcntl(int, int, ...);
int __real_kill(pid_t, int);
ssize_t __real_read(int, void*, size_t);
ssize_t __real_pread(int, void*, size_t, off_t);
ssize_t __real_write(int, const void*, size_t);
void* __real_mmap(void*, size_t, int, int, int, off_t);
int __real_munmap(void*, size_t);
}

namespace fab::test {
namespace {

constexpr std::size_t kGuarded = 64 * 1024;  // of a mapping: headers, slots, rings

struct Mapped {
  std::byte* memory = nullptr;  // null: the kernel refused with `error`
  int error = 0;
  bool used = false;
};
struct KnownFile {
  int fd;
  struct stat status;
  int seals;  // -1: it has none
  Mapped read_only, writable;
  std::size_t length() const { return static_cast<std::size_t>(status.st_size); }
  std::size_t guarded() const { return std::min(length(), kGuarded); }
};

// Numbers of descriptors that the kernel does not give: which file, and for what it was opened.
enum Mode : int { kPath, kRead, kWrite, kModes };
constexpr int kFirstNumber = 1 << 30, kStatus = 1 << 29;

std::vector<KnownFile>& files() {
  static auto* const known = new std::vector<KnownFile>;
  return *known;
}
bool is_ours(int fd) { return fd >= kFirstNumber; }
KnownFile& file_of(int fd) {
  const auto at = static_cast<std::size_t>((fd - kFirstNumber) / kModes);
  demand(at < files().size(), "a descriptor is one that was given");
  return files()[at];
}
Mode mode_of(int fd) { return static_cast<Mode>((fd - kFirstNumber) % kModes); }
int number(std::size_t at, Mode mode) { return kFirstNumber + static_cast<int>(at) * kModes + mode; }

int failed(int error) {
  errno = error;
  return -1;
}

struct OwnNames {
  std::string process = "/proc/" + std::to_string(::getpid());
  std::string descriptor = process + "/fd/", status = process + "/status", text;
  // Keeps the lines that say whose the process is, and what it may.
  OwnNames() {
    std::ifstream lines(status);
    for (std::string line; std::getline(lines, line);)
      if (line.starts_with("Name:") || line.starts_with("Uid:") || line.starts_with("Gid:") ||
          line.starts_with("Cap"))
        text += line + "\n";
  }
};
const OwnNames& own() {
  static auto* const names = new OwnNames;
  return *names;
}

// -2: ask the kernel.
int open_known(std::string_view path, int flags) {
  constexpr std::string_view kThread = "/proc/thread-self/fd/", kProc = "/proc/";
  if (files().empty() || !path.starts_with(kProc)) return -2;
  const Mode mode = (flags & O_PATH) != 0 ? kPath : (flags & O_ACCMODE) == O_RDONLY ? kRead : kWrite;
  if (path.starts_with(kThread)) {
    const int fd = std::atoi(path.data() + kThread.size());
    return is_ours(fd) ? number(static_cast<std::size_t>((fd - kFirstNumber) / kModes), mode) : -2;
  }
  if (path == own().status) return kStatus;
  if (path.starts_with(own().descriptor)) {
    const int fd = std::atoi(path.data() + own().descriptor.size());
    for (std::size_t at = 0; at < files().size(); ++at)
      if (files()[at].fd == fd) return number(at, mode);
    return -2;
  }
  const std::string_view rest = path.substr(kProc.size());
  const bool of_a_process = !rest.empty() && rest[0] >= '0' && rest[0] <= '9';
  if (!of_a_process || rest.starts_with("1/") || path.starts_with(own().process + "/")) return -2;
  return failed(ENOENT);
}

Mapped map(const KnownFile& file, int protection) {
  void* const memory =
      __real_mmap(nullptr, file.length(), protection, MAP_SHARED | MAP_NORESERVE, file.fd, 0);
  if (memory == MAP_FAILED) return {nullptr, errno, false};
  __asan_poison_memory_region(memory, file.guarded());
  return {static_cast<std::byte*>(memory), 0, false};
}

}  // namespace

void know_file(int fd) {
  KnownFile file{
      .fd = fd, .status = {}, .seals = __real_fcntl(fd, F_GET_SEALS), .read_only = {}, .writable = {}};
  demand(__real_fstat(fd, &file.status) == 0, "a known file is open");
  if (S_ISREG(file.status.st_mode)) {
    file.read_only = map(file, PROT_READ);
    file.writable = map(file, PROT_READ | PROT_WRITE);
  }
  files().push_back(file);
}

}  // namespace fab::test

using namespace fab::test;

extern "C" {

int __wrap_open(const char* path, int flags, ...) {
  va_list more;
  va_start(more, flags);
  const int mode = (flags & O_CREAT) != 0 ? va_arg(more, int) : 0;
  va_end(more);
  const int known = open_known(path, flags);
  return known == -2 ? __real_open(path, flags, mode) : known;
}

int __wrap_close(int fd) { return is_ours(fd) || fd == kStatus ? 0 : __real_close(fd); }

int __wrap_fstat(int fd, struct stat* status) {
  if (!is_ours(fd)) return __real_fstat(fd, status);
  *status = file_of(fd).status;
  return 0;
}

int __wrap_fcntl(int fd, int command, ...) {
  va_list more;
  va_start(more, command);
  void* const argument = va_arg(more, void*);
  va_end(more);
  if (!is_ours(fd)) return __real_fcntl(fd, command, argument);
  demand(command == F_GET_SEALS && mode_of(fd) != kPath, "a known file is asked for its seals");
  return file_of(fd).seals < 0 ? failed(EINVAL) : file_of(fd).seals;
}

int __wrap_kill(pid_t pid, int signal) {
  return files().empty() || signal != 0 || pid <= 1 || pid == ::getpid() ? __real_kill(pid, signal)
                                                                         : failed(ESRCH);
}

ssize_t __wrap_read(int fd, void* to, size_t most) {
  if (fd != kStatus) return __real_read(fd, to, most);
  const std::size_t length = std::min(most, own().text.size());
  std::memcpy(to, own().text.data(), length);
  return static_cast<ssize_t>(length);
}

ssize_t __wrap_pread(int fd, void* to, size_t most, off_t from) {
  if (!is_ours(fd)) return __real_pread(fd, to, most, from);
  return __real_pread(file_of(fd).fd, to, most, from);
}

// A pipe that rings nobody.
ssize_t __wrap_write(int fd, const void* from, size_t length) {
  if (!is_ours(fd)) return __real_write(fd, from, length);
  demand(S_ISFIFO(file_of(fd).status.st_mode) && mode_of(fd) == kWrite, "a known pipe is written to");
  return static_cast<ssize_t>(length);
}

void* __wrap_mmap(void* at, size_t length, int protection, int flags, int fd, off_t from) {
  if (!is_ours(fd)) return __real_mmap(at, length, protection, flags, fd, from);
  KnownFile& file = file_of(fd);
  const bool writable = (protection & PROT_WRITE) != 0;
  demand(mode_of(fd) == kWrite || (mode_of(fd) == kRead && !writable),
         "a mapping has the rights of its file");
  Mapped& kept = writable ? file.writable : file.read_only;
  if (!kept.memory) {
    errno = kept.error;
    return MAP_FAILED;
  }
  if (kept.used || from != 0 || length != file.length())
    return __real_mmap(at, length, protection, flags, file.fd, from);
  kept.used = true;
  __asan_unpoison_memory_region(kept.memory, file.guarded());
  return kept.memory;
}

int __wrap_munmap(void* memory, size_t length) {
  for (KnownFile& file : files())
    for (Mapped* const kept : {&file.read_only, &file.writable})
      if (kept->used && kept->memory == memory) {
        demand(length == file.length(), "a mapping is given back as a whole");
        kept->used = false;
        __asan_poison_memory_region(memory, file.guarded());
        return 0;
      }
  return __real_munmap(memory, length);
}

// Nobody else is to go on.
int __wrap_sched_yield() { return 0; }

}  // extern "C"
