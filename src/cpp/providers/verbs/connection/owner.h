#pragma once

#include "fabric/types/error.h"
#include "providers/verbs/device/library.h"

namespace fab::verbs {

// Who is told of a connection, and of the completions of its work requests, under the context's lock.
class ConnectionOwner {
 public:
  // The queue pair is there: receives may be posted. False: give up.
  virtual bool on_made() noexcept { return true; }
  virtual void on_connected() noexcept = 0;
  virtual void on_closed(Errc why) noexcept = 0;  // once; not after the owner let go of it
  virtual void on_completion(const ibv_wc& completion) noexcept = 0;

 protected:
  ~ConnectionOwner() = default;
};

}  // namespace fab::verbs
