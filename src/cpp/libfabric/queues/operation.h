#pragma once

#include <rdma/fi_eq.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>

#include "base/locks/mutex.h"
#include "base/locks/small_mutex.h"
#include "fabric/completion/completion_queue.h"
#include "fabric/completion/operation.h"
#include "fabric/types/types.h"

namespace fab::fi {

inline constexpr std::size_t kMaxPiecesOfCall = 8;  // tx_attr::iov_limit and rx_attr::iov_limit
inline constexpr std::size_t kInjectBytes = 4096;   // tx_attr::inject_size
inline constexpr std::size_t kMostContexts =
    16;  // of one endpoint: domain_attr::max_ep_tx_ctx, max_ep_rx_ctx
inline constexpr std::uint32_t kOwnEntry = 1u << 31;  // in Completion::flags: the context is an Op

class OpPool;

// One call of the program, from its beginning until its entry was read or, where it has none, until it is
// done. A completion carries the address of the operation instead of the program's context, because the entry
// that the program reads tells more than the core keeps: the context, the flags and the buffer.
class Op final : public Operation {
 public:
  explicit Op(OpPool& owner) noexcept : pool(owner) {}

  // Prepares for `transfers` settlements. `told` says whether success has an entry; errors always have one.
  // False: the queue has no room, and nothing was begun. Throws std::bad_alloc without effect.
  struct Call {
    void* context = nullptr;  // the program's
    std::uint64_t flags = 0;  // of the entry, as in fi_cq(3)
    void* buffer = nullptr;   // of the entry: receives only
    CompletionQueue* queue = nullptr;
    Counter* counter = nullptr;
    bool told = true;
    bool many = false;  // a receive for several messages, each of which has an entry
  };
  bool start(std::uint32_t transfers, const Call& call);
  // Nothing was posted.
  void take_back() noexcept;
  // The entry of this operation was read, or one of several.
  void entry_read(bool last) noexcept;
  // kInjectBytes for what is to be sent, if the program may use its buffers again at once, and as many for
  // what an atomic compares with.
  struct Room {
    std::byte sent[kInjectBytes], compared[kInjectBytes];
  };
  Room& room();

  OpPool& pool;
  void* context = nullptr;
  std::uint64_t flags = 0;
  std::byte* buffer = nullptr;
  iovec pieces[2 * kMaxPiecesOfCall];  // of the local memory; cut where a range at the target ends
  Op* next = nullptr;                  // in the pool

 private:
  friend class OpPool;
  static void settled(Operation& operation) noexcept;
  void end_many() noexcept;

  CompletionQueue* queue_ = nullptr;
  bool told_ = false, many_ = false;
  // How much of the end of a receive for several messages is to come: its last entry, and its outcome.
  std::atomic<int> ends_{0};
  std::unique_ptr<Room> room_;
};

// The operations of one endpoint. Queues hold it as long as entries of its operations may lie in them.
class OpPool final {
 public:
  OpPool() = default;
  OpPool(const OpPool&) = delete;
  OpPool& operator=(const OpPool&) = delete;

  Op& take();
  void give(Op& op) noexcept;
  // From now on operations end without entries: the endpoint closes.
  void close() noexcept { closing_.store(true, std::memory_order_relaxed); }
  bool closing() const noexcept { return closing_.load(std::memory_order_relaxed); }

 private:
  friend class Op;
  SmallMutex mutex_;
  Op* free_ FAB_GUARDED_BY(mutex_) = nullptr;
  std::deque<Op> all_ FAB_GUARDED_BY(mutex_);
  std::atomic<bool> closing_{false};
};

}  // namespace fab::fi
