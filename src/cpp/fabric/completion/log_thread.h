#pragma once

#include <memory>

namespace fab {

// What a log has noted, and the program has not been told yet.
class Untold {
 public:
  virtual ~Untold() = default;
  // Tells the program what waits, in this thread. Without a lock, because the program's code runs.
  virtual void tell() noexcept = 0;
};

// The thread of this process that tells the program of notes, so that no log waits for the program. The first
// note starts it; a child of fork() gets one of its own. From any thread.
class LogThread final {
 public:
  // Throws where the thread cannot be started. False: the process is at its end, and nothing will be told.
  static bool push(std::shared_ptr<Untold> notes);
  // Ends the thread, if there is one; it tells first what it has been given. For the end of the process.
  static void finish() noexcept;
};

}  // namespace fab
