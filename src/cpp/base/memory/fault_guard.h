#pragma once

#include <atomic>
#include <csetjmp>
#include <csignal>

namespace fab {

// Memory that somebody registered may be unmapped while a peer reaches for it. The accesses of the library to
// such memory run under a guard: a fault inside ends the access and is reported, instead of ending the
// process.
//
// SIGSEGV and SIGBUS get a handler when the first guard is armed; a fault outside of a guard goes to whoever
// had the signal before. A handler that another library puts on top later has to pass on what is not its own,
// by a call or, once it has put this one back, by raise().
void arm_fault_guard() noexcept;  // idempotent; thread-safe

namespace detail {
// Where the thread goes on after a fault.
#ifdef __GLIBC__  // has some bytes left for libraries that are opened later, which are reached without a call
[[gnu::tls_model("initial-exec")]]
#endif
inline constinit thread_local sigjmp_buf* fault_exit = nullptr;
}  // namespace detail

// Runs `work`; false if memory that it touched was not there. What was done before the fault stays done.
// While `work` touches guarded memory it must hold no lock and no object with a destructor. Guards may nest.
template <class Work>
[[gnu::noinline]] bool guarded(Work work) noexcept {
  sigjmp_buf exit;
  sigjmp_buf* const outer = detail::fault_exit;
  if (sigsetjmp(exit, 0) != 0) {
    detail::fault_exit = outer;
    return false;
  }
  detail::fault_exit = &exit;
  std::atomic_signal_fence(std::memory_order_seq_cst);
  work();
  std::atomic_signal_fence(std::memory_order_seq_cst);
  detail::fault_exit = outer;
  return true;
}

}  // namespace fab
