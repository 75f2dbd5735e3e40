#include "providers/verbs/device/regions.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <exception>

#include "base/bytes/random.h"
#include "base/locks/mutex.h"
#include "fabric/memory/dma_buf.h"
#include "fabric/registration/cache_settings.h"
#include "fabric/types/error.h"

namespace fab::verbs {
namespace {

// Regions that are searched for local memory that the device does not know yet.
constexpr std::uint32_t kMostSearched = 4096;
// Rights by which the device stores to a region.
constexpr std::uint32_t kStores = access::kRemoteWrite | access::kWrite | access::kRecv;
constexpr std::uint64_t kAlignment = 2u << 20;     // of slices, which may lie in huge pages
constexpr std::chrono::seconds kAfterRefusal{10};  // memory is not offered to the device again

std::unique_ptr<RegistrationCache> keeping_nothing(const Enroller& enroller) {
  return std::make_unique<RegistrationCache>(CacheLimits{.max_idle = 0}, enroller, nullptr);
}

std::unique_ptr<RegistrationCache> open_cache_of(const DomainOptions& options, const Enroller& enroller) {
  CacheSettings settings = CacheSettings::of(options);
  // Where a child of fork() loses registered memory, what is idle would be missing there for no use.
  if (settings.quiet && !fork_needs_nothing()) settings.wanted = false;
  DomainCache opened = open_cache(settings, enroller);
  return opened.cache ? std::move(opened.cache) : keeping_nothing(enroller);
}

}  // namespace

ibv_mr* register_memory(const Library& library, ibv_pd& pd, AddressRange range, std::uint64_t shown,
                        int access) noexcept {
  if (const auto place = DmaBuf::find(range)) {
    errno = EOPNOTSUPP;
    // On-demand paging is not for a dma-buf: its exporter decides where the pages are.
    if (ibv_mr* const made = library.reg_dmabuf_mr
                                 ? library.reg_dmabuf_mr(&pd, place->offset, range.length, shown,
                                                         place->fd.get(), access & ~IBV_ACCESS_ON_DEMAND)
                                 : nullptr)
      return made;
    if (place->hidden) return nullptr;
  }
  // NOLINTNEXTLINE(performance-no-int-to-ptr): where the memory is
  void* const start = reinterpret_cast<void*>(range.start);
  if ((access & IBV_ACCESS_OPTIONAL_RANGE) == 0 && shown == range.start)
    return library.reg_mr(&pd, start, range.length, access);
  return library.reg_mr_iova2(&pd, start, range.length, shown, static_cast<unsigned>(access));
}

std::uint64_t shown_address(std::uint64_t start) noexcept {
  // The address of a page keeps its place within the largest page that there is, so that a device can
  // describe memory in huge pages by as few entries as under its own address. No device cuts addresses of 62
  // bits, and none of them wraps around with the length.
  constexpr unsigned kLargestPage = 30, kBits = 62;
  constexpr std::uint64_t kWithin = (std::uint64_t{1} << kLargestPage) - 1;
  return (random_u64() >> (64 - kBits) & ~kWithin) | (start & kWithin);
}

DeviceRegions::DeviceRegions(ibv_pd& pd, RegionView regions, const Traits& traits,
                             const DomainOptions& options)
    : pd_(pd),
      regions_(regions),
      traits_(traits),
      cache_(open_cache_of(options, enroller_in(pd))),
      atomics_(traits.atomics) {}

DeviceRegions::~DeviceRegions() { registrar_.stop(); }

std::unique_ptr<RegistrationCache> DeviceRegions::open_cache_in(ibv_pd& other) {
  return keeping_nothing(enroller_in(other));
}

// What the cache keeps for later counts against the limits of locked memory and of the device.
void* DeviceRegions::enroll(ibv_pd& domain, AddressRange range, const MemoryUse& use) {
  ibv_mr* made = reg_mr(domain, range, range.start, use.rights);
  int why = errno;
  if (!made && why == ENOMEM && cache_->stats().idle_count != 0) {
    cache_->clear();
    made = reg_mr(domain, range, range.start, use.rights);
    why = errno;
  }
  if (!made)
    throw Error(Errc::no_memory, "the device does not take the memory: " + std::string(std::strerror(why)));
  ++made_;
  ++leased_;
  return made;
}

void DeviceRegions::dereg_mr(void* mr) noexcept {
  OwnMr(static_cast<ibv_mr*>(mr)).reset();
  --leased_;
}

RegistrationCache::Lease DeviceRegions::lend(const void* at, std::uint64_t length, bool stores) {
  return cache_->acquire({.start = reinterpret_cast<std::uint64_t>(at), .length = length},
                         {.rights = static_cast<std::uint16_t>(stores ? IBV_ACCESS_LOCAL_WRITE : 0)});
}

RegistrationCache::Lease DeviceRegions::lend_known(const void* at, std::uint64_t length,
                                                   bool stores) noexcept {
  return cache_->acquire_known({.start = reinterpret_cast<std::uint64_t>(at), .length = length},
                               {.rights = static_cast<std::uint16_t>(stores ? IBV_ACCESS_LOCAL_WRITE : 0)});
}

bool DeviceRegions::reaches_hidden(AddressRange range, bool stores) noexcept try {
  // NOLINTNEXTLINE(performance-no-int-to-ptr): where the memory is
  lend(reinterpret_cast<const void*>(range.start), range.length, stores);
  return true;
} catch (const std::exception&) {
  return false;
}

std::uint32_t DeviceRegions::key_of(const RegistrationCache::Lease& lease) noexcept {
  return static_cast<const ibv_mr*>(lease.handle())->lkey;
}

// How peers see a region as pieces that are registered one by one. Returns false if it would be too many.
bool DeviceRegions::cut(std::span<const iovec> region, std::vector<Piece>& into) const {
  std::uint64_t length = 0, count = 0;
  for (const iovec& piece : region) {
    length += piece.iov_len;
    count += piece.iov_len != 0;
  }
  if (count == 0 || count > Description::kMostPieces) return false;
  // With slices of a part so large of the whole, the pieces are no more than a description has room for.
  const std::uint64_t parts = Description::kMostPieces + 1 - count;
  const std::uint64_t even = (length / parts / kAlignment + 1) * kAlignment;
  const std::uint64_t slice = std::min(std::max(Registrar::kSlice, even), traits_.longest);
  for (const iovec& piece : region)
    for (std::uint64_t at = 0; at < piece.iov_len; at += slice) {
      if (into.size() == Description::kMostPieces) return false;
      const AddressRange range{.start = reinterpret_cast<std::uint64_t>(piece.iov_base) + at,
                               .length = std::min<std::uint64_t>(slice, piece.iov_len - at)};
      into.push_back({range, traits_.chosen_addresses ? shown_address(range.start) : range.start});
    }
  return true;
}

DeviceRegions::Registering DeviceRegions::plan(std::uint32_t region, std::uint64_t state) const {
  const RegionEntry& entry = regions_.entry(region);
  // If the owner has to see, allow or count each access, they come as messages.
  if ((entry.flags & (region_flag::kObserved | region_flag::kSpans)) != 0 ||
      entry.counters[0].load(std::memory_order_acquire) != 0 || entry.length == 0)
    return {};
  iovec pieces[RegionView::kMaxRegionPieces];
  const std::size_t count = regions_.pieces(entry, 0, entry.length, pieces);
  auto planned = std::make_shared<Registered>();
  planned->state = state;
  planned->access = entry.access;
  if (!cut({pieces, count}, planned->pieces)) return {};
  int rights = (entry.access & kStores) != 0 ? IBV_ACCESS_LOCAL_WRITE : 0;
  if ((entry.access & access::kRemoteRead) != 0) rights |= IBV_ACCESS_REMOTE_READ;
  if ((entry.access & access::kRemoteWrite) != 0) rights |= IBV_ACCESS_REMOTE_WRITE;
  planned->told_atomics = atomics_ && (entry.access & access::kRemoteWrite) != 0 && !claimed(region);
  if (planned->told_atomics) rights |= IBV_ACCESS_REMOTE_ATOMIC;
  planned->rights = rights;
  return planned;
}

// Registers the first piece that is not registered yet.
DeviceRegions::Registered::Progress DeviceRegions::register_next(Registered& planned) noexcept {
  const auto next = std::ranges::find_if(planned.pieces, [](const Piece& piece) { return !piece.mr; });
  next->mr.reset(reg_mr(pd_, next->range, next->shown, planned.rights));
  // The device refuses too much memory, and pages that are not there. Messages serve the region then.
  if (!next->mr) return Registered::Progress::refused;
  ++made_;
  return next + 1 != planned.pieces.end() ? Registered::Progress::under_way : Registered::Progress::made;
}

DeviceRegions::Registered* DeviceRegions::find(std::uint32_t region, Registering& gone) {
  using Progress = Registered::Progress;
  const RegionEntry& entry = regions_.entry(region);
  const std::uint64_t state = entry.state.load(std::memory_order_seq_cst);
  if (const auto known = registered_.find(region); known != registered_.end()) {
    Registered& registered = *known->second;
    if (registered.state == state && registered.progress != Progress::refused) {
      if (registered.progress == Progress::made) reused_ += registered.pieces.size();
      return &registered;
    }
    if (registered.state == state && !registered.refused_until.passed()) return nullptr;
    gone = std::move(known->second);
    registered_.erase(known);
  }
  const Registering planned = plan(region, state);
  if (!planned) return nullptr;
  if (takes_long(entry.length)) {
    registrar_.push([this, region, planned] { return go_on(region, planned); });
  } else {
    while (planned->progress == Progress::under_way) planned->progress = register_next(*planned);
    if (planned->progress == Progress::refused) {
      planned->pieces.clear();
      planned->refused_until = Deadline::in(kAfterRefusal);
    }
  }
  Registered* const known = registered_.emplace(region, planned).first->second.get();
  return known->progress == Progress::refused ? nullptr : known;
}

// Whether the region is still open, and its atomics have not gone to the processor meanwhile.
bool DeviceRegions::wanted(std::uint32_t region, const Registering& planned) const noexcept {
  const auto known = registered_.find(region);
  return known != registered_.end() && known->second == planned;
}

// On the registrar's thread. What nobody wants any more goes with `planned`.
bool DeviceRegions::go_on(std::uint32_t region, const Registering& planned) noexcept {
  using Progress = Registered::Progress;
  {
    const LockGuard lock(mutex_);
    if (!wanted(region, planned)) return false;
  }
  const Progress progress = register_next(*planned);
  if (progress == Progress::refused) planned->pieces.clear();
  const LockGuard lock(mutex_);
  if (!wanted(region, planned)) return false;
  planned->progress = progress;
  planned->refused_until = Deadline::in(kAfterRefusal);
  return progress == Progress::under_way;
}

Errc DeviceRegions::describe(std::uint32_t region, std::byte* out) noexcept try {
  Registering gone;
  const LockGuard lock(mutex_);
  const RegionEntry& entry = regions_.entry(region);
  // A counter that was bound meanwhile counts each access, so the device must not reach the region any more.
  if (entry.counters[0].load(std::memory_order_acquire) != 0) {
    if (const auto known = registered_.find(region); known != registered_.end()) {
      gone = std::move(known->second);
      registered_.erase(known);
    }
    return Errc::not_supported;
  }
  const Registered* const registered = find(region, gone);
  if (!registered) return Errc::not_supported;
  if (registered->progress == Registered::Progress::under_way) return Errc::again;
  Description told{.base = entry.base,
                   .access = registered->access,
                   .atomics = registered->told_atomics,
                   .piece_count = static_cast<std::uint8_t>(registered->pieces.size())};
  for (std::size_t i = 0; i < registered->pieces.size(); ++i) {
    const Piece& piece = registered->pieces[i];
    told.pieces[i] = {piece.shown, piece.range.length, piece.mr->rkey};
  }
  told.encode(out);
  return Errc::ok;
} catch (const std::exception&) {
  return Errc::again;  // memory, or a thread, may be there later
}

// Whether the processor cannot reach memory of the region. Then it cannot do the atomics instead of the
// devices.
bool DeviceRegions::hidden(std::uint32_t region) const noexcept {
  const RegionEntry& entry = regions_.entry(region);
  iovec pieces[RegionView::kMaxRegionPieces];
  const std::size_t count = regions_.pieces(entry, 0, entry.length, pieces);
  return std::any_of(pieces, pieces + count, [](const iovec& piece) {
    return DmaBuf::hides({.start = reinterpret_cast<std::uint64_t>(piece.iov_base), .length = piece.iov_len});
  });
}

// Whether the two share memory, as a region does with its grants.
bool DeviceRegions::overlap(std::uint32_t left, std::uint32_t right) const noexcept {
  iovec pieces[RegionView::kMaxRegionPieces], others[RegionView::kMaxRegionPieces];
  const RegionEntry &entry = regions_.entry(left), &other = regions_.entry(right);
  const std::span mine(pieces, regions_.pieces(entry, 0, entry.length, pieces));
  const std::span theirs(others, regions_.pieces(other, 0, other.length, others));
  return std::ranges::any_of(mine, [&](const iovec& piece) {
    return std::ranges::any_of(theirs, [&](const iovec& its) {
      const auto begin = reinterpret_cast<std::uint64_t>(piece.iov_base);
      const auto its_begin = reinterpret_cast<std::uint64_t>(its.iov_base);
      return begin < its_begin + its.iov_len && its_begin < begin + piece.iov_len;
    });
  });
}

// Whether the processor does atomics on some of the region's memory, under this key or another one.
bool DeviceRegions::claimed(std::uint32_t region) const noexcept {
  return std::ranges::any_of(claimed_, [&](std::uint32_t other) { return overlap(region, other); });
}

void DeviceRegions::claim_atomics(std::uint32_t region) noexcept {
  AllRegistered gone;
  const LockGuard lock(mutex_);
  if (!atomics_ || claimed_.contains(region) || hidden(region)) return;
  try {
    claimed_.insert(region);
  } catch (const std::exception&) {
    // There is no memory to note the region, so the processor does the atomics of all regions.
    atomics_ = false;
  }
  // A peer that was told that its device may update the region meets an unknown key, and asks again.
  for (auto at = registered_.begin(); at != registered_.end();) {
    const auto known = at++;
    if (known->second->told_atomics && overlap(region, known->first)) gone.insert(registered_.extract(known));
  }
}

void DeviceRegions::forget(std::uint32_t region) noexcept {
  // They are withdrawn without the lock, which takes as long as registering them took.
  AllRegistered::node_type gone;
  decltype(local_) gone_local;
  const LockGuard lock(mutex_);
  claimed_.erase(region);
  gone = registered_.extract(region);
  for (auto at = local_.begin(); at != local_.end();) {
    const auto local = at++;
    if (local->second.region == region) gone_local.insert(local_.extract(local));
  }
  std::erase_if(given_, [region](const auto& given) { return given.second.region == region; });
}

const DeviceRegions::Local* DeviceRegions::search(std::uint64_t at, std::uint64_t length) const noexcept {
  const auto next = local_.upper_bound(at);
  if (next == local_.begin()) return nullptr;
  const auto& [start, local] = *std::prev(next);
  const bool holds = at - start <= local.length && length <= local.length - (at - start);
  const bool open = regions_.entry(local.region).state.load(std::memory_order_seq_cst) == local.state;
  return holds && open ? &local : nullptr;
}

const DeviceRegions::Local* DeviceRegions::look_for(std::uint64_t at, std::uint64_t length) {
  iovec pieces[RegionView::kMaxRegionPieces];
  for (std::uint32_t region = 0; region < kMostSearched; ++region) {
    const RegionEntry& entry = regions_.entry(region);
    const std::uint64_t state = entry.state.load(std::memory_order_seq_cst);
    if (state == 0) break;  // neither this entry nor any behind it was ever used
    // The region of a grant is an entry as well, with all its memory and its rights.
    if (status_of(state) != RegionStatus::enabled || (entry.flags & region_flag::kGrant) != 0) continue;
    const std::size_t count = regions_.pieces(entry, 0, entry.length, pieces);
    for (std::size_t i = 0; i < count; ++i) {
      const auto start = reinterpret_cast<std::uint64_t>(pieces[i].iov_base);
      const std::uint64_t size = pieces[i].iov_len;
      if (at < start || at - start > size || length > size - (at - start)) continue;
      if (takes_long(size)) {
        enroll_later({.range = {.start = start, .length = size},
                      .state = state,
                      .region = region,
                      .writable = (entry.access & kStores) != 0});
        continue;
      }
      Local local{
          .length = size, .state = state, .region = region, .writable = (entry.access & kStores) != 0};
      local.lease = lend(pieces[i].iov_base, size, local.writable);
      return &local_.insert_or_assign(start, std::move(local)).first->second;
    }
  }
  return nullptr;
}

void DeviceRegions::enroll_later(const Large& large) {
  const auto [at, first] = given_.try_emplace(large.range.start);
  Given& given = at->second;
  const bool same = !first && given.region == large.region && given.state == large.state;
  if (same && !(given.refused_until && given.refused_until->passed())) return;
  given = {.state = large.state, .region = large.region};
  try {
    registrar_.push([this, large] {
      enroll(large);
      return false;
    });
  } catch (const std::exception&) {
    given_.erase(at);  // the next transfer tries again
  }
}

// Whether the region is still open.
bool DeviceRegions::wanted(const Large& large) const noexcept {
  const auto given = given_.find(large.range.start);
  return given != given_.end() && given->second.region == large.region &&
         given->second.state == large.state &&
         regions_.entry(large.region).state.load(std::memory_order_seq_cst) == large.state;
}

RegistrationCache::Lease DeviceRegions::lend_or_none(const Large& large) noexcept try {
  // NOLINTNEXTLINE(performance-no-int-to-ptr): where the memory is
  return lend(reinterpret_cast<const void*>(large.range.start), large.range.length, large.writable);
} catch (const std::exception&) {
  return {};
}

// On the registrar's thread.
void DeviceRegions::enroll(const Large& large) noexcept {
  {
    const LockGuard lock(mutex_);
    if (!wanted(large)) return;
  }
  Local local{.length = large.range.length,
              .state = large.state,
              .region = large.region,
              .writable = large.writable,
              .lease = lend_or_none(large)};
  const LockGuard lock(mutex_);
  if (!wanted(large)) return;
  try {
    if (!local.lease.held()) throw std::bad_alloc();
    local_.insert_or_assign(large.range.start, std::move(local));
  } catch (const std::bad_alloc&) {
    given_[large.range.start].refused_until = Deadline::in(kAfterRefusal);
  }
}

std::optional<std::uint32_t> DeviceRegions::local_key(const void* at, std::uint64_t length,
                                                      bool stores) noexcept try {
  const auto address = reinterpret_cast<std::uint64_t>(at);
  const LockGuard lock(mutex_);
  const Local* local = search(address, length);
  if (local)
    ++reused_;
  else
    local = look_for(address, length);
  if (!local || (stores && !local->writable)) return {};
  return key_of(local->lease);
} catch (const std::exception&) {
  return {};
}

LinkRegistrations DeviceRegions::registrations(const std::string& link) const {
  const LockGuard lock(mutex_);
  // stats() comes first, because it withdraws what has gone with its memory.
  const std::uint64_t hits = cache_->stats().hits;
  LinkRegistrations counts{.link = link, .held = leased_, .made = made_, .reused = reused_ + hits};
  for (const auto& [region, registered] : registered_)
    if (registered->progress == Registered::Progress::made) counts.held += registered->pieces.size();
  return counts;
}

}  // namespace fab::verbs
