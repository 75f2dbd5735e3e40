#include "base/memory/foreign_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <utility>

namespace fab {
namespace {

bool is_of_kind(ForeignKind kind, mode_t mode) noexcept {
  return kind == ForeignKind::pipe ? S_ISFIFO(mode) : S_ISREG(mode);
}

}  // namespace

std::string ForeignFile::why() const {
  if (error == 0)
    return std::string("shows a file that ") + refusal + " (user " + std::to_string(status.st_uid) + ")";
  return std::string("does not let this process open its memory (") + std::strerror(error) +
         "): same user, and not hardened by PR_SET_DUMPABLE?";
}

ForeignFile open_foreign(std::int32_t pid, int number, ForeignKind kind, int flags) noexcept {
  ForeignFile found;
  const auto failed = [&] {
    found.error = errno;
    found.fd.reset();
    return std::move(found);
  };
  const auto refused = [&](const char* why) {
    found.refusal = why;
    found.fd.reset();
    return std::move(found);
  };
  char path[64];
  std::snprintf(path, sizeof path, "/proc/%d/fd/%d", pid, number);
  const OwnFd seen(::open(path, O_PATH | O_CLOEXEC));
  if (!seen.valid() || ::fstat(seen.get(), &found.status) != 0) return failed();
  if (found.status.st_uid != ::geteuid()) return refused("belongs to another user");
  if (!is_of_kind(kind, found.status.st_mode)) return refused("is of another kind");
  // The path is that of this thread, because /proc/self shows nothing once the first thread has ended.
  std::snprintf(path, sizeof path, "/proc/thread-self/fd/%d", seen.get());
  found.fd.reset(::open(path, flags | O_CLOEXEC | O_NONBLOCK));
  if (!found.fd.valid()) return failed();
  if (kind == ForeignKind::sealed_memory) {
    const int seals = ::fcntl(found.fd.get(), F_GET_SEALS);
    if (seals < 0 || (seals & F_SEAL_SHRINK) == 0) return refused("is not sealed against shrinking");
    // The size counts only now that it cannot shrink any more.
    if (::fstat(found.fd.get(), &found.status) != 0) return failed();
  }
  return found;
}

}  // namespace fab
