#pragma once

#include <pthread.h>

#include <csignal>
#include <thread>
#include <utility>

namespace fab {

// While it lives, the thread that made it takes no signals but those that it raises by what it does itself.
class SignalsBlocked {
 public:
  SignalsBlocked() noexcept {
    sigset_t others;
    ::sigfillset(&others);
    for (const int own : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGABRT}) ::sigdelset(&others, own);
    ::pthread_sigmask(SIG_BLOCK, &others, &before_);
  }
  ~SignalsBlocked() { ::pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  SignalsBlocked(const SignalsBlocked&) = delete;
  SignalsBlocked& operator=(const SignalsBlocked&) = delete;

 private:
  sigset_t before_;
};

// Starts a thread of the library. It takes no signals, which are for the threads of the application, except
// for those that it raises by what it does itself.
template <class Work>
std::thread start_quiet_thread(const char* name, Work work) {
  std::thread thread;
  {
    const SignalsBlocked blocked;  // whoever is started inherits that
    thread = std::thread(std::move(work));
  }
  ::pthread_setname_np(thread.native_handle(), name);
  return thread;
}

}  // namespace fab
