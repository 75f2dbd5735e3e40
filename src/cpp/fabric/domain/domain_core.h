#pragma once

#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "fabric/completion/counter.h"
#include "fabric/domain/context.h"
#include "fabric/domain/memory_region.h"
#include "fabric/domain/progress_thread.h"
#include "fabric/domain/registration_queue.h"
#include "fabric/memory/local_regions.h"
#include "fabric/memory/post_rules.h"
#include "fabric/memory/raw_key.h"
#include "fabric/noncoherent/cache_emulation.h"
#include "fabric/provider.h"
#include "fabric/registration/cache_settings.h"
#include "fabric/segment/segment.h"

namespace fab {

// Memory from DomainCore::allocate(): peers on the node map it and use plain loads and stores.
struct SharedMemory {
  OwnFd file;
  Mapping mapping;
};

// An open domain: its segment and region table, its links, its contexts and the thread that serves them.
// Thread-safe. Objects made by it hold it, so it goes last; close() refuses while they are open.
class DomainCore final : public std::enable_shared_from_this<DomainCore> {
 public:
  using Opener = std::function<std::unique_ptr<Domain>(const DomainServices&)>;
  static std::shared_ptr<DomainCore> open(const Opener& opener, DomainOptions options);
  ~DomainCore();

  const Info& info() const noexcept { return domain_->info(); }
  const DomainOptions& options() const noexcept { return options_; }
  std::size_t raw_key_size() const noexcept {  // bytes of MemoryRegion::raw_key()
    return options_.mr_mode & mr_mode::kRaw ? kRawKeyBytes : options_.mr_key_size;
  }
  Domain& domain() noexcept { return *domain_; }
  const Domain& domain() const noexcept { return *domain_; }
  Segment& segment() noexcept { return segment_; }
  RegionTable& regions() noexcept { return regions_; }
  LocalRegions& local_regions() noexcept { return local_regions_; }
  CacheEmulation* emulation() noexcept { return emulation_.get(); }  // null: the domain is coherent
  const DomainCache& registration_cache() const noexcept { return cache_; }

  // Asynchronous if an event queue is bound (registrations().bind()): one event tells of the end.
  std::shared_ptr<MemoryRegion> register_memory(MemoryRegion::Parameters parameters);
  RegistrationQueue& registrations() noexcept { return registrations_; }
  PostRules& post_rules() noexcept { return post_rules_; }
  // The number of an authorization key (Visitor::auth).
  std::uint32_t auth_number(const std::string& auth_key);
  // RegionEntry::auth of a region that peers with any of the keys may use; without keys, the domain's is
  // needed.
  std::uint32_t auth_of(std::span<const std::string> auth_keys);
  // `length` bytes of zeroed, page-aligned memory that peers on the node map; freed with the last holder.
  std::shared_ptr<SharedMemory> allocate(std::uint64_t length) const;
  std::shared_ptr<Counter> open_counter();
  std::shared_ptr<EventQueue> open_event_queue(std::int64_t losses = EventQueue::kLosses);
  std::shared_ptr<CompletionQueue> open_completion_queue(std::size_t size,
                                                         CompletionQueue::WhenFull when_full);
  // What the contexts of one endpoint have in common.
  struct EndpointTraits {
    std::uint32_t number = 0;  // from next_endpoint_number()
    struct Key {
      std::string secret;
      std::uint32_t auth = 0;  // in the address vector, as AddressVector::auth()
    };
    std::vector<Key> keys{};  // peers must prove one of them; empty: the domain's key
    bool counts = true;       // remote writes through this endpoint raise counters of regions
    unsigned rx_bits = 0;     // this and the following: as in Context::Parameters
    std::uint64_t max_group_id = kMaxGroupId;
    bool directed_receive = true;
    bool exempt = false;
  };
  std::uint32_t next_endpoint_number() noexcept { return endpoint_numbers_.fetch_add(1) + 1; }
  std::shared_ptr<Context> open_context(std::uint16_t index, const EndpointTraits& traits,
                                        std::shared_ptr<AddressVector> peers,
                                        std::shared_ptr<CompletionQueue> completions,
                                        std::shared_ptr<EventQueue> events = nullptr);
  void close_context(Context& context);  // as close_contexts()
  // Ends the contexts: everything outstanding fails with `canceled`. Each waits for a while until its peers
  // have read its last messages; where threads can be had, all wait at the same time.
  void close_contexts(std::span<const std::shared_ptr<Context>> contexts);

  // Makes local memory consistent with what peers see of it (dat_lmr_sync_rdma_read/write). Read side: after
  // stores and before a peer's get. Write side: after a peer's put and before loads and further stores, and
  // after stores to what a peer is about to put into. The effect is there on return, for stores by any thread
  // that happened before, and only on the bytes named. Where the domain needs no synchronisation the calls
  // check their arguments and are full fences, without a system call.
  // Throws Error(closed), or SegmentError for a segment outside of the open regions of this domain; nothing
  // was synchronised then. Returns what the checker reports of the call; one that is not `deliberate` is
  // never needless.
  bool needs_sync_rdma_read() const noexcept { return emulation_ != nullptr; }
  bool needs_sync_rdma_write() const noexcept { return emulation_ != nullptr; }
  SyncReports sync_rdma_read(std::span<const Triplet> segments, bool deliberate = true) {
    return synchronise(SyncSide::read, segments, deliberate);
  }
  SyncReports sync_rdma_write(std::span<const Triplet> segments, bool deliberate = true) {
    return synchronise(SyncSide::write, segments, deliberate);
  }

  // Drives the domain until `done()` or the deadline; true if done.
  bool wait(const std::function<bool()>& done, Deadline deadline);
  void progress();
  // Wakes those in wait().
  void wake() noexcept;

  // Ends the accesses of this process's contexts to a region that is not enabled any more.
  void interrupt_accesses(std::uint32_t index);
  // Used by MemoryRegion::close(). start_retiring() takes the region away from peers. retired() waits until
  // nothing touches its memory any more, frees the entry and returns true; false: out of time, call again.
  void start_retiring(std::uint32_t index);
  bool retired(std::uint32_t index, Deadline deadline);

  // Stops serving. Throws Error(busy) while contexts or regions are open, unless `force`, which closes
  // contexts first. Idempotent.
  void close(bool force);
  bool closed() const noexcept { return closed_.load(std::memory_order_acquire); }
  // Throws Error(closed) after close(), and in a child process that inherited the object over fork().
  void check_open() const;
  // Whether this is a child of fork(): then the domain is the parent's.
  bool inherited() const noexcept { return fork_generation_ != fork_generation(); }

 private:
  explicit DomainCore(DomainOptions options);

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

  AuthKeys keys_of(const EndpointTraits& traits);
  SyncReports synchronise(SyncSide side, std::span<const Triplet> segments, bool deliberate);
  std::shared_ptr<Context> first_context() const;
  void close_all_contexts();
  std::vector<std::shared_ptr<Context>> open_contexts() const noexcept;
  bool may_close_at_once() const noexcept;
  std::shared_ptr<Context> context_from(std::size_t cell) const;
  void choose_lead();

  // Guards contexts_, free_counters_, counters_used_, auth_keys_, thread_ and thread_users_.
  mutable std::mutex mutex_;
  std::vector<std::shared_ptr<Context>> contexts_;
  std::vector<std::uint32_t> free_counters_;
  std::uint32_t counters_used_ = 0;
  std::vector<std::string> auth_keys_;  // Visitor::auth numbers them from 1
  std::atomic<std::uint32_t> endpoint_numbers_{0};
  std::mutex lead_mutex_;    // taken with context locks held
  Context* lead_ = nullptr;  // the context that wait() drives
  std::mutex idle_mutex_;    // for wait() while there is no context
  std::condition_variable idle_wake_;
  std::atomic<bool> closed_{false};
  unsigned thread_users_ = 0;  // close_context() calls that are inside thread_
  std::condition_variable thread_unused_;
  std::unique_ptr<ProgressThread> thread_;
  RegistrationQueue registrations_;
};

}  // namespace fab
