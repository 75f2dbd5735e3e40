#pragma once

#include <pthread.h>

#include <csignal>
#include <thread>
#include <utility>

namespace fab {

// Starts a thread of the library. It takes no signals, which are for the threads of the application, except
// for those that it raises by what it does itself.
template <class Work>
std::thread start_quiet_thread(const char* name, Work work) {
  sigset_t others, before;
  ::sigfillset(&others);
  for (const int own : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGABRT}) ::sigdelset(&others, own);
  ::pthread_sigmask(SIG_BLOCK, &others, &before);
  std::thread thread(std::move(work));
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  ::pthread_setname_np(thread.native_handle(), name);
  return thread;
}

}  // namespace fab
