#include "providers/shm/regions.h"

#include "providers/shm/attach.h"

namespace fab::shm {
namespace {

constexpr std::size_t kFirstKnown = 16, kMostKnown = 4096;

}  // namespace

KnownRegions::KnownRegions(PeerDomain& peer, CopyMode mode)
    : peer_(peer),
      view_(peer.segment().regions()),
      mode_{mode.map, mode.attach && attach_problem(peer.address().process.pid) == 0},
      last_way_(mode_.attach ? Way::attach : Way::ring),
      known_(kFirstKnown) {}

// False: there is no memory for a larger table.
bool KnownRegions::grow() noexcept try {
  std::vector<KnownRegion> before(known_.size() * 2);
  before.swap(known_);
  for (KnownRegion& old : before)
    if (old.entry) place(old.key) = std::move(old);
  return true;
} catch (const std::bad_alloc&) {
  return false;
}

KnownRegion* KnownRegions::look_up(std::uint64_t key, Access& access) noexcept {
  const std::int64_t index = view_.find(key);
  if (index < 0) return nullptr;
  KnownRegion known;
  known.key = key;
  known.index = static_cast<std::uint32_t>(index);
  known.entry = &view_.entry(known.index);
  access.show(known.index);
  known.state = known.entry->state.load(std::memory_order_seq_cst);
  if (status_of(known.state) != RegionStatus::enabled ||
      known.entry->key.load(std::memory_order_relaxed) != key)
    return nullptr;
  known.way = last_way_ = way_to(known);
  // Regions that share one place would be mapped again and again, so the table grows, within limits.
  while (place(key).entry && place(key).key != key && known_.size() < kMostKnown && grow()) {
  }
  KnownRegion& slot = place(key);
  slot = std::move(known);
  return &slot;
}

Way KnownRegions::way_to(KnownRegion& known) noexcept {
  const RegionEntry& entry = *known.entry;
  if (entry.flags & (region_flag::kObserved | region_flag::kOwnPages)) return Way::ring;
  const std::uint64_t offset = entry.file_offset, length = entry.length;
  if (mode_.map && entry.file >= 0 && entry.piece_count <= 1 && offset + length >= offset) {
    drop_stale();
    known.file = peer_.map(entry.file, offset + length);
    if (known.file) {
      known.memory = known.file->mapping.data() + offset;
      known.length = length;
      return Way::mapped;
    }
  }
  return mode_.attach ? Way::attach : Way::ring;
}

// Unmaps the files of regions that are closed by now, because their memory cannot be freed before.
void KnownRegions::drop_stale() noexcept {
  for (KnownRegion& known : known_)
    if (known.file && known.entry->state.load(std::memory_order_relaxed) != known.state) known = {};
}

void KnownRegions::forbid_attach() noexcept {
  mode_.attach = false;
  for (KnownRegion& known : known_)
    if (known.way == Way::attach) known = {};
  last_way_ = Way::ring;
}

}  // namespace fab::shm
