#pragma once

#include "fabric/types/error.h"
#include "providers/verbs/device/library.h"

namespace fab::verbs {

// The owner of a connection. It is told of the connection, and of the completions of its work requests, under
// the context's lock.
class ConnectionOwner {
 public:
  // The queue pair exists, and receives may be posted. Returning false ends the connection.
  virtual bool on_made() noexcept { return true; }
  virtual void on_connected() noexcept = 0;
  // Called once, and not after the owner has destroyed the connection. Of a call that never stood, `why` is
  // `busy` if the called side lives and has too many callers for now; `again` if its kernel had no room, or
  // it let go of the call; `closed` if it will not take this call.
  virtual void on_closed(Errc why) noexcept = 0;
  virtual void on_completion(const ibv_wc& completion) noexcept = 0;

 protected:
  ~ConnectionOwner() = default;
};

}  // namespace fab::verbs
