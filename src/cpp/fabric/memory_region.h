#pragma once

#include <sys/uio.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "base/deadline.h"
#include "fabric/name.h"
#include "fabric/types.h"

namespace fab {

class DomainCore;
class Counter;

// Registered memory: what peers may reach under a key. Made by DomainCore::register_memory(), ended by
// close() or with its last reference. Safe from any thread.
class MemoryRegion final {
 public:
  struct Parameters {
    std::vector<iovec> buffers;  // one region, offsets run through them in order
    std::uint32_t access = 0;
    std::uint64_t requested_key = kNoKey;  // kNoKey: the library chooses
    std::uint32_t flags = 0;               // region_flag
    std::uint64_t context = 0;
    std::int32_t file = -1;  // for memory from DomainCore::allocate
    std::uint64_t file_offset = 0;
    std::shared_ptr<void> keep_alive;  // what owns the memory
  };

  MemoryRegion(std::shared_ptr<DomainCore> domain, Parameters parameters);
  ~MemoryRegion();
  MemoryRegion(const MemoryRegion&) = delete;
  MemoryRegion& operator=(const MemoryRegion&) = delete;

  std::uint64_t key() const noexcept { return key_; }  // kNoKey without remote rights
  std::uint64_t base() const noexcept { return base_; }
  std::uint64_t address() const noexcept {
    return reinterpret_cast<std::uint64_t>(parameters_.buffers.front().iov_base);
  }
  std::uint64_t length() const noexcept { return length_; }
  std::uint32_t access() const noexcept { return parameters_.access; }
  std::uint64_t context() const noexcept { return parameters_.context; }
  const std::vector<iovec>& buffers() const noexcept { return parameters_.buffers; }
  bool enabled() const noexcept;
  bool closed() const noexcept { return state_.load() != State::open; }  // or closing
  // What keeps the memory alive, for those who use it locally.
  const std::shared_ptr<void>& keep_alive() const noexcept { return parameters_.keep_alive; }
  DomainCore& domain() const noexcept { return *domain_; }

  // What a peer needs. The first call makes every link of the domain ready to serve the region.
  RemoteRegion remote();
  void bind(std::shared_ptr<Counter> counter);  // counts remote writes
  // From the first call on no new access starts; true once none is running any more and the memory may go.
  // False: out of time, call again. True for a region that is closed.
  bool close(Deadline deadline);
  // Local addresses of [offset, offset + length); throws Error(bounds).
  std::vector<iovec> slice(std::uint64_t offset, std::uint64_t length) const;

 private:
  std::shared_ptr<DomainCore> domain_;
  Parameters parameters_;
  std::uint64_t length_ = 0, key_ = kNoKey, base_ = 0;
  std::int64_t index_ = -1;  // in the region table; -1 without remote rights
  std::vector<std::shared_ptr<Counter>> counters_;
  bool enrolled_ = false;
  enum class State { open, closing, closed };
  std::atomic<State> state_{State::open};
  std::mutex closing_;  // one thread at a time in close()
};

}  // namespace fab
