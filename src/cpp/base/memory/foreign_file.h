#pragma once

#include <sys/stat.h>

#include <cstdint>
#include <string>

#include "base/fd.h"

namespace fab {

enum class ForeignKind : std::uint8_t { sealed_memory, pipe };

// What another process has open, opened here as well, through /proc. It is looked at first, through a
// descriptor that can do nothing else: opening a device, or a file with a lease, has effects of its own.
// Taken are a file in memory that cannot shrink, so that a mapping of it never meets SIGBUS, or a pipe, and
// only if it belongs to the user of this process. That holds for root too, whom the kernel lets open
// everything.
struct ForeignFile {
  OwnFd fd;  // not valid: it cannot be had, or is refused
  struct stat status{};
  int error = 0;  // errno of what failed; 0: the file is there, and is refused
  const char* refusal = "";

  // Continues "process 7 …", for people.
  std::string why() const;
};
// `flags` is O_RDONLY or O_RDWR.
ForeignFile open_foreign(std::int32_t pid, int number, ForeignKind kind, int flags) noexcept;

}  // namespace fab
