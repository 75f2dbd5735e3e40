#include "fabric/domain/domain_core.h"

#include <algorithm>
#include <new>

#include "base/bytes/random.h"
#include "base/locks/tsan.h"
#include "base/process/at_once.h"

namespace fab {
namespace {

Segment create_segment(std::uint8_t (&domain_id)[16]) {
  fill_random(domain_id, sizeof domain_id);
  return Segment::create(domain_id);
}

}  // namespace

DomainCore::DomainCore(DomainOptions options)
    : options_(std::move(options)),
      segment_(create_segment(domain_id_)),
      regions_(segment_.region_area()),
      post_rules_(options_.mr_mode),
      emulation_(options_.non_coherent ? std::make_unique<CacheEmulation>(*options_.non_coherent) : nullptr),
      registrations_(!options_.manual_progress) {}

std::shared_ptr<DomainCore> DomainCore::open(const Opener& opener, DomainOptions options) {
  const CacheSettings cache = CacheSettings::of(options);
  std::shared_ptr<DomainCore> core(new DomainCore(std::move(options)));
  core->domain_ = opener({.segment = core->segment_,
                          .regions = core->regions_,
                          .options = core->options_,
                          .domain_id = core->domain_id_,
                          .observer = core->emulation_.get()});
  // Links that register memory with a device have caches of their own; in this cache regions only have
  // entries.
  core->cache_ = open_cache(cache, {.enroll = [](AddressRange, const MemoryUse&) -> void* { return nullptr; },
                                    .withdraw = [](void*) {}});
  if (!core->options_.manual_progress) core->thread_ = std::make_unique<ProgressThread>();
  return core;
}

// NOLINTNEXTLINE(bugprone-exception-escape): throws only if memory runs out
DomainCore::~DomainCore() {
  if (inherited()) {
    // A child of fork(): the thread does not exist here, and the segment, pipes, sockets and what devices
    // know are the parent's.
    [[maybe_unused]] auto* const thread = thread_.release();
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

std::uint32_t DomainCore::auth_number(const std::string& auth_key) {
  if (auth_key.empty() || auth_key == options_.auth_key) return 0;
  const std::lock_guard lock(mutex_);
  auto found = std::ranges::find(auth_keys_, auth_key);
  if (found == auth_keys_.end()) found = auth_keys_.insert(found, auth_key);
  return static_cast<std::uint32_t>(found - auth_keys_.begin()) + 1;
}

std::uint32_t DomainCore::auth_of(std::span<const std::string> auth_keys) {
  if (auth_keys.empty()) return 0;
  if (auth_keys.size() == 1) return auth_number(auth_keys.front());
  std::uint32_t set = kAuthSet;
  for (const std::string& auth_key : auth_keys) {
    const std::uint32_t number = auth_number(auth_key);
    if (number > kMostInAuthSet)
      throw Error(Errc::too_big, "regions for several authorization keys take the first " +
                                     std::to_string(kMostInAuthSet) +
                                     " that the domain has seen, and this is number " +
                                     std::to_string(number) + "; register the memory once for each key");
    set |= 1u << number;
  }
  return set;
}

AuthKeys DomainCore::keys_of(const EndpointTraits& traits) {
  AuthKeys keys;
  for (const auto& [secret, auth] : traits.keys) {
    const std::uint32_t number = auth_number(secret);
    auto found = std::ranges::find(keys, number, &AuthKey::number);
    if (found == keys.end()) found = keys.insert(found, AuthKey{secret, number});
    if (auth != 0) found->handles.push_back(auth);
  }
  if (keys.size() > kMaxAuthKeys)
    throw Error(Errc::invalid, "the address vector has " + std::to_string(keys.size()) +
                                   " authorization keys, and an endpoint takes at most " +
                                   std::to_string(kMaxAuthKeys) +
                                   "; open an address vector for some of them");
  if (keys.empty()) keys.push_back(AuthKey{options_.auth_key});
  return keys;
}

std::shared_ptr<SharedMemory> DomainCore::allocate(std::uint64_t length) const {
  check_open();
  const std::uint64_t page = page_size();
  const std::uint64_t rounded = (std::max<std::uint64_t>(length, 1) + page - 1) / page * page;
  if (rounded < length) throw Error(Errc::no_memory, "cannot allocate " + std::to_string(length) + " bytes");
  auto memory = std::make_shared<SharedMemory>();
  memory->file = make_memory_file("pyfab-memory", rounded);
  memory->mapping = Mapping::shared(memory->file.get(), 0, rounded);
  return memory;
}

std::shared_ptr<Counter> DomainCore::open_counter() {
  check_open();
  const std::lock_guard lock(mutex_);
  std::uint32_t index = counters_used_;
  if (!free_counters_.empty()) {
    index = free_counters_.back();
    free_counters_.pop_back();
  } else if (index == kMaxCounters) {
    throw Error(Errc::no_memory,
                "all " + std::to_string(kMaxCounters) + " counters of the domain are in use");
  } else {
    ++counters_used_;
  }
  CounterCell& cell = segment_.counters()[index];
  cell.value.store(0);
  cell.errors.store(0);
  cell.waiters.store(0);
  std::shared_ptr<Counter> counter(new Counter(cell, index), [self = shared_from_this()](Counter* dead) {
    const std::lock_guard guard(self->mutex_);
    self->free_counters_.push_back(dead->index());
    delete dead;
  });
  counter->wakeup().set([weak = weak_from_this()] {
    if (const auto self = weak.lock()) self->wake();
  });
  return counter;
}

std::shared_ptr<EventQueue> DomainCore::open_event_queue(std::int64_t losses) {
  check_open();
  auto queue = std::make_shared<EventQueue>(losses);
  queue->wakeup().set([weak = weak_from_this()] {
    if (const auto self = weak.lock()) self->wake();
  });
  return queue;
}

std::shared_ptr<CompletionQueue> DomainCore::open_completion_queue(std::size_t size,
                                                                   CompletionQueue::WhenFull when_full) {
  check_open();
  auto queue = std::make_shared<CompletionQueue>(size, when_full);
  queue->wakeup().set([weak = weak_from_this()] {
    if (const auto self = weak.lock()) self->wake();
  });
  return queue;
}

std::shared_ptr<Context> DomainCore::open_context(std::uint16_t index, const EndpointTraits& traits,
                                                  std::shared_ptr<AddressVector> peers,
                                                  std::shared_ptr<CompletionQueue> completions,
                                                  std::shared_ptr<EventQueue> events) {
  AuthKeys keys = keys_of(traits);
  const std::lock_guard lock(mutex_);
  check_open();
  std::uint16_t cell = 0;
  while (std::ranges::any_of(contexts_, [&](const auto& open) { return open->cell() == cell; })) ++cell;
  if (cell >= kMaxContexts)
    throw Error(Errc::no_memory,
                "all " + std::to_string(kMaxContexts) + " contexts of the domain are in use");
  Port& port = segment_.header().ports.of[cell];
  port.endpoint.store(traits.number);
  port.events.store(traits.counts ? 1 : 0);
  set_auth_keys(segment_, cell, keys);
  auto context =
      std::make_shared<Context>(*domain_, Context::Parameters{.index = index,
                                                              .cell = cell,
                                                              .keys = std::move(keys),
                                                              .rules = &post_rules_,
                                                              .exempt = traits.exempt,
                                                              .rx_bits = traits.rx_bits,
                                                              .max_group_id = traits.max_group_id,
                                                              .directed_receive = traits.directed_receive,
                                                              .shared_receives = options_.shared_receives,
                                                              .peers = std::move(peers),
                                                              .completions = std::move(completions),
                                                              .wake_domain = [weak = weak_from_this()] {
                                                                if (const auto self = weak.lock())
                                                                  self->wake();
                                                              }});
  context->bind(std::move(events));
  context->peers().watch(context);
  contexts_.reserve(contexts_.size() + 1);
  if (thread_) thread_->add(context);
  contexts_.push_back(context);
  choose_lead();
  return context;
}

void DomainCore::close_context(Context& context) {
  if (inherited()) return;
  std::shared_ptr<Context> closing;
  ProgressThread* thread = nullptr;
  {
    const std::lock_guard lock(mutex_);
    const auto found =
        std::ranges::find_if(contexts_, [&](const auto& open) { return open.get() == &context; });
    if (found == contexts_.end()) return;
    closing = *found;
    contexts_.erase(found);
    thread = thread_.get();
    if (thread) ++thread_users_;
    choose_lead();
  }
  if (thread) {
    thread->remove(context);
    const std::lock_guard lock(mutex_);
    if (--thread_users_ == 0) thread_unused_.notify_all();
  }
  closing->close();
}

std::shared_ptr<Context> DomainCore::first_context() const {
  const std::lock_guard lock(mutex_);
  return contexts_.empty() ? nullptr : contexts_.front();
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
  constexpr auto kSlice = std::chrono::milliseconds(1);
  for (;;) {
    check_open();
    if (done()) return true;
    if (deadline.passed()) return false;
    registrations_.work();
    const auto context = first_context();
    if (!context) {
      // Without a context nothing arrives: what the caller waits for can come only from this process.
      std::unique_lock lock(idle_mutex_);
      idle_wake_.wait_until(lock, deadline.sooner(std::chrono::milliseconds(50)).at());
    } else if (options_.manual_progress) {
      progress();  // nobody else drives the other contexts
      context->wait(done, deadline.sooner(kSlice));
    } else {
      context->wait(done, deadline);
    }
  }
}

void DomainCore::progress() {
  registrations_.work();
  for (auto context = context_from(0); context; context = context_from(context->cell() + std::size_t{1}))
    context->progress();
}

void DomainCore::choose_lead() {
  const std::lock_guard lock(lead_mutex_);
  lead_ = contexts_.empty() ? nullptr : contexts_.front().get();
  segment_.header().waiter_cell.store(lead_ ? lead_->cell() : 0);
}

void DomainCore::wake() noexcept {
  const std::lock_guard lock(lead_mutex_);
  if (lead_) lead_->driver().wake();
  idle_wake_.notify_all();
}

void DomainCore::start_retiring(std::uint32_t index) {
  if (inherited()) return;
  regions_.start_close(index);
  interrupt_accesses(index);
}

// The open context with the smallest cell from `cell` on. With this, contexts can be visited while others
// come and go, and without memory for a list of them.
std::shared_ptr<Context> DomainCore::context_from(std::size_t cell) const {
  const std::lock_guard lock(mutex_);
  std::shared_ptr<Context> next;
  for (const auto& context : contexts_)
    if (context->cell() >= cell && (!next || context->cell() < next->cell())) next = context;
  return next;
}

void DomainCore::interrupt_accesses(std::uint32_t index) {
  for (auto context = context_from(0); context; context = context_from(context->cell() + std::size_t{1}))
    context->locked([&](Endpoint& endpoint) { endpoint.forget(index); });
  if (DeviceMemory* const devices = domain_->device_memory()) devices->forget(index);
}

bool DomainCore::retired(std::uint32_t index, Deadline deadline) {
  if (inherited()) return true;
  if (!segment_.wait_unused(index, deadline)) return false;
  regions_.finish_close(index);
  return true;
}

// False where the threads that close contexts would wait for this one: it is the progress thread, or it runs
// a destructor and may hold what callbacks need.
bool DomainCore::may_close_at_once() const noexcept {
  const auto self = weak_from_this().lock();  // null: from the destructor
  const std::lock_guard lock(mutex_);
  return self && !(thread_ && thread_->is_this_thread());
}

void DomainCore::close_contexts(std::span<const std::shared_ptr<Context>> contexts) {
  const auto end = [this](const std::shared_ptr<Context>& context) { close_context(*context); };
  if (may_close_at_once())
    at_once(contexts, end);
  else
    std::ranges::for_each(contexts, end);
}

// Empty where there is no memory for the list.
std::vector<std::shared_ptr<Context>> DomainCore::open_contexts() const noexcept try {
  const std::lock_guard lock(mutex_);
  return contexts_;
} catch (const std::bad_alloc&) {
  return {};
}

void DomainCore::close_all_contexts() {
  close_contexts(open_contexts());
  while (const auto context = first_context()) close_context(*context);  // what came meanwhile
}

void DomainCore::close(bool force) {
  if (closed() || inherited()) return;
  {
    const std::lock_guard lock(mutex_);
    if (!force && post_rules_.mapped_keys() != 0)
      throw Error(Errc::busy, "the domain still has " + std::to_string(post_rules_.mapped_keys()) +
                                  " mapped keys; unmap them first (unmap_key)");
    if (!force && (!contexts_.empty() || regions_.size() != 0))
      throw Error(Errc::busy, "the domain still has " + std::to_string(contexts_.size()) +
                                  " open endpoint contexts and " + std::to_string(regions_.size()) +
                                  " regions that peers can reach; close them first");
    if (closed_.exchange(true)) return;
  }
  segment_.header().closed.store(1);
  registrations_.stop();
  if (cache_.cache) cache_.cache->clear();
  close_all_contexts();
  std::unique_lock lock(mutex_);
  auto thread = std::move(thread_);
  if (thread && thread->is_this_thread()) {
    // A callback on the progress thread closes the domain, so another thread has to join the progress thread.
    // Other calls may still be inside it, and need the domain until then; only the destructor has the domain
    // to itself.
    std::thread([self = weak_from_this().lock(), thread = std::move(thread)]() mutable {
      if (self) {
        std::unique_lock users(self->mutex_);
        self->thread_unused_.wait(users, [&] { return self->thread_users_ == 0; });
      }
      thread.reset();
    }).detach();
  } else {
    thread_unused_.wait(lock, [&] { return thread_users_ == 0; });
    lock.unlock();
    thread.reset();
  }
  idle_wake_.notify_all();
}

}  // namespace fab
