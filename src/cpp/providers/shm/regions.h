#pragma once

#include <memory>
#include <vector>

#include "base/lifetime.h"
#include "providers/shm/peer_domain.h"

namespace fab::shm {

// How bytes get to and from a region.
enum class Way : std::uint8_t { mapped, attach, ring };

// What the user allows for the bytes ("shm_copy").
struct CopyMode {
  bool map = true, attach = true;
};

// Shows the owner of a region, as long as this object lives, that the region is in use (src/cpp/DECISIONS.md,
// access slots).
class Access {
 public:
  explicit Access(AccessSlot& slot) noexcept : slot_(slot) {}
  ~Access() { slot_.active.store(0, std::memory_order_release); }
  Access(const Access&) = delete;
  Access& operator=(const Access&) = delete;
  // The exchange is a full barrier: the state of the region is read after the owner can see the access.
  void show(std::uint32_t index) noexcept {
    slot_.active.exchange(std::uint64_t{index} + 1, std::memory_order_seq_cst);
  }

 private:
  AccessSlot& slot_;
};

// What is known of one region of a peer. It holds only while the entry's state is `state`.
struct KnownRegion {
  std::uint64_t key = 0, state = 0;
  RegionEntry* entry = nullptr;  // null: nothing is known
  std::uint32_t index = 0;
  Way way = Way::ring;
  std::byte* memory = nullptr;  // mapped: its first byte here
  std::uint64_t length = 0;     // mapped: bytes of it
  std::shared_ptr<const MappedFile> file;
};

// The regions of a peer that a path has used.
class KnownRegions {
 public:
  KnownRegions(PeerDomain& peer, CopyMode mode);

  // Shows an access to the region with `key`, and returns what is known of it, until the next call. Null:
  // there is no such region.
  KnownRegion* enter(std::uint64_t key, Access& access) noexcept {
    KnownRegion& known = place(key);
    if (known.key == key && known.entry) {
      access.show(known.index);
      if (known.entry->state.load(std::memory_order_seq_cst) == known.state) return &known;
      known = {};
    }
    return look_up(key, access);
  }
  std::size_t pieces(const KnownRegion& region, std::uint64_t offset, std::uint64_t length,
                     iovec* out) const noexcept {
    return view_.pieces(*region.entry, offset, length, out);
  }
  const RegionView& view() const noexcept FAB_LIFETIME_BOUND { return view_; }
  // The kernel no longer allows cross-memory attach, because the peer changed its user or hardened itself.
  // From now on the peer must help.
  void forbid_attach() noexcept;
  // The way to the region that was looked up last. Before the first one: the way that any region allows.
  Way last_way() const noexcept { return last_way_; }

 private:
  KnownRegion& place(std::uint64_t key) noexcept {
    return known_[(key * 0x9E3779B97F4A7C15ull >> 32) & (known_.size() - 1)];
  }
  KnownRegion* look_up(std::uint64_t key, Access& access) noexcept;
  bool grow() noexcept;
  Way way_to(KnownRegion& known) noexcept;
  void drop_stale() noexcept;

  PeerDomain& peer_;
  const RegionView view_;
  CopyMode mode_;  // what is allowed by the user and the kernel
  Way last_way_;
  std::vector<KnownRegion> known_;  // a power of two; a region has one possible place
};

}  // namespace fab::shm
