#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "base/memory/address_range.h"
#include "fabric/provider.h"
#include "fabric/registration/registration_cache.h"
#include "fabric/segment/region_table.h"
#include "fabric/session/session.h"
#include "providers/verbs/device/library.h"

namespace fab::verbs {

// What a peer's device needs to reach a region without this process: the answer to a `describe` frame.
struct Description {
  struct Piece {
    std::uint64_t address = 0, length = 0;
    std::uint32_t rkey = 0;
  };
  static constexpr std::size_t kMostPieces = 4;

  std::uint64_t base = 0;  // what peers add to offsets
  std::uint32_t access = 0;
  bool atomics = false;  // 8-byte additions and compare-and-swaps by the device
  std::uint8_t piece_count = 0;
  std::array<Piece, kMostPieces> pieces{};

  std::uint64_t length() const noexcept {
    std::uint64_t sum = 0;
    for (std::size_t i = 0; i < piece_count; ++i) sum += pieces[i].length;
    return sum;
  }
  // The place of `offset`, which is less than length().
  struct Place {
    std::uint64_t address = 0;
    std::uint64_t left = 0;  // bytes from there on in one piece
    std::uint32_t rkey = 0;
  };
  Place at(std::uint64_t offset) const noexcept {
    const Piece* piece = pieces.data();
    for (; offset >= piece->length; ++piece) offset -= piece->length;
    return {piece->address + offset, piece->length - offset, piece->rkey};
  }
  void encode(std::byte* out) const;  // kDescriptionBytes
  static std::optional<Description> decode(const std::byte* in) noexcept;
};

// Gives a device memory of this process, under its addresses here: a dma-buf as such, where the library and
// the device can, else what is mapped there. `access`: IBV_ACCESS_*. Null, with errno, where the device does
// not take it.
ibv_mr* register_memory(const Library& library, ibv_pd& pd, AddressRange range, int access) noexcept;

// Registered memory as the device knows it: registered with it when it is first needed, by a peer or here,
// and taken away when the region closes. Keys of the device are 32 bits and valid for every peer of the
// domain; a new one is given whenever what was told of an old one is no longer true, so that the device
// refuses those who still use it. What this process uses itself goes through a registration cache, where the
// domain has one, and stays with the device for the next region or transfer (LNX-59). Safe from any thread.
class DeviceRegions final : public DeviceAccess, public DeviceMemory {
 public:
  // `atomics`: peers' devices may update memory, because nothing else does than devices and, after
  // claim_atomics(), this process. `traits`: of the registrations, IBV_ACCESS_ON_DEMAND and
  // IBV_ACCESS_RELAXED_ORDERING.
  DeviceRegions(ibv_pd& pd, RegionView regions, bool atomics, int traits, const DomainOptions& options);

  bool describe(std::uint32_t region, std::byte* out) noexcept override;
  void claim_atomics(std::uint32_t region) noexcept override;
  void forget(std::uint32_t region) noexcept override;
  bool reaches_hidden(AddressRange range, bool stores) noexcept override;

  // The device's key for [at, at + length), if it lies within one piece of a region of this domain; `stores`:
  // the device will write there.
  std::optional<std::uint32_t> local_key(const void* at, std::uint64_t length, bool stores) noexcept;

  // The device's key for any other memory of this process, while the lease lives. Throws Error(no_memory).
  RegistrationCache::Lease lend(const void* at, std::uint64_t length, bool stores);
  static std::uint32_t key_of(const RegistrationCache::Lease& lease) noexcept;

  LinkRegistrations registrations(const std::string& link) const;

 private:
  struct Piece {
    std::uint64_t address, length;
    OwnMr mr;
  };
  // For peers.
  struct Registered {
    std::uint64_t state = 0;  // of the region's entry
    std::vector<Piece> pieces;
    std::uint32_t access = 0;
    bool told_atomics = false;
  };
  // For transfers of this process, apart from that: what is taken from peers must not fail those under way.
  struct Local {
    std::uint64_t length = 0;
    std::uint64_t state = 0;  // of the region's entry
    std::uint32_t region = 0;
    bool writable = false;
    RegistrationCache::Lease lease{};
  };

  // Null where the device does not take the region, or may not reach it by itself.
  Registered* find(std::uint32_t region);
  bool take(std::uint32_t region, Registered& into);
  const Local* search(std::uint64_t at, std::uint64_t length) const noexcept;
  const Local* look_for(std::uint64_t at, std::uint64_t length);
  ibv_mr* reg_mr(AddressRange range, int rights) const noexcept {
    return register_memory(library(), pd_, range, rights | traits_);
  }
  bool hidden(std::uint32_t region) const noexcept;
  void* enroll(AddressRange range, const MemoryUse& use);
  void dereg_mr(void* mr) noexcept;

  ibv_pd& pd_;
  const RegionView regions_;
  const int traits_;
  std::atomic<std::uint64_t> made_{0}, leased_{0};  // leased_: held for leases, or idle
  const std::unique_ptr<RegistrationCache> cache_;  // of local memory; keeps nothing where none is wanted
  mutable std::mutex mutex_;                        // guards what follows
  std::uint64_t reused_ = 0;
  bool atomics_;
  std::unordered_map<std::uint32_t, Registered> registered_;  // by index in the region table
  std::unordered_set<std::uint32_t> claimed_;                 // whose atomics the CPU does
  std::map<std::uint64_t, Local> local_;                      // by address; of overlapping ones, any
};

}  // namespace fab::verbs
