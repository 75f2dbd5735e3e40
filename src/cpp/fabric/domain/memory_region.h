#pragma once

#include <sys/uio.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/deadline.h"
#include "base/lifetime.h"
#include "base/locks/mutex.h"
#include "base/locks/small_mutex.h"
#include "fabric/domain/grant.h"
#include "fabric/memory/buffer_list.h"
#include "fabric/registration/registration_cache.h"
#include "fabric/segment/region_spans.h"
#include "fabric/segment/region_table.h"
#include "fabric/types/name.h"
#include "fabric/types/types.h"

namespace fab {

class DomainCore;
class Counter;
class EmulatedRegion;

// Registered memory: what peers may reach under a key, and, in LOCAL mode, what operations may use. It is
// made by DomainCore::register_memory(), and ended by close() or with its last reference. The last reference
// waits for at most `peer_deadline` for a peer that is stopped in the middle of an access; then the memory
// that this peer may still touch is never freed. Safe from any thread.
class MemoryRegion final {
 public:
  struct Parameters {
    BufferList buffers;  // one region, offsets run through them in order
    std::uint32_t access = 0;
    std::uint64_t requested_key = kNoKey;  // kNoKey: the library chooses
    std::uint32_t flags = 0;               // region_flag
    // Authorization keys, one of which the endpoint of a peer must prove; empty: the domain's.
    std::vector<std::string> auth_keys{};
    std::int32_t file = -1;  // for memory from DomainCore::allocate
    std::uint64_t file_offset = 0;
    bool coherent = false;  // true: the emulated cache of a non-coherent domain does not hold this memory
    std::shared_ptr<void> keep_alive;  // what owns the memory
    bool asynchronous = false;         // complete() is still to be called
    // True: LOCAL, RAW, MMU_NOTIFY, RMA_EVENT and ENDPOINT modes demand nothing for this region.
    bool exempt = false;
  };

  MemoryRegion(std::shared_ptr<DomainCore> domain, Parameters parameters);
  ~MemoryRegion();
  MemoryRegion(const MemoryRegion&) = delete;
  MemoryRegion& operator=(const MemoryRegion&) = delete;

  // The second half of an asynchronous registration. What fails here leaves a region that can only be closed.
  Errc complete() noexcept;
  enum class State : std::uint8_t { registering, open, failed, closing, closed };
  State state() const noexcept { return state_.load(); }
  bool closed() const noexcept { return state() >= State::closing; }

  void settle();  // waits until complete() has run; under manual progress, runs it

  // Names the region among all of this process: in events, and in Triplets as lmr_context. It is not used
  // again before 2^32 others were.
  std::uint32_t id() const noexcept { return id_; }
  // By which operations name local memory. Throws Error: bad_state or closed.
  std::uint32_t descriptor() const {
    check_usable();
    return id_;
  }
  // kNoKey without remote rights, while registering, after that failed, and in RAW mode.
  std::uint64_t key() const noexcept;
  // raw_key_size() bytes (fi_mr_raw_attr(3)). Throws Error: bad_state or access.
  std::string raw_key() const;
  std::uint64_t base() const noexcept { return mode(mr_mode::kVirtAddr) ? address() : 0; }
  std::uint64_t address() const noexcept {
    return reinterpret_cast<std::uint64_t>(buffers_.front().iov_base);
  }
  std::uint64_t length() const noexcept { return buffers_.bytes(); }
  std::uint32_t access() const noexcept { return access_; }
  std::span<const iovec> buffers() const noexcept FAB_LIFETIME_BOUND { return buffers_.view(); }
  bool enabled() const noexcept { return state() == State::open && enabled_.load(); }
  // What keeps the memory alive, for callers that use it locally.
  const std::shared_ptr<void>& keep_alive() const noexcept FAB_LIFETIME_BOUND { return keep_alive_; }
  DomainCore& domain() const noexcept { return *domain_; }

  // What a peer needs. The first call makes every link of the domain ready to serve the region.
  RemoteRegion remote();
  // Remote writes to the region raise the counter (FI_RMA_EVENT). Throws Error: invalid, or bad_state after
  // enable().
  void bind(std::shared_ptr<Counter> counter);
  // ENDPOINT mode: only requests through this endpoint reach the region (FI_MR_ENDPOINT).
  void bind_endpoint(std::uint32_t endpoint);
  // Replaces the authorization keys that were given at the registration. Throws Error(bad_state) once the
  // region is enabled.
  void admit(std::span<const std::string> auth_keys);
  // Opens a region that started disabled (fi_mr_enable(3)). Throws Error(bad_state) if something is still to
  // be bound, or if it is open already. Does nothing in modes whose regions never start disabled.
  void enable();
  // MMU_NOTIFY mode: looks again which pages of the given parts (none: all) are there; only those are
  // reachable afterwards (fi_mr_refresh(3)). Peers are refused meanwhile. False: out of time, call again.
  bool refresh(std::span<const RegionSpan> parts, Deadline deadline);
  // From the first call on no access starts. True once none is running any more, so that the memory may go,
  // and for a region that is closed. False: out of time, call again. Throws Error(busy) while registering.
  bool close(Deadline deadline);
  // The process id of a peer that close() waits for; 0: there is none.
  std::int32_t peer_inside() const;
  // Local addresses of [offset, offset + length); throws Error(bounds).
  std::vector<iovec> slice(std::uint64_t offset, std::uint64_t length) const;

 private:
  friend std::vector<std::shared_ptr<Grant>> grants_of(const MemoryRegion& region);
  friend std::shared_ptr<Grant> grant_of(MemoryRegion& region, GrantTerms terms);

  // What only few regions have.
  struct Rare {
    std::string auth_key;                      // for the leases, until an asynchronous registration completes
    std::shared_ptr<EmulatedRegion> emulated;  // where CPU and peers do not share the memory
    std::vector<std::shared_ptr<Counter>> counters;
    std::vector<RegistrationCache::Lease> leases;  // one for each buffer, where the domain has a cache
    RegionSpans spans;                             // MMU_NOTIFY mode: what is reachable
    std::vector<std::shared_ptr<Grant>> grants;    // some of them may be over
  };
  static constexpr std::uint32_t kNoEntry = ~0u;

  void check_arguments(const Parameters& parameters) const;
  void check_hidden() const;
  void show_to_peers(const Parameters& parameters);
  // Part of refresh() and of close(), under the lock.
  bool go_on_refreshing(std::span<const RegionSpan> parts, Deadline deadline);
  bool go_on_closing(Deadline deadline);
  void lease_memory(const std::string& auth_key);
  Errc open_to_peers() noexcept;
  // A usable region stays usable until it is unlocked. Throws Error: bad_state or closed.
  void check_usable() const;
  // Does nothing: says that the region is not registered yet, or goes, so that one thread alone uses it.
  void assert_alone() const noexcept FAB_ASSERT_HELD(mutex_) {}
  std::uint32_t index() const;  // throws Error(access) without remote rights
  const std::vector<std::shared_ptr<Grant>>& granted() const noexcept FAB_REQUIRES(mutex_);
  bool mode(std::uint32_t bits) const noexcept;
  bool waits_for_counter() const noexcept;
  bool fully_backed() const;
  Rare& rare() FAB_REQUIRES(mutex_);
  const std::shared_ptr<EmulatedRegion>& emulated() const noexcept FAB_REQUIRES(mutex_);
  RegionRecord emulate(RegionRecord record);
  RegionSpans backed() const;

  const std::shared_ptr<DomainCore> domain_;
  BufferList buffers_;
  std::shared_ptr<void> keep_alive_;
  std::unique_ptr<Rare> rare_ FAB_GUARDED_BY(mutex_);
  std::uint64_t key_ = kNoKey;
  std::uint32_t id_ = 0;
  std::uint32_t index_ = kNoEntry;  // in the region table
  const std::uint16_t access_, flags_;
  const bool asynchronous_, exempt_;
  bool starts_disabled_ = false;
  std::atomic<bool> enabled_{false};
  std::atomic<State> state_{State::registering};
  // Guards what follows and rare_. One thread at a time changes a region or its entry in the table.
  mutable SmallMutex mutex_;
  bool endpoint_bound_ FAB_GUARDED_BY(mutex_) = false;
  bool refreshing_ FAB_GUARDED_BY(mutex_) = false;
};

// A further key to the region, to what the terms say, which ends with the region at the latest. Throws Error:
// what Grant() throws, bad_state for a region that peers cannot reach, or closed.
std::shared_ptr<Grant> grant_of(MemoryRegion& region, GrantTerms terms);
// The grants of a region that may still be used.
std::vector<std::shared_ptr<Grant>> grants_of(const MemoryRegion& region);

}  // namespace fab
