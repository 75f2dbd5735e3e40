#include "fabric/domain/memory_region.h"

#include <algorithm>
#include <cstddef>
#include <new>
#include <string>
#include <system_error>
#include <utility>

#include "base/bytes/hex.h"
#include "base/locks/mutex.h"
#include "base/memory/memory_map.h"
#include "base/queues/room.h"
#include "fabric/completion/counter.h"
#include "fabric/domain/domain_core.h"
#include "fabric/memory/dma_buf.h"
#include "fabric/memory/raw_key.h"

namespace fab {
namespace {

constexpr std::uint32_t kStores = access::kRecv | access::kRead | access::kRemoteWrite;

AddressRange range_of(const iovec& buffer) noexcept {
  return {.start = reinterpret_cast<std::uint64_t>(buffer.iov_base), .length = buffer.iov_len};
}

Error invalid(const std::string& why) { return {Errc::invalid, "cannot register memory: " + why}; }

Error unbacked() {
  return {Errc::bounds,
          "part of the memory is not there, or not accessible, and this domain demands that it is "
          "(MRMode.ALLOCATED); map it before it is registered"};
}

// The keys as one text, which differs for different lists of keys.
std::string joined(const std::vector<std::string>& auth_keys) {
  if (auth_keys.size() == 1) return auth_keys.front();
  std::string all;
  for (const std::string& auth_key : auth_keys) all += std::to_string(auth_key.size()) + ':' + auth_key;
  return all;
}

}  // namespace

MemoryRegion::MemoryRegion(std::shared_ptr<DomainCore> domain, Parameters parameters)
    : domain_(std::move(domain)),
      buffers_(std::move(parameters.buffers)),
      keep_alive_(std::move(parameters.keep_alive)),
      access_(static_cast<std::uint16_t>(parameters.access)),
      flags_(static_cast<std::uint16_t>(parameters.flags)),
      asynchronous_(parameters.asynchronous),
      exempt_(parameters.exempt) {
  check_arguments(parameters);
  check_hidden();
  starts_disabled_ = mode(mr_mode::kEndpoint) || waits_for_counter();
  if (asynchronous_) {
    if (!parameters.auth_keys.empty()) rare().auth_key = joined(parameters.auth_keys);
  } else {
    if (mode(mr_mode::kAllocated) && !fully_backed()) throw unbacked();
    lease_memory(joined(parameters.auth_keys));
  }
  LocalRegions& locals = domain_->local_regions();
  id_ = locals.insert(buffers_);
  try {
    if ((access_ & access::kRemote) != 0) show_to_peers(parameters);  // without remote rights it has no key
  } catch (...) {
    locals.erase(id_);
    throw;
  }
  if (domain_->post_rules().checks_local()) domain_->post_rules().add_local(id_, buffers(), access_);
  if (asynchronous_) return;
  if (index_ == kNoEntry || enabled_.load()) {
    enabled_.store(!starts_disabled_);
    state_.store(State::open);
  } else if (const Errc error = complete(); error != Errc::ok) {
    close({});
    throw Error(error, "cannot register memory: " + std::string(describe(error)));
  }
}

void MemoryRegion::show_to_peers(const Parameters& parameters) {
  assert_alone();
  RegionTable& table = domain_->regions();
  const bool chosen = parameters.requested_key == kNoKey || mode(mr_mode::kProvKey | mr_mode::kRaw);
  const bool at_once = !asynchronous_ && !starts_disabled_ && !mode(mr_mode::kMmuNotify);
  RegionRecord record{
      .key = chosen ? kNoKey : parameters.requested_key,
      .key_size = domain_->options().mr_key_size,
      .base = base(),
      .buffers = buffers(),
      .access = access_,
      .flags = (flags_ & region_flag::kPersistent) |
               (std::ranges::any_of(buffers(), &DmaBuf::any_in, range_of) ? region_flag::kOwnPages : 0),
      .file = parameters.file,
      .file_offset = parameters.file_offset,
      .auth = domain_->auth_keys().number_of_any(parameters.auth_keys),
      .enabled = at_once};
  const bool emulates = domain_->emulation() && !parameters.coherent;
  index_ = table.insert(emulates ? emulate(record) : record);
  key_ = table.entry(index_).key.load(std::memory_order_relaxed);
  if (emulates) domain_->emulation()->watch(index_, emulated());
  if (at_once) enabled_.store(true);
}

// close() throws only while a region is being registered, and this one is not.
// NOLINTNEXTLINE(bugprone-exception-escape)
MemoryRegion::~MemoryRegion() {
  if (state() == State::registering) state_.store(State::failed);
  const double patience = state() == State::closing ? 0 : domain_->options().peer_deadline;
  if (close(Deadline::in_seconds(patience))) return;
  // A peer may be inside for ever, so these are never released.
  alignas(std::shared_ptr<void>) std::byte left[sizeof(std::shared_ptr<void>)];
  ::new (left) std::shared_ptr<void>(std::move(keep_alive_));
  [[maybe_unused]] auto* const rare = rare_.release();
}

std::int32_t MemoryRegion::peer_inside() const {
  if (index_ == kNoEntry) return 0;
  const LockGuard lock(mutex_);
  std::int32_t process = domain_->segment().user_of(index_);
  for (const auto& grant : granted())
    if (process == 0) process = grant->peer_inside();
  return process;
}

bool MemoryRegion::mode(std::uint32_t bits) const noexcept {
  constexpr std::uint32_t kOfPrograms =
      mr_mode::kLocal | mr_mode::kRaw | mr_mode::kMmuNotify | mr_mode::kRmaEvent | mr_mode::kEndpoint;
  return (domain_->options().mr_mode & bits & ~(exempt_ ? kOfPrograms : 0)) != 0;
}

bool MemoryRegion::waits_for_counter() const noexcept {
  return mode(mr_mode::kRmaEvent) && (flags_ & region_flag::kRmaEvent) != 0;
}

MemoryRegion::Rare& MemoryRegion::rare() {
  if (!rare_) rare_ = std::make_unique<Rare>();
  return *rare_;
}

const std::shared_ptr<EmulatedRegion>& MemoryRegion::emulated() const noexcept {
  static const std::shared_ptr<EmulatedRegion> none;
  return rare_ ? rare_->emulated : none;
}

void MemoryRegion::check_arguments(const Parameters& parameters) const {
  const Info& info = domain_->domain().info();
  const DomainOptions& options = domain_->options();
  if (buffers_.size() == 0) throw invalid("no buffer was given");
  if (buffers_.size() > info.mr_iov_limit)
    throw invalid(std::to_string(buffers_.size()) + " buffers, and the domain takes at most mr_iov_limit = " +
                  std::to_string(info.mr_iov_limit) + " in one region");
  if (parameters.access & ~access::kAll) throw invalid("access has bits that are none of the six rights");
  if (parameters.flags & ~(region_flag::kPersistent | region_flag::kRmaEvent))
    throw Error(Errc::bad_flags, "a region takes the flags PMEM and RMA_EVENT");
  for (const iovec& buffer : buffers()) {
    const auto start = reinterpret_cast<std::uint64_t>(buffer.iov_base);
    if (buffer.iov_len == 0) throw invalid("a buffer has length 0");
    if (start + buffer.iov_len - 1 < start) throw invalid("a buffer runs past the end of the address space");
  }
  const std::uint64_t wanted = parameters.requested_key;
  if (wanted == kNoKey || (parameters.access & access::kRemote) == 0) return;
  if (mode(mr_mode::kProvKey | mr_mode::kRaw)) {
    if (options.strict_keys)
      throw Error(Errc::key_rejected,
                  "key " + hex(wanted) +
                      " was asked for, but in this domain (PROV_KEY or RAW, strict_keys) the library chooses "
                      "keys");
  } else if (options.mr_key_size < 8 && wanted >> (options.mr_key_size * 8) != 0) {
    throw Error(Errc::key_rejected, "key " + hex(wanted) + " does not fit the " +
                                        std::to_string(options.mr_key_size) +
                                        " bytes of keys in this domain (mr_key_size)");
  }
}

void MemoryRegion::check_hidden() const {
  const bool stores = (access_ & kStores) != 0;
  DeviceMemory* const devices = domain_->emulation() ? nullptr : domain_->domain().device_memory();
  for (const iovec& buffer : buffers())
    if (DmaBuf::hides(range_of(buffer)) && !(devices && devices->reaches_hidden(range_of(buffer), stores)))
      throw Error(Errc::not_supported,
                  "the memory is a dma-buf that its exporter does not let processors map, and no device of "
                  "this domain reaches it: open the domain over an RDMA device whose driver registers "
                  "dma-bufs (\"verbs:mlx5_0\"; Linux 5.12 and rdma-core 34 at least), or copy the memory to "
                  "the host");
}

// Makes the device's view, and shows it to peers in place of the user's buffers.
RegionRecord MemoryRegion::emulate(RegionRecord record) {
  assert_alone();
  CacheEmulation& emulation = *domain_->emulation();
  if (record.flags & region_flag::kPersistent)
    throw Error(
        Errc::not_supported,
        "durable writes end in the region's memory, and on an emulated non-coherent domain they would "
        "end in the device's view; open the domain with coherent=True");
  EmulatedRegion& region = *(rare().emulated = emulation.open(id_, buffers(), record.file >= 0));
  record.buffers = region.device();
  record.file = region.file();
  record.file_offset = region.file_offset();
  if (emulation.model().check) record.flags |= region_flag::kObserved;
  return record;
}

void MemoryRegion::lease_memory(const std::string& auth_key) {
  assert_alone();
  const auto& cache = domain_->registration_cache().cache;
  if (!cache) return;
  const MemoryUse use{.rights = access_,
                      .auth_key = auth_key.empty() ? domain_->options().auth_key : auth_key};
  for (const iovec& buffer : buffers()) rare().leases.push_back(cache->acquire(range_of(buffer), use));
}

bool MemoryRegion::fully_backed() const {
  const bool stores = (access_ & kStores) != 0;
  return std::ranges::all_of(buffers(), [&](const iovec& buffer) {
    const AddressRange range = range_of(buffer);
    const auto parts = backed_parts(range, stores);
    return parts.size() == 1 && parts.front() == range;
  });
}

RegionSpans MemoryRegion::backed() const {
  const bool stores = (access_ & access::kRemoteWrite) != 0;
  std::vector<RegionSpan> found;
  std::uint64_t offset = 0;  // of the buffer
  for (const iovec& buffer : buffers()) {
    const auto address = reinterpret_cast<std::uint64_t>(buffer.iov_base);
    for (const AddressRange& span : backed_parts({.start = address, .length = buffer.iov_len}, stores))
      found.push_back({offset + (span.start - address), span.length});
    offset += buffer.iov_len;
  }
  return RegionSpans(std::move(found));
}

Errc MemoryRegion::complete() noexcept {
  const Errc outcome = open_to_peers();
  enabled_.store(outcome == Errc::ok && !starts_disabled_);
  state_.store(outcome == Errc::ok ? State::open : State::failed);
  state_.notify_all();
  return outcome;
}

Errc MemoryRegion::open_to_peers() noexcept try {
  assert_alone();
  if (asynchronous_) {
    if (mode(mr_mode::kAllocated) && !fully_backed()) return Errc::bounds;
    lease_memory(rare_ ? rare_->auth_key : std::string());
  }
  if (index_ == kNoEntry) return Errc::ok;
  RegionTable& table = domain_->regions();
  if (mode(mr_mode::kMmuNotify)) {
    rare().spans = backed();
    table.set_spans(index_, rare().spans.view());
  }
  if (!starts_disabled_) table.set_enabled(index_, true);
  return Errc::ok;
} catch (const Error& error) {
  return error.code();
} catch (const std::exception&) {
  return Errc::no_memory;
}

void MemoryRegion::settle() {
  domain_->registrations().work();
  state_.wait(State::registering);
}

void MemoryRegion::check_usable() const {
  switch (state()) {
    case State::open:
      return;
    case State::registering:
      throw Error(Errc::bad_state, "the region is still being registered; wait for its event");
    case State::failed:
      throw Error(Errc::bad_state,
                  "the registration failed, as its event tells; the region can only be closed");
    default:
      throw Error(Errc::closed, "the region is closed");
  }
}

std::uint32_t MemoryRegion::index() const {
  if (index_ == kNoEntry)
    throw Error(Errc::access,
                "the region grants no remote rights, so there is nothing to give to peers; register it with "
                "REMOTE_READ or REMOTE_WRITE");
  return index_;
}

std::uint64_t MemoryRegion::key() const noexcept {
  const State now = state();
  return mode(mr_mode::kRaw) || now == State::registering || now == State::failed ? kNoKey : key_;
}

std::string MemoryRegion::raw_key() const {
  check_usable();
  index();
  return encode_raw_key(key_, raw_key_size(domain_->options().mr_mode, domain_->options().mr_key_size));
}

RemoteRegion MemoryRegion::remote() {
  const LockGuard lock(mutex_);
  check_usable();
  index();
  const bool hidden = std::ranges::any_of(buffers(), &DmaBuf::hides, range_of);
  RemoteRegion remote{.key = key(),
                      .base = base(),
                      .length = length(),
                      .access = access_ | (hidden ? access::kHidden : 0),
                      .parts = {}};
  if (mode(mr_mode::kRaw)) remote.parts.push_back({"raw", 0, raw_key()});
  return remote;
}

std::shared_ptr<Grant> grant_of(MemoryRegion& region, GrantTerms terms) {
  const LockGuard lock(region.mutex_);
  region.check_usable();
  region.index();
  if (!region.enabled_.load() || region.refreshing_)
    throw Error(Errc::bad_state,
                "peers cannot reach the region: enable() or refresh() it before you grant of it");
  auto& rare = region.rare();
  make_room(rare.grants, [](const auto& grant) { return grant->ended(); });
  const Deadline until = terms.until;
  const Grant::Source source{region.index_, region.mode(mr_mode::kRaw), region.emulated(), rare.spans};
  auto made = std::make_shared<Grant>(region.domain_, source, std::move(terms));
  if (!until.never()) region.domain_->grant_clock_.watch(until, made);
  rare.grants.push_back(made);
  return made;
}

std::vector<std::shared_ptr<Grant>> grants_of(const MemoryRegion& region) {
  if (region.state_.load() == MemoryRegion::State::registering)
    return {};  // not under the lock, and has none
  const LockGuard lock(region.mutex_);
  auto open = region.granted();
  std::erase_if(open, [](const auto& grant) { return grant->over(); });
  return open;
}

const std::vector<std::shared_ptr<Grant>>& MemoryRegion::granted() const noexcept {
  static const std::vector<std::shared_ptr<Grant>> none;
  if (state_.load() == State::registering) return none;  // whoever registers uses rare_ without the lock
  return rare_ ? rare_->grants : none;
}

void MemoryRegion::bind(std::shared_ptr<Counter> counter) {
  const LockGuard lock(mutex_);
  check_usable();
  if (index_ == kNoEntry)
    throw Error(Errc::invalid, "the region grants no remote rights, so there is nothing to count");
  if (mode(mr_mode::kRmaEvent) && !waits_for_counter())
    throw Error(
        Errc::invalid,
        "in this domain (MRMode.RMA_EVENT) only regions registered with MRFlag.RMA_EVENT take counters");
  if (starts_disabled_ && enabled_.load())
    throw Error(Errc::bad_state, "the region is enabled; counters are bound before enable()");
  auto& counters = rare().counters;
  make_room(counters);
  domain_->regions().bind_counter(index_, counter->index());
  if (DeviceMemory* const devices = domain_->domain().device_memory())
    devices->forget(index_);  // writes by devices would not be counted
  for (const auto& grant : granted()) grant->bind(*counter);
  counters.push_back(std::move(counter));
}

void MemoryRegion::bind_endpoint(std::uint32_t endpoint) {
  const LockGuard lock(mutex_);
  check_usable();
  if (!mode(mr_mode::kEndpoint))
    throw Error(Errc::invalid, "regions are bound to endpoints only in domains opened with MRMode.ENDPOINT");
  if (enabled_.load())
    throw Error(Errc::bad_state, "the region is enabled; an endpoint is bound before enable()");
  if (endpoint_bound_)
    throw Error(Errc::bad_state, "the region is bound to an endpoint already, and takes one");
  if (index_ != kNoEntry) domain_->regions().bind_endpoint(index_, endpoint);
  endpoint_bound_ = true;
}

void MemoryRegion::admit(std::span<const std::string> auth_keys) {
  check_usable();
  const std::uint32_t auth = domain_->auth_keys().number_of_any(auth_keys);
  const LockGuard lock(mutex_);
  if (enabled_.load()) throw Error(Errc::bad_state, "the region is enabled already");
  if (index_ != kNoEntry) domain_->regions().set_auth(index_, auth);
}

void MemoryRegion::enable() {
  const LockGuard lock(mutex_);
  check_usable();
  if (!starts_disabled_) return;
  if (enabled_.load()) throw Error(Errc::bad_state, "the region is enabled already");
  if (mode(mr_mode::kEndpoint) && !endpoint_bound_)
    throw Error(Errc::bad_state, "bind an endpoint before enable() (MRMode.ENDPOINT)");
  if (waits_for_counter() && (!rare_ || rare_->counters.empty()))
    throw Error(Errc::bad_state, "bind a counter before enable() (MRFlag.RMA_EVENT)");
  enabled_.store(true);
  if (index_ != kNoEntry && !refreshing_) domain_->regions().set_enabled(index_, true);
}

bool MemoryRegion::refresh(std::span<const RegionSpan> parts, Deadline deadline) {
  return step_by_step(mutex_, deadline, [&](Deadline step) { return go_on_refreshing(parts, step); });
}

bool MemoryRegion::go_on_refreshing(std::span<const RegionSpan> parts, Deadline deadline) {
  const LockGuard lock(mutex_);
  check_usable();
  const RegionSpan all{0, length()};
  if (parts.empty()) parts = {&all, 1};
  for (const RegionSpan& part : parts)
    if (part.offset > all.length || part.length > all.length - part.offset)
      throw Error(Errc::invalid, "[" + std::to_string(part.offset) + ", " + std::to_string(part.offset) +
                                     " + " + std::to_string(part.length) + ") is not inside the region of " +
                                     std::to_string(all.length) + " bytes");
  if (index_ == kNoEntry || !mode(mr_mode::kMmuNotify)) return true;
  // Both stay so if time runs out, because nobody may use the old spans any more, even if another refresh
  // ends before this one goes on.
  const RegionSpans looked_at({parts.begin(), parts.end()});
  RegionSpans& spans = rare().spans;
  spans = spans - looked_at;
  if (!std::exchange(refreshing_, true)) {
    domain_->regions().set_enabled(index_, false);
    domain_->interrupt_accesses(index_);
  }
  if (!domain_->quiet(index_, deadline)) return false;
  for (const auto& grant : granted())
    if (!grant->suspend(deadline)) return false;

  spans = spans | (backed() & looked_at);
  domain_->regions().set_spans(index_, spans.view());
  refreshing_ = false;
  if (enabled_.load()) domain_->regions().set_enabled(index_, true);
  for (const auto& grant : granted()) grant->resume(spans);
  return true;
}

bool MemoryRegion::close(Deadline deadline) {
  return step_by_step(mutex_, deadline, [&](Deadline step) { return go_on_closing(step); });
}

bool MemoryRegion::go_on_closing(Deadline deadline) {
  std::shared_ptr<void> released;  // destroyed after the lock: the memory's owner may take other locks
  const LockGuard lock(mutex_);
  if (state() == State::closed) return true;
  if (state() == State::registering)
    throw Error(Errc::busy, "the region is still being registered; wait for its event, then close it");
  if (state() != State::closing) {
    state_.store(State::closing);
    if (domain_->post_rules().checks_local()) domain_->post_rules().remove_local(id_, buffers());
    domain_->local_regions().erase(id_);
    if (index_ != kNoEntry) domain_->start_retiring(index_);
    for (const auto& grant : granted()) grant->start_revoking();
    if (emulated() && !domain_->inherited()) domain_->emulation()->watch(index_, nullptr);
  }
  for (const auto& grant : granted())
    if (!grant->revoke(deadline)) return false;
  if (index_ != kNoEntry && !domain_->retired(index_, deadline)) return false;
  if (emulated() && !domain_->inherited()) domain_->emulation()->close(id_, *emulated());
  rare_.reset();
  released = std::move(keep_alive_);
  state_.store(State::closed);
  return true;
}

std::vector<iovec> MemoryRegion::slice(std::uint64_t offset, std::uint64_t length) const {
  check_usable();
  const std::uint64_t size = this->length();
  if (offset > size || length > size - offset)
    throw Error(mode(mr_mode::kLocal) ? Errc::invalid : Errc::bounds,
                "[" + std::to_string(offset) + ", " + std::to_string(offset) + " + " +
                    std::to_string(length) + ") is not inside the region of " + std::to_string(size) +
                    " bytes");
  std::vector<iovec> pieces;
  for (const iovec& buffer : buffers()) {
    if (offset >= buffer.iov_len) {
      offset -= buffer.iov_len;
      continue;
    }
    const std::uint64_t part = std::min<std::uint64_t>(length, buffer.iov_len - offset);
    if (part)
      pieces.push_back({static_cast<std::byte*>(buffer.iov_base) + offset, static_cast<std::size_t>(part)});
    length -= part;
    offset = 0;
  }
  return pieces;
}

}  // namespace fab
