#include "base/locks/fork_gate.h"

#include <pthread.h>

namespace fab {
namespace {

// Who forks comes before those who go in: else threads that follow each other would keep it out for ever.
pthread_rwlock_t gate = PTHREAD_RWLOCK_WRITER_NONRECURSIVE_INITIALIZER_NP;

thread_local unsigned inside = 0;  // how often this thread has it

void open_in_parent() { ::pthread_rwlock_unlock(&gate); }
// Threads that waited count as readers in a copy of the lock, and they are not in the child, so it gets a new
// lock. The unlocking before that is for tools that watch locks: they take the copy for one that is held.
void open_in_child() {
  ::pthread_rwlock_unlock(&gate);
  gate = PTHREAD_RWLOCK_WRITER_NONRECURSIVE_INITIALIZER_NP;
}

// When the library is loaded, so that no thread does it while another one forks.
[[maybe_unused]] const int kTold =
    ::pthread_atfork([] { ::pthread_rwlock_wrlock(&gate); }, open_in_parent, open_in_child);

}  // namespace

ForkGate::ForkGate() noexcept {
  if (inside++ == 0) ::pthread_rwlock_rdlock(&gate);
}

ForkGate::~ForkGate() {
  if (--inside == 0) ::pthread_rwlock_unlock(&gate);
}

}  // namespace fab
