#include "fabric/domain/domain_core.h"

#include <algorithm>
#include <new>

#include "base/bytes/random.h"
#include "base/locks/mutex.h"
#include "base/locks/tsan.h"
#include "base/memory/fault_guard.h"

namespace fab {
namespace {

Segment create_segment(std::uint8_t (&domain_id)[16]) {
  fill_random(domain_id, sizeof domain_id);
  return Segment::create(domain_id);
}

}  // namespace

DomainCore::DomainCore(DomainOptions options)
    : security(!options.manual_progress),
      link_log(options.log_links, !options.manual_progress),
      options_(std::move(options)),
      segment_(create_segment(domain_id_)),
      regions_(segment_.region_area()),
      post_rules_(options_.mr_mode),
      emulation_(options_.non_coherent ? std::make_unique<CacheEmulation>(*options_.non_coherent) : nullptr),
      contexts_(segment_),
      auth_keys_(options_.auth_key, segment_, contexts_),
      registrations_(!options_.manual_progress),
      grant_clock_(!options_.manual_progress) {
  arm_fault_guard();
}

std::shared_ptr<DomainCore> DomainCore::open(const Opener& opener, DomainOptions options) {
  const CacheSettings cache = CacheSettings::of(options);
  std::shared_ptr<DomainCore> core(new DomainCore(std::move(options)));
  core->domain_ = opener({.segment = core->segment_,
                          .regions = core->regions_,
                          .options = core->options_,
                          .domain_id = core->domain_id_,
                          .security = core->security,
                          .observer = core->emulation_.get(),
                          .key_pair = std::make_shared<KeyPairOnce>()});
  // Links that register memory with a device have caches of their own; in this cache regions only have
  // entries.
  core->cache_ = open_cache(cache, {.enroll = [](AddressRange, const MemoryUse&) -> void* { return nullptr; },
                                    .withdraw = [](void*) {}});
  if (!core->options_.manual_progress) core->contexts_.start_thread(core->options_.busy_progress);
  return core;
}

// NOLINTNEXTLINE(bugprone-exception-escape): throws only if memory runs out
DomainCore::~DomainCore() {
  if (inherited()) {
    // A child of fork(): the thread does not exist here, and the segment, pipes, sockets and what devices
    // know are the parent's.
    [[maybe_unused]] auto* const links = domain_.release();
    return;
  }
  close(true);
}

void DomainCore::check_open() const {
  if (inherited())
    throw Error(
        Errc::closed,
        "the domain was opened by the parent process, before a fork; open a new domain in this process");
  if (closed()) throw Error(Errc::closed, "the domain is closed");
}

std::shared_ptr<MemoryRegion> DomainCore::register_memory(MemoryRegion::Parameters parameters) {
  check_open();
  auto events = registrations_.bound();
  parameters.asynchronous = events != nullptr;
  auto region = std::make_shared<MemoryRegion>(shared_from_this(), std::move(parameters));
  if (events) registrations_.push(region, std::move(events));
  return region;
}

// Wakes those who wait, as long as the domain lives.
std::function<void()> DomainCore::wake_later() {
  return [weak = weak_from_this()] {
    if (const auto self = weak.lock()) self->contexts_.wake();
  };
}

std::shared_ptr<Counter> DomainCore::open_counter() {
  check_open();
  const std::uint32_t index = take_counter();
  CounterSlot& slot = segment_.counters()[index];
  slot.value.store(0);
  slot.errors.store(0);
  slot.waiters.store(0);
  Counter* made = nullptr;
  try {
    made = new Counter(slot, index, [weak = weak_from_this()] {
      if (const auto self = weak.lock()) self->take_notices();
    });
  } catch (const std::bad_alloc&) {
    give_back_counter(index);
    throw;
  }
  // Without memory for what it keeps beside the counter, this ends the counter as well.
  std::shared_ptr<Counter> counter(made, [self = shared_from_this()](Counter* dead) {
    const std::uint32_t free = dead->index();
    delete dead;
    self->give_back_counter(free);
  });
  counter->wakeup().set(wake_later());
  return counter;
}

// The number of a slot. There is room to give it back from now on.
std::uint32_t DomainCore::take_counter() {
  const LockGuard lock(counters_mutex_);
  if (!free_counters_.empty()) {
    const std::uint32_t index = free_counters_.back();
    free_counters_.pop_back();
    return index;
  }
  if (counters_used_ == kMaxCounters)
    throw Error(Errc::no_memory,
                "all " + std::to_string(kMaxCounters) + " counters of the domain are in use");
  if (counters_used_ == free_counters_.capacity())
    free_counters_.reserve(2 * std::size_t{counters_used_} + 1);
  return counters_used_++;
}

void DomainCore::give_back_counter(std::uint32_t index) noexcept {
  const LockGuard lock(counters_mutex_);
  free_counters_.push_back(index);
}

std::shared_ptr<EventQueue> DomainCore::open_event_queue(std::int64_t losses) {
  check_open();
  auto queue = std::make_shared<EventQueue>(losses);
  queue->wakeup().set(wake_later());
  return queue;
}

std::shared_ptr<CompletionQueue> DomainCore::open_completion_queue(std::size_t size,
                                                                   CompletionQueue::WhenFull when_full) {
  check_open();
  auto queue = std::make_shared<CompletionQueue>(size, when_full);
  queue->wakeup().set(wake_later());
  return queue;
}

std::shared_ptr<Context> DomainCore::open_context(std::uint16_t index, const EndpointTraits& traits,
                                                  std::shared_ptr<AddressVector> peers,
                                                  std::shared_ptr<CompletionQueue> completions,
                                                  std::shared_ptr<EventQueue> events) {
  const auto make = [&](std::uint16_t slot, AuthKeys keys) {
    check_open();
    ContextRights& rights = segment_.header().context_rights.of[slot];
    rights.endpoint.store(traits.number);
    rights.events.store(traits.counts ? 1 : 0);
    const std::uint64_t counters = contexts_.counters().note(slot, traits.remote_writes, traits.remote_reads);
    set_auth_keys(segment_, slot, keys);
    auto context = std::make_shared<Context>(*domain_,
                                             Context::Parameters{.index = index,
                                                                 .slot = slot,
                                                                 .rules = &post_rules_,
                                                                 .exempt = traits.exempt,
                                                                 .rx_bits = traits.rx_bits,
                                                                 .max_group_id = traits.max_group_id,
                                                                 .directed_receive = traits.directed_receive,
                                                                 .shared_receives = options_.shared_receives,
                                                                 .peers = std::move(peers),
                                                                 .completions = std::move(completions),
                                                                 .wake_domain = wake_later(),
                                                                 .link_log = &link_log},
                                             std::move(keys));
    rights.counters.store(counters);
    context->bind(std::move(events));
    context->peers().watch(context);
    return context;
  };
  return auth_keys_.open(traits.keys, [&](AuthKeys keys) {
    return contexts_.open([&](std::uint16_t slot) { return make(slot, std::move(keys)); });
  });
}

SyncReports DomainCore::synchronise(SyncSide side, std::span<const Triplet> segments, bool deliberate) {
  check_open();
  if (!segments.data() && !segments.empty())
    throw Error(Errc::invalid, std::to_string(segments.size()) + " segments and no list of them");
  if (const std::size_t bad = local_regions_.first_outside(segments); bad != segments.size()) {
    const Triplet& segment = segments[bad];
    throw SegmentError(bad,
                       std::to_string(segment.segment_length) + " bytes from address " +
                           std::to_string(segment.virtual_address) +
                           (segment.lmr_context == 0 ? " do not lie within one open region of this domain"
                                                     : " are not inside an open region of this domain "
                                                       "with lmr_context " +
                                                           std::to_string(segment.lmr_context)) +
                           "; nothing was synchronised");
  }
  std::atomic_thread_fence(std::memory_order_seq_cst);
  (side == SyncSide::read) ? tsan_stores.release() : tsan_puts.acquire();
  if (!emulation_) return {};
  return emulation_->synchronise(side, segments, deliberate);
}

bool DomainCore::wait(const std::function<bool()>& done, Deadline deadline) {
  for (;;) {
    check_open();
    if (done()) return true;
    if (deadline.passed()) return false;
    registrations_.work();
    grant_clock_.expire();
    contexts_.wait(done, deadline, options_.manual_progress);
  }
}

void DomainCore::progress() {
  registrations_.work();
  grant_clock_.expire();
  contexts_.progress();
}

void DomainCore::start_retiring(std::uint32_t index) {
  if (inherited()) return;
  regions_.start_close(index);
  interrupt_accesses(index);
}

void DomainCore::interrupt_accesses(std::uint32_t index) {
  contexts_.visit_all(
      [&](Context& context) { context.locked([&](Endpoint& endpoint) { endpoint.forget(index); }); });
  if (DeviceMemory* const devices = domain_->device_memory()) devices->forget(index);
}

bool DomainCore::retired(std::uint32_t index, Deadline deadline) {
  if (inherited()) return true;
  if (!quiet(index, deadline)) return false;
  regions_.finish_close(index);
  return true;
}

bool DomainCore::quiet(std::uint32_t index, Deadline deadline) {
  if (!segment_.wait_unused(index, deadline)) return false;
  // Notices of puts are judged by the entry as it is now.
  if (regions_.told_of(index)) take_notices();
  return true;
}

void DomainCore::take_notices() {
  if (!inherited()) contexts_.visit_all([](Context& context) { context.take_notices(); });
}

void DomainCore::close(bool force) {
  if (closed() || inherited()) return;
  bool first = true;
  contexts_.decide([&](std::size_t open) {
    if (!force && post_rules_.mapped_keys() != 0)
      throw Error(Errc::busy, "the domain still has " + std::to_string(post_rules_.mapped_keys()) +
                                  " mapped keys; unmap them first (unmap_key)");
    if (!force && (open != 0 || regions_.size() != 0))
      throw Error(Errc::busy, "the domain still has " + std::to_string(open) +
                                  " open endpoint contexts and " + std::to_string(regions_.size()) +
                                  " regions that peers can reach; close them first");
    first = !closed_.exchange(true);
  });
  if (!first) return;
  segment_.header().closed.store(1);
  registrations_.stop();
  grant_clock_.stop();
  if (cache_.cache) cache_.cache->clear();
  const auto self = weak_from_this().lock();  // null: from the destructor
  contexts_.close_all(self == nullptr);
  contexts_.end_thread(self);
}

}  // namespace fab
