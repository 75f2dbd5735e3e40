#pragma once

#include <list>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/lifetime.h"
#include "base/locks/mutex.h"
#include "fabric/completion/counter.h"
#include "fabric/completion/link_log.h"
#include "fabric/completion/security_log.h"
#include "fabric/context/context_set.h"
#include "fabric/domain/auth_key_ring.h"
#include "fabric/domain/grant_clock.h"
#include "fabric/domain/memory_region.h"
#include "fabric/domain/registration_queue.h"
#include "fabric/memory/local_regions.h"
#include "fabric/memory/post_rules.h"
#include "fabric/memory/raw_key.h"
#include "fabric/noncoherent/cache_emulation.h"
#include "fabric/provider.h"
#include "fabric/registration/cache_settings.h"
#include "fabric/segment/segment.h"

namespace fab {

// An open domain: its segment and region table, its links, its contexts and the thread that serves them.
// Thread-safe. Objects made by it hold it, so it goes last; close() refuses while they are open.
class DomainCore final : public std::enable_shared_from_this<DomainCore> {
 public:
  using Opener = std::function<std::unique_ptr<Domain>(const DomainServices&)>;
  static std::shared_ptr<DomainCore> open(const Opener& opener, DomainOptions options);
  ~DomainCore();

  const DomainOptions& options() const noexcept FAB_LIFETIME_BOUND { return options_; }
  Domain& domain() noexcept { return *domain_; }
  const Domain& domain() const noexcept { return *domain_; }
  Segment& segment() noexcept FAB_LIFETIME_BOUND { return segment_; }
  RegionTable& regions() noexcept FAB_LIFETIME_BOUND { return regions_; }
  LocalRegions& local_regions() noexcept FAB_LIFETIME_BOUND { return local_regions_; }
  CacheEmulation* emulation() noexcept { return emulation_.get(); }  // null: the domain is coherent
  const DomainCache& registration_cache() const noexcept FAB_LIFETIME_BOUND { return cache_; }

  // Asynchronous if an event queue is bound (registrations().bind()): one event tells of the end.
  std::shared_ptr<MemoryRegion> register_memory(MemoryRegion::Parameters parameters);
  RegistrationQueue& registrations() noexcept FAB_LIFETIME_BOUND { return registrations_; }
  PostRules& post_rules() noexcept FAB_LIFETIME_BOUND { return post_rules_; }
  AuthKeyRing& auth_keys() noexcept FAB_LIFETIME_BOUND { return auth_keys_; }
  ContextSet& contexts() noexcept FAB_LIFETIME_BOUND { return contexts_; }
  std::shared_ptr<Counter> open_counter();
  std::shared_ptr<EventQueue> open_event_queue(std::int64_t losses = EventQueue::kLosses);
  std::shared_ptr<CompletionQueue> open_completion_queue(std::size_t size,
                                                         CompletionQueue::WhenFull when_full);
  // What the contexts of one endpoint have in common.
  struct EndpointTraits {
    std::uint32_t number = 0;              // from ContextSet::next_endpoint_number()
    std::vector<AuthKeyRing::Key> keys{};  // peers must prove one of them; empty: the domain's key
    bool counts = true;                    // remote writes through this endpoint raise counters of regions
    unsigned rx_bits = 0;                  // this and the following: as in Context::Parameters
    std::uint64_t max_group_id = kMaxGroupId;
    bool directed_receive = true;
    bool exempt = false;
    // What peers put and get through each of the contexts raises these, if there are any: as ContextRights
    // has it.
    std::shared_ptr<Counter> remote_writes{}, remote_reads{};
  };
  std::shared_ptr<Context> open_context(std::uint16_t index, const EndpointTraits& traits,
                                        std::shared_ptr<AddressVector> peers,
                                        std::shared_ptr<CompletionQueue> completions,
                                        std::shared_ptr<EventQueue> events = nullptr);

  // Makes local memory consistent with what peers see of it (dat_lmr_sync_rdma_read/write). Read side: after
  // stores and before a peer's get. Write side: after a peer's put and before loads and further stores, and
  // after stores to what a peer is about to put into. The effect is there on return, for stores by any thread
  // that happened before, and only on the bytes named. Where the domain needs no synchronisation the calls
  // check their arguments and are full fences, without a system call.
  // Throws Error(closed), or SegmentError for a segment outside of the open regions of this domain; nothing
  // was synchronised then. Returns what the checker reports of the call; one that is not `deliberate` is
  // never needless.
  SyncReports sync_rdma_read(std::span<const Triplet> segments, bool deliberate = true) {
    return synchronise(SyncSide::read, segments, deliberate);
  }
  SyncReports sync_rdma_write(std::span<const Triplet> segments, bool deliberate = true) {
    return synchronise(SyncSide::write, segments, deliberate);
  }

  // Drives the domain until `done()` or the deadline; true if done.
  bool wait(const std::function<bool()>& done, Deadline deadline);
  void progress();

  // Stops serving. Throws Error(busy) while contexts or regions are open, unless `force`, which closes
  // contexts first. Idempotent.
  void close(bool force);
  bool closed() const noexcept { return closed_.load(std::memory_order_acquire); }
  // Throws Error(closed) after close(), and in a child process that inherited the object over fork().
  void check_open() const;
  // Whether this is a child of fork(): then the domain is the parent's.
  bool inherited() const noexcept { return fork_generation_ != fork_generation(); }

  SecurityLog security;  // what strangers and peers did that ended their connections
  LinkLog link_log;      // which link carries which peer

 private:
  friend class Grant;
  friend class MemoryRegion;
  friend std::shared_ptr<Grant> grant_of(MemoryRegion& region, GrantTerms terms);
  explicit DomainCore(DomainOptions options);

  // Of a region. interrupt_accesses() ends what contexts of this process are doing with one that is not
  // enabled any more. start_retiring() takes it away from peers; retired() is true once nothing touches its
  // memory any more, and then frees the entry; false: out of time, call again.
  void interrupt_accesses(std::uint32_t index);
  void start_retiring(std::uint32_t index);
  bool retired(std::uint32_t index, Deadline deadline);
  // Of a region that is not enabled. True once nothing touches its memory any more, and all that was told of
  // it has been read; false: out of time, call again.
  bool quiet(std::uint32_t index, Deadline deadline);
  // Reads the notices of puts that were done before the call.
  void take_notices();

  DomainOptions options_;
  std::uint8_t domain_id_[16] = {};
  const std::uint32_t fork_generation_ = fork_generation();
  Segment segment_;
  RegionTable regions_;
  PostRules post_rules_;
  LocalRegions local_regions_;
  const std::unique_ptr<CacheEmulation> emulation_;
  std::unique_ptr<Domain> domain_;
  DomainCache cache_;

  SyncReports synchronise(SyncSide side, std::span<const Triplet> segments, bool deliberate);
  std::function<void()> wake_later();
  std::uint32_t take_counter() FAB_EXCLUDES(counters_mutex_);
  void give_back_counter(std::uint32_t index) noexcept FAB_EXCLUDES(counters_mutex_);

  ContextSet contexts_;
  AuthKeyRing auth_keys_;
  Mutex counters_mutex_;
  std::vector<std::uint32_t> free_counters_ FAB_GUARDED_BY(counters_mutex_);
  std::uint32_t counters_used_ FAB_GUARDED_BY(counters_mutex_) = 0;
  std::atomic<bool> closed_{false};
  RegistrationQueue registrations_;
  GrantClock grant_clock_;
};

}  // namespace fab
