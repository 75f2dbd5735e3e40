#pragma once

namespace fab {

// Is held by a thread while it is inside a library that has locks of its own. fork() waits until nobody is,
// and nobody goes in meanwhile: in the child, a lock that another thread held would never be given back.
// Nothing that waits for another thread may be done with it, and it is not taken twice.
class ForkGate {
 public:
  ForkGate() noexcept;
  ~ForkGate();
  ForkGate(const ForkGate&) = delete;
  ForkGate& operator=(const ForkGate&) = delete;
};

}  // namespace fab
