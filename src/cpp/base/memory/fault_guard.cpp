#include "base/memory/fault_guard.h"

#include <pthread.h>
#include <ucontext.h>
#include <unistd.h>

#include "base/locks/fork_gate.h"
#include "base/memory/guarded_copy.h"

namespace fab {
namespace {

struct sigaction before_segv, before_bus;

void on_fault(int signal, siginfo_t* info, void* context) {
  const bool sent = info->si_code <= 0;  // by kill() or raise(), and not by an access
  if (!sent && leave_small_copy(context)) return;
  // A handler that another library has put on top, such as Python's faulthandler, may hand a fault on by
  // raise(). It is not in the way any more then, so a small copy is left to meet the fault again.
  const bool handed_on = sent && info->si_pid == ::getpid();
  if (handed_on && in_small_copy()) return;
  if (sigjmp_buf* const exit = detail::fault_exit; exit && (!sent || handed_on)) {
    // The jump leaves the handler for good, so the signal mask of the place of the fault is restored here.
    ::pthread_sigmask(SIG_SETMASK, &static_cast<ucontext_t*>(context)->uc_sigmask, nullptr);
    siglongjmp(*exit, 1);
  }
  const struct sigaction& before = signal == SIGBUS ? before_bus : before_segv;
  if (before.sa_flags & SA_SIGINFO) return before.sa_sigaction(signal, info, context);
  if (before.sa_handler != SIG_DFL && before.sa_handler != SIG_IGN) return before.sa_handler(signal);
  if (!sent) {
    // The access is tried again on return. The signal is blocked then, so the kernel ends the process. That
    // needs no system call, which a sandbox may refuse.
    ::sigaddset(&static_cast<ucontext_t*>(context)->uc_sigmask, signal);
    return;
  }
  struct sigaction standard{};
  standard.sa_handler = SIG_DFL;
  ::sigaction(signal, &standard, nullptr);
  ::raise(signal);
}

}  // namespace

void arm_fault_guard() noexcept {
  static constinit MadeOnce<bool> armed;
  armed.get([] {
    struct sigaction action{};
    action.sa_sigaction = on_fault;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK;
    ::sigaction(SIGSEGV, &action, &before_segv);
    ::sigaction(SIGBUS, &action, &before_bus);
    return true;
  });
}

}  // namespace fab
