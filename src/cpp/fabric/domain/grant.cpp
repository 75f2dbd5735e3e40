#include "fabric/domain/grant.h"

#include <algorithm>
#include <utility>

#include "base/locks/mutex.h"
#include "fabric/completion/counter.h"
#include "fabric/domain/domain_core.h"
#include "fabric/memory/dma_buf.h"
#include "fabric/memory/raw_key.h"

namespace fab {
namespace {

void check(const GrantTerms& terms, const RegionEntry& region) {
  if (terms.access == 0 || (terms.access & ~access::kRemote) != 0)
    throw Error(Errc::invalid, "a grant gives REMOTE_READ, REMOTE_WRITE or both");
  if ((terms.access & ~region.access) != 0)
    throw Error(Errc::access,
                "the grant would give a right that the region does not have; "
                "register the region with it, or leave it out");
  if (terms.offset > region.length || terms.length > region.length - terms.offset)
    throw Error(Errc::bounds, "[" + std::to_string(terms.offset) + ", " + std::to_string(terms.offset) +
                                  " + " + std::to_string(terms.length) + ") is not inside the region of " +
                                  std::to_string(region.length) + " bytes");
  if (terms.length == 0) throw Error(Errc::invalid, "a grant of no bytes would be of no use");
}

// The parts of an address whose owner proves them when it calls.
std::vector<Part> proven_parts(const Domain& domain, const std::string& address) {
  const PartCheck check = domain.part_check();
  std::vector<Part> proven;
  for (Part& part : Name::decode(address).parts)
    if (check({.link = part.link, .context = part.context, .bytes = part.bytes}).proven)
      proven.push_back(std::move(part));
  if (proven.empty())
    throw Error(
        Errc::unreachable,
        "a grant was to be for a peer of whom no link of this domain can tell that it is that peer: its "
        "address is a place, such as a port of its choice, where anybody may listen; let its endpoint "
        "choose its port itself, and use the address of the endpoint");
  return proven;
}

}  // namespace

Grant::Grant(std::shared_ptr<DomainCore> domain, const Source& source, GrantTerms terms)
    : domain_(std::move(domain)), terms_(std::move(terms)), raw_(source.raw) {
  RegionTable& table = domain_->regions();
  const RegionEntry& whole = table.entry(source.index);
  check(terms_, whole);
  GrantLimits limits{.auth = whole.auth, .peers = {}, .until = terms_.until};
  for (const std::string& address : terms_.peers)
    for (Part& part : proven_parts(domain_->domain(), address)) limits.peers.push_back(std::move(part));
  const bool limited = !limits.peers.empty() || !limits.until.never();

  const std::uint64_t base = whole.base == 0 ? 0 : whole.base + terms_.offset;
  iovec pieces[RegionView::kMaxRegionPieces];
  const std::size_t count = table.pieces(whole, terms_.offset, terms_.length, pieces);
  const bool hidden = std::any_of(pieces, pieces + count, [](const iovec& piece) {
    return DmaBuf::hides({.start = reinterpret_cast<std::uint64_t>(piece.iov_base), .length = piece.iov_len});
  });
  if (limited && hidden)
    throw Error(
        Errc::not_supported,
        "a grant for some peers or for a time is served by this process, which does not reach the memory "
        "of this region; grant it to whoever has the key, and revoke it");
  index_ = table.insert({.key = kNoKey,
                         .key_size = domain_->options().mr_key_size,
                         .base = base,
                         .buffers = {pieces, count},
                         .access = terms_.access,
                         .flags = (whole.flags & ~region_flag::kSpans) | region_flag::kGrant |
                                  (limited ? region_flag::kObserved : 0),
                         .file = whole.file,
                         .file_offset = whole.file_offset + terms_.offset,
                         .auth = whole.auth,
                         .enabled = false});
  remote_ = {.key = table.entry(index_).key.load(std::memory_order_relaxed),
             .base = base,
             .length = terms_.length,
             .access = terms_.access | (hidden ? access::kHidden : 0),
             .parts = {}};
  try {
    for (const auto& counter : whole.counters)
      if (const std::uint32_t bound = counter.load(std::memory_order_relaxed); bound != 0)
        table.bind_counter(index_, bound - 1);
    table.bind_endpoint(index_, whole.endpoint);
    if (limited) table.set_limits(index_, std::move(limits));
    if ((whole.flags & region_flag::kSpans) != 0) set_spans(source.spans);
    if (source.emulated && (whole.flags & region_flag::kObserved) != 0)
      domain_->emulation()->watch(index_, source.emulated, terms_.offset);
  } catch (...) {
    end();
    throw;
  }
  table.set_enabled(index_, true);
}

Grant::~Grant() {
  if (!ended()) revoke(Deadline::in_seconds(domain_->options().peer_deadline));
}

RemoteRegion Grant::remote() const {
  if (over())
    throw Error(Errc::closed, "the grant is over: it was revoked, or its time or its region has ended");
  RemoteRegion remote = remote_;
  if (!raw_) return remote;
  const DomainOptions& options = domain_->options();
  const std::size_t size = raw_key_size(options.mr_mode, options.mr_key_size);
  remote.parts.push_back({"raw", 0, encode_raw_key(std::exchange(remote.key, kNoKey), size)});
  return remote;
}

void Grant::set_spans(const RegionSpans& of_region) {
  std::vector<RegionSpan> own;
  const RegionSpans part({{.offset = terms_.offset, .length = terms_.length}});
  const RegionSpans reachable = of_region & part;
  for (const RegionSpan& span : reachable.view())
    own.push_back({.offset = span.offset - terms_.offset, .length = span.length});
  domain_->regions().set_spans(index_, own);
}

void Grant::end() noexcept {
  domain_->regions().start_close(index_);
  domain_->regions().finish_close(index_);
  over_.store(true);
  ended_.store(true);
}

void Grant::start_revoking() {
  if (over_.load()) return;
  const LockGuard lock(mutex_);
  if (over_.exchange(true)) return;
  domain_->start_retiring(index_);
  if (CacheEmulation* const emulation = domain_->emulation(); emulation && !domain_->inherited())
    emulation->watch(index_, nullptr);
}

bool Grant::revoke(Deadline deadline) {
  start_revoking();
  return step_by_step(mutex_, deadline, [&](Deadline step) { return go_on_revoking(step); });
}

bool Grant::go_on_revoking(Deadline deadline) {
  const LockGuard lock(mutex_);
  if (!ended() && domain_->retired(index_, deadline)) ended_.store(true);
  return ended();
}

std::int32_t Grant::peer_inside() const { return ended() ? 0 : domain_->segment().user_of(index_); }

void Grant::bind(const Counter& counter) {
  const LockGuard lock(mutex_);
  if (over_.load()) return;
  domain_->regions().bind_counter(index_, counter.index());
  if (DeviceMemory* const devices = domain_->domain().device_memory()) devices->forget(index_);
}

bool Grant::suspend(Deadline deadline) {
  return step_by_step(mutex_, deadline, [&](Deadline step) { return go_on_suspending(step); });
}

bool Grant::go_on_suspending(Deadline deadline) {
  const LockGuard lock(mutex_);
  if (over_.load()) return true;
  if (!std::exchange(suspended_, true)) {
    domain_->regions().set_enabled(index_, false);
    domain_->interrupt_accesses(index_);
  }
  return domain_->quiet(index_, deadline);
}

void Grant::resume(const RegionSpans& spans) {
  const LockGuard lock(mutex_);
  if (over_.load()) return;
  set_spans(spans);
  suspended_ = false;
  domain_->regions().set_enabled(index_, true);
}

}  // namespace fab
