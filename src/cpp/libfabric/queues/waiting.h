#pragma once

#include <rdma/fi_eq.h>
#include <rdma/fi_errno.h>

#include <chrono>

#include "base/deadline.h"

// How long, and on what, programs wait for queues and counters.
namespace fab::fi {

inline Deadline deadline_of(int milliseconds) {
  return milliseconds < 0 ? Deadline() : Deadline::in(std::chrono::milliseconds(milliseconds));
}

// The commands of fi_control(3) that ask a queue for its wait object, which is of this kind. `descriptor` is
// called where that is one.
template <class Descriptor>
int tell_wait_object(int command, void* argument, fi_wait_obj kind, const Descriptor& descriptor) {
  if (command == FI_GETWAITOBJ) {
    *static_cast<fi_wait_obj*>(argument) = kind;
    return 0;
  }
  if (command != FI_GETWAIT) return -FI_ENOSYS;
  if (kind != FI_WAIT_FD) return -FI_ENODATA;
  *static_cast<int*>(argument) = descriptor();
  return 0;
}

}  // namespace fab::fi
