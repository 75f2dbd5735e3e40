#pragma once

#include <memory>
#include <vector>

#include "base/locks/mutex.h"
#include "fabric/context/context.h"
#include "libfabric/queues/operation.h"

namespace fab::fi {

// The endpoints that tell a queue or a counter: whoever reads it makes them move. Thread-safe.
class Driven final {
 public:
  void add(std::shared_ptr<Context> context, std::shared_ptr<OpPool> pool);
  // The endpoint is closed. Its operations stay, because entries may lie in the queue that name them.
  void remove(const Context& context) noexcept;
  // Moves what can be moved without waiting; false if there is no endpoint.
  bool progress();

 private:
  Mutex mutex_;
  std::vector<std::shared_ptr<Context>> contexts_ FAB_GUARDED_BY(mutex_);
  unsigned idle_turns_ FAB_GUARDED_BY(mutex_) = 0;  // since something moved
  std::vector<std::shared_ptr<OpPool>> pools_ FAB_GUARDED_BY(mutex_);
};

}  // namespace fab::fi
