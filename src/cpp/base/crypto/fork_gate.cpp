#include "base/crypto/fork_gate.h"

#include <pthread.h>

namespace fab {
namespace {

// Who forks comes before those who go in: else threads that follow each other would keep it out for ever.
pthread_rwlock_t gate = PTHREAD_RWLOCK_WRITER_NONRECURSIVE_INITIALIZER_NP;

void open_in_parent() { ::pthread_rwlock_unlock(&gate); }
// Threads that waited count as readers in a copy of the lock, and they are not in the child.
void open_in_child() { gate = PTHREAD_RWLOCK_WRITER_NONRECURSIVE_INITIALIZER_NP; }

}  // namespace

ForkGate::ForkGate() noexcept {
  [[maybe_unused]] static const int told =
      ::pthread_atfork([] { ::pthread_rwlock_wrlock(&gate); }, open_in_parent, open_in_child);
  ::pthread_rwlock_rdlock(&gate);
}

ForkGate::~ForkGate() { ::pthread_rwlock_unlock(&gate); }

}  // namespace fab
