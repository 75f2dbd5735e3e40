#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <span>
#include <unordered_map>
#include <vector>

#include "base/locks/mutex.h"
#include "fabric/types/types.h"

namespace fab {

// What a domain demands when transfers are posted: in LOCAL mode that local memory is registered, in RAW mode
// that keys were mapped. Most domains demand nothing, and then it costs one load. Safe from any thread.
class PostRules final {
 public:
  explicit PostRules(std::uint32_t mr_mode) noexcept;

  bool active() const noexcept { return active_.load(std::memory_order_relaxed); }
  // Throws Error(invalid) where local memory is not in a region with the right that the operation needs
  // (FI_MR_LOCAL of fi_mr(3)). Returns the batch to post: `batch` itself, or `translated`, in which mapped
  // keys are replaced. With `exempt` nothing is demanded, but mapped keys are replaced all the same.
  std::span<const Transfer> apply(std::span<const Transfer> batch, std::vector<Transfer>& translated,
                                  bool exempt = false) const;

  // Throws Error(invalid) where memory for messages is not in a region with the right to receive.
  void check_receive(std::span<const iovec> memory) const;

  // In LOCAL mode the domain tells of the memory of each region here, by the region's id.
  bool checks_local() const noexcept { return checks_local_; }
  void add_local(std::uint64_t id, std::span<const iovec> buffers, std::uint32_t access);
  void remove_local(std::uint64_t id, std::span<const iovec> buffers) noexcept;

  // Maps `key` to a new number, which transfers name in its place (fi_mr_map_raw(3)).
  std::uint64_t map_key(std::uint64_t key);
  void unmap_key(std::uint64_t mapped);  // throws Error(invalid) if it is none
  std::size_t mapped_keys() const noexcept;

 private:
  struct Local {
    std::uint64_t length, id;
    std::uint32_t access;
  };
  void check_local(const void* memory, std::uint64_t length, std::uint32_t right) const
      FAB_REQUIRES_SHARED(mutex_);
  void check_transfer_memory(const Transfer& transfer) const FAB_REQUIRES_SHARED(mutex_);

  const bool checks_local_, only_mapped_;
  std::atomic<bool> active_;
  mutable SharedMutex mutex_;                                         // guards what follows
  std::multimap<std::uint64_t, Local> local_ FAB_GUARDED_BY(mutex_);  // by start address
  std::uint64_t longest_ FAB_GUARDED_BY(mutex_) = 0;  // the greatest length that was ever in local_
  std::unordered_map<std::uint64_t, std::uint64_t> keys_ FAB_GUARDED_BY(mutex_);
};

}  // namespace fab
