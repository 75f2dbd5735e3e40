#include "fabric/memory_region.h"

#include <algorithm>
#include <string>
#include <system_error>

#include "base/memory_map.h"
#include "fabric/counter.h"
#include "fabric/domain_core.h"
#include "fabric/raw_key.h"

namespace fab {
namespace {

constexpr std::uint32_t kStores = access::kRecv | access::kRead | access::kRemoteWrite;

Error invalid(const std::string& why) { return {Errc::invalid, "cannot register memory: " + why}; }

Error unbacked() {
  return {Errc::bounds,
          "part of the memory is not there, or not accessible, and this domain demands that it is "
          "(MRMode.ALLOCATED); map it before it is registered"};
}

}  // namespace

MemoryRegion::MemoryRegion(std::shared_ptr<DomainCore> domain, Parameters parameters)
    : domain_(std::move(domain)), parameters_(std::move(parameters)) {
  check_arguments();
  const DomainOptions& options = domain_->options();
  id_ = domain_->next_region_id();
  if (mode(mr_mode::kVirtAddr)) base_ = address();
  starts_disabled_ = mode(mr_mode::kEndpoint) ||
                     (mode(mr_mode::kRmaEvent) && (parameters_.flags & region_flag::kRmaEvent) != 0);
  if (!parameters_.asynchronous && mode(mr_mode::kAllocated) && !fully_backed()) throw unbacked();
  if (!parameters_.asynchronous) lease_memory();

  local_ = domain_->local_regions().insert(parameters_.buffers);
  if ((parameters_.access & access::kRemote) != 0) {  // others take no key (MR-20)
    RegionTable& table = domain_->regions();
    const bool chosen = parameters_.requested_key == kNoKey || mode(mr_mode::kProvKey | mr_mode::kRaw);
    key_ = chosen ? table.fresh_key(options.mr_key_size) : parameters_.requested_key;
    const bool at_once = !parameters_.asynchronous && !starts_disabled_ && !mode(mr_mode::kMmuNotify);
    RegionRecord record{.key = key_,
                        .base = base_,
                        .buffers = parameters_.buffers,
                        .access = parameters_.access,
                        .flags = parameters_.flags & region_flag::kPersistent,
                        .file = parameters_.file,
                        .file_offset = parameters_.file_offset,
                        .auth = domain_->auth_number(parameters_.auth_key),
                        .enabled = at_once};
    const bool emulated = domain_->emulation() && !parameters_.coherent;
    index_ = table.insert(emulated ? emulate(record) : record);
    if (emulated) domain_->emulation()->watch(index(), emulated_);
    if (at_once) enabled_.store(true);
  }
  if (domain_->post_rules().checks_local())
    domain_->post_rules().add_local(id_, parameters_.buffers, parameters_.access);
  if (parameters_.asynchronous) return;
  if (index_ < 0 || enabled_.load()) {
    enabled_.store(!starts_disabled_);
    state_.store(State::open);
  } else if (const Errc error = complete(); error != Errc::ok) {
    close({});
    throw Error(error, "cannot register memory: " + std::string(describe(error)));
  }
}

// NOLINTNEXTLINE(bugprone-exception-escape): only for want of memory
MemoryRegion::~MemoryRegion() {
  if (state() == State::registering) state_.store(State::failed);
  close({});
}

bool MemoryRegion::mode(std::uint32_t bits) const noexcept {
  return (domain_->options().mr_mode & bits) != 0;
}

void MemoryRegion::check_arguments() {
  const Info& info = domain_->info();
  const DomainOptions& options = domain_->options();
  if (parameters_.buffers.empty()) throw invalid("no buffer was given");
  if (parameters_.buffers.size() > info.mr_iov_limit)
    throw invalid(std::to_string(parameters_.buffers.size()) +
                  " buffers, and the domain takes at most mr_iov_limit = " +
                  std::to_string(info.mr_iov_limit) + " in one region");
  if (parameters_.access & ~access::kAll) throw invalid("access has bits that are none of the six rights");
  if (parameters_.flags & ~(region_flag::kPersistent | region_flag::kRmaEvent))
    throw Error(Errc::bad_flags, "a region takes the flags PMEM and RMA_EVENT");
  for (const iovec& buffer : parameters_.buffers) {
    const auto start = reinterpret_cast<std::uint64_t>(buffer.iov_base);
    if (buffer.iov_len == 0) throw invalid("a buffer has length 0");
    if (start + buffer.iov_len - 1 < start) throw invalid("a buffer runs past the end of the address space");
    length_ += buffer.iov_len;
  }
  const std::uint64_t wanted = parameters_.requested_key;
  if (wanted == kNoKey || (parameters_.access & access::kRemote) == 0) return;
  if (mode(mr_mode::kProvKey | mr_mode::kRaw)) {
    if (options.strict_keys)
      throw Error(Errc::key_rejected,
                  "key " + std::to_string(wanted) +
                      " was asked for, but in this domain (PROV_KEY or RAW, strict_keys) the library chooses "
                      "keys");
  } else if (options.mr_key_size < 8 && wanted >> (options.mr_key_size * 8) != 0) {
    throw Error(Errc::key_rejected, "key " + std::to_string(wanted) + " does not fit the " +
                                        std::to_string(options.mr_key_size) +
                                        " bytes of keys in this domain (mr_key_size)");
  }
}

// Makes the device's view, and shows it to peers in place of the user's buffers.
RegionRecord MemoryRegion::emulate(RegionRecord record) {
  CacheEmulation& emulation = *domain_->emulation();
  if (record.flags & region_flag::kPersistent)
    throw Error(
        Errc::not_supported,
        "durable writes end in the region's memory, and on an emulated non-coherent domain they would "
        "end in the device's view; open the domain with coherent=True");
  emulated_ = emulation.open(lmr_context(), parameters_.buffers, parameters_.file >= 0);
  record.buffers = emulated_->device();
  record.file = emulated_->file();
  record.file_offset = emulated_->file_offset();
  if (emulation.model().check) record.flags |= region_flag::kObserved;
  return record;
}

void MemoryRegion::lease_memory() {
  const auto& cache = domain_->registration_cache().cache;
  if (!cache) return;
  const MemoryUse use{
      .rights = static_cast<std::uint16_t>(parameters_.access),
      .auth_key = parameters_.auth_key.empty() ? domain_->options().auth_key : parameters_.auth_key};
  for (const iovec& buffer : parameters_.buffers)
    leases_.push_back(cache->acquire(
        {.start = reinterpret_cast<std::uint64_t>(buffer.iov_base), .length = buffer.iov_len}, use));
}

bool MemoryRegion::fully_backed() const {
  const bool stores = (parameters_.access & kStores) != 0;
  return std::ranges::all_of(parameters_.buffers, [&](const iovec& buffer) {
    const AddressRange range{.start = reinterpret_cast<std::uint64_t>(buffer.iov_base),
                             .length = buffer.iov_len};
    const auto parts = backed_parts(range, stores);
    return parts.size() == 1 && parts.front() == range;
  });
}

// What is backed of the given parts of the region, ordered, as offsets.
std::vector<RegionSpan> MemoryRegion::backed(std::span<const RegionSpan> parts) const {
  const bool stores = (parameters_.access & access::kRemoteWrite) != 0;
  std::vector<RegionSpan> found;
  std::uint64_t offset = 0;  // of the buffer
  for (const iovec& buffer : parameters_.buffers) {
    const auto address = reinterpret_cast<std::uint64_t>(buffer.iov_base);
    for (const AddressRange& span : backed_parts({.start = address, .length = buffer.iov_len}, stores)) {
      const std::uint64_t start = offset + (span.start - address), end = start + span.length;
      for (const RegionSpan& part : parts) {
        const std::uint64_t from = std::max(start, part.offset),
                            to = std::min(end, part.offset + part.length);
        if (from < to) found.push_back({from, to - from});
      }
    }
    offset += buffer.iov_len;
  }
  return found;
}

Errc MemoryRegion::complete() noexcept {
  const Errc outcome = open_to_peers();
  enabled_.store(outcome == Errc::ok && !starts_disabled_);
  state_.store(outcome == Errc::ok ? State::open : State::failed);
  state_.notify_all();
  return outcome;
}

Errc MemoryRegion::open_to_peers() noexcept try {
  if (parameters_.asynchronous) {
    if (mode(mr_mode::kAllocated) && !fully_backed()) return Errc::bounds;
    lease_memory();
  }
  if (index_ < 0) return Errc::ok;
  RegionTable& table = domain_->regions();
  if (mode(mr_mode::kMmuNotify)) {
    const RegionSpan all{0, length_};
    spans_ = backed({&all, 1});
    table.set_spans(index(), spans_);
  }
  if (!starts_disabled_) table.set_enabled(index(), true);
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
  if (index_ < 0)
    throw Error(Errc::access,
                "the region grants no remote rights, so there is nothing to give to peers; register it with "
                "REMOTE_READ or REMOTE_WRITE");
  return static_cast<std::uint32_t>(index_);
}

std::uint64_t MemoryRegion::key() const noexcept {
  return mode(mr_mode::kRaw) || state() == State::registering ? kNoKey : key_;
}

std::string MemoryRegion::raw_key() const {
  check_usable();
  index();
  return encode_raw_key(key_, mode(mr_mode::kRaw) ? kRawKeyBytes : domain_->options().mr_key_size);
}

RemoteRegion MemoryRegion::remote() {
  check_usable();
  index();
  const std::lock_guard lock(mutex_);
  if (!enrolled_) {
    domain_->domain().enroll(*this);
    enrolled_ = true;
  }
  RemoteRegion remote{
      .key = key(), .base = base_, .length = length_, .access = parameters_.access, .parts = {}};
  if (mode(mr_mode::kRaw)) remote.parts.push_back({"raw", 0, raw_key()});
  return remote;
}

void MemoryRegion::bind(std::shared_ptr<Counter> counter) {
  check_usable();
  if (index_ < 0)
    throw Error(Errc::invalid, "the region grants no remote rights, so there is nothing to count");
  if (mode(mr_mode::kRmaEvent) && (parameters_.flags & region_flag::kRmaEvent) == 0)
    throw Error(
        Errc::invalid,
        "in this domain (MRMode.RMA_EVENT) only regions registered with MRFlag.RMA_EVENT take counters");
  const std::lock_guard lock(mutex_);
  if (starts_disabled_ && enabled_.load())
    throw Error(Errc::bad_state, "the region is enabled; counters are bound before enable()");
  domain_->regions().bind_counter(index(), counter->index());
  counters_.push_back(std::move(counter));
}

void MemoryRegion::bind_endpoint(std::uint32_t endpoint) {
  check_usable();
  if (!mode(mr_mode::kEndpoint))
    throw Error(Errc::invalid, "regions are bound to endpoints only in domains opened with MRMode.ENDPOINT");
  const std::lock_guard lock(mutex_);
  if (enabled_.load())
    throw Error(Errc::bad_state, "the region is enabled; an endpoint is bound before enable()");
  if (endpoint_bound_)
    throw Error(Errc::bad_state, "the region is bound to an endpoint already, and takes one");
  if (index_ >= 0) domain_->regions().bind_endpoint(index(), endpoint);
  endpoint_bound_ = true;
}

void MemoryRegion::enable() {
  check_usable();
  if (!starts_disabled_) return;
  const std::lock_guard lock(mutex_);
  if (enabled_.load()) throw Error(Errc::bad_state, "the region is enabled already");
  if (mode(mr_mode::kEndpoint) && !endpoint_bound_)
    throw Error(Errc::bad_state, "bind an endpoint before enable() (MRMode.ENDPOINT)");
  if (mode(mr_mode::kRmaEvent) && (parameters_.flags & region_flag::kRmaEvent) != 0 && counters_.empty())
    throw Error(Errc::bad_state, "bind a counter before enable() (MRFlag.RMA_EVENT)");
  enabled_.store(true);
  if (index_ >= 0 && !refreshing_) domain_->regions().set_enabled(index(), true);
}

bool MemoryRegion::refresh(std::span<const RegionSpan> parts, Deadline deadline) {
  check_usable();
  const RegionSpan all{0, length_};
  if (parts.empty()) parts = {&all, 1};
  for (const RegionSpan& part : parts)
    if (part.offset > length_ || part.length > length_ - part.offset)
      throw Error(Errc::invalid, "[" + std::to_string(part.offset) + ", " + std::to_string(part.offset) +
                                     " + " + std::to_string(part.length) + ") is not inside the region of " +
                                     std::to_string(length_) + " bytes");
  if (index_ < 0 || !mode(mr_mode::kMmuNotify)) return true;
  const std::lock_guard lock(mutex_);
  refreshing_ = true;  // also if time runs out: nobody may use the old spans any more
  domain_->regions().set_enabled(index(), false);
  domain_->interrupt_accesses(index());
  if (!domain_->segment().wait_unused(index(), deadline)) return false;

  std::vector<RegionSpan> kept;
  for (RegionSpan span : spans_) {
    std::vector<RegionSpan> rest{span};
    for (const RegionSpan& part : parts) {
      std::vector<RegionSpan> next;
      for (const RegionSpan& piece : rest) {
        const std::uint64_t end = piece.offset + piece.length, to = part.offset + part.length;
        if (piece.offset < part.offset)
          next.push_back({piece.offset, std::min(end, part.offset) - piece.offset});
        if (end > to) {
          const std::uint64_t from = std::max(piece.offset, to);
          next.push_back({from, end - from});
        }
      }
      rest = std::move(next);
    }
    std::ranges::move(rest, std::back_inserter(kept));
  }
  std::ranges::move(backed(parts), std::back_inserter(kept));
  std::ranges::sort(kept, {}, &RegionSpan::offset);
  spans_.clear();
  for (const RegionSpan& span : kept) {
    if (!spans_.empty() && span.offset <= spans_.back().offset + spans_.back().length)
      spans_.back().length = std::max(spans_.back().length, span.offset + span.length - spans_.back().offset);
    else
      spans_.push_back(span);
  }
  domain_->regions().set_spans(index(), spans_);
  refreshing_ = false;
  if (enabled_.load()) domain_->regions().set_enabled(index(), true);
  return true;
}

bool MemoryRegion::close(Deadline deadline) {
  std::shared_ptr<void> released;  // after the lock: who owns the memory may want other locks
  const std::lock_guard lock(mutex_);
  if (state() == State::closed) return true;
  if (state() == State::registering)
    throw Error(Errc::busy, "the region is still being registered; wait for its event, then close it");
  const auto entry = static_cast<std::uint32_t>(index_);
  if (state() != State::closing) {
    state_.store(State::closing);
    if (domain_->post_rules().checks_local()) domain_->post_rules().remove_local(id_, parameters_.buffers);
    local_.reset();
    if (index_ >= 0) domain_->start_retiring(entry);
    if (emulated_ && !domain_->inherited()) domain_->emulation()->watch(entry, nullptr);
  }
  if (index_ >= 0 && !domain_->retired(entry, deadline)) return false;
  if (emulated_ && !domain_->inherited()) domain_->emulation()->close(lmr_context(), *emulated_);
  emulated_.reset();
  if (enrolled_) domain_->domain().withdraw(*this);
  leases_.clear();
  counters_.clear();
  released = std::move(parameters_.keep_alive);
  state_.store(State::closed);
  return true;
}

std::vector<iovec> MemoryRegion::slice(std::uint64_t offset, std::uint64_t length) const {
  check_usable();
  if (offset > length_ || length > length_ - offset)
    throw Error(mode(mr_mode::kLocal) ? Errc::invalid : Errc::bounds,
                "[" + std::to_string(offset) + ", " + std::to_string(offset) + " + " +
                    std::to_string(length) + ") is not inside the region of " + std::to_string(length_) +
                    " bytes");
  std::vector<iovec> pieces;
  for (const iovec& buffer : parameters_.buffers) {
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
