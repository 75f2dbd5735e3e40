#pragma once

#include <cstdint>
#include <optional>

#include "base/fd.h"

namespace fab {

// A process, told apart from a later one under the same number by its start time (clock ticks since boot).
struct ProcessId {
  std::int32_t pid = 0;
  std::uint64_t start_time = 0;
  friend bool operator==(const ProcessId&, const ProcessId&) = default;
};

// The start time is 0 where there is no /proc. Throws std::system_error when descriptors or memory run out.
ProcessId this_process();
// Start time of `pid`, or 0 if there is no such process (a zombie counts as none). Throws std::system_error
// where that cannot be found out.
std::uint64_t process_start_time(std::int32_t pid);
// Whether it is certain that the process has ended.
bool process_ended(const ProcessId& id) noexcept;

// The user whose rights process `pid` has now; nothing if that cannot be found out. Throws std::system_error
// when descriptors or memory run out.
std::optional<unsigned> user_of_process(std::int32_t pid);

// Whether the kernel lets process `pid`, of the same user name space, open what this process has open,
// through /proc: users, groups and capabilities decide (ptrace(2), "Ptrace access mode checking"). Security
// modules may forbid what this says is allowed. Throws std::system_error when descriptors or memory run out.
bool may_open_ours(std::int32_t pid);

// 0 in the process that loaded the library, and one more in each generation of children made by fork(). Costs
// one load.
std::uint32_t fork_generation() noexcept;

// Watches one process through a pidfd, so a recycled pid is never taken for it.
class ProcessWatch {
 public:
  ProcessWatch() = default;
  // Not alive from the start if the process is gone or is another one by now. Throws std::system_error where
  // that cannot be found out.
  explicit ProcessWatch(const ProcessId& id);
  bool alive() const noexcept;
  // Readable once the process has ended; -1 if it had ended before.
  int fd() const noexcept { return pidfd_.get(); }

 private:
  OwnFd pidfd_;
};

}  // namespace fab
