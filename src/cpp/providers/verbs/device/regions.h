#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "base/locks/mutex.h"
#include "base/memory/address_range.h"
#include "fabric/provider.h"
#include "fabric/registration/registration_cache.h"
#include "fabric/segment/region_table.h"
#include "fabric/session/session.h"
#include "providers/verbs/device/library.h"

namespace fab::verbs {

// What a peer's device has to know to reach a region without this process: the answer to a `describe` frame.
struct Description {
  struct Piece {
    std::uint64_t address = 0, length = 0;
    std::uint32_t rkey = 0;
  };
  static constexpr std::size_t kMostPieces = 4;

  std::uint64_t base = 0;  // what peers add to offsets
  std::uint32_t access = 0;
  bool atomics = false;  // devices may do 8-byte additions and compare-and-swaps
  std::uint8_t piece_count = 0;
  std::array<Piece, kMostPieces> pieces{};

  std::uint64_t length() const noexcept {
    std::uint64_t sum = 0;
    for (std::size_t i = 0; i < piece_count; ++i) sum += pieces[i].length;
    return sum;
  }
  // Where the byte at `offset` is; at() needs an offset below length().
  struct Place {
    std::uint64_t address = 0;
    std::uint64_t left = 0;  // bytes from there to the end of the piece
    std::uint32_t rkey = 0;
  };
  Place at(std::uint64_t offset) const noexcept {
    const Piece* piece = pieces.data();
    for (; offset >= piece->length; ++piece) offset -= piece->length;
    return {piece->address + offset, piece->length - offset, piece->rkey};
  }
  void encode(std::byte* out) const;  // writes kDescriptionBytes
  static std::optional<Description> decode(const std::byte* in) noexcept;
};

// Registers memory of this process with a device, which shows it from address `shown` on. A dma-buf is
// registered as such, if the library and the device can do that; otherwise what is mapped there. `access` is
// of IBV_ACCESS_*. An address other than that of the memory needs ibv_reg_mr_iova2(). Returns null, with
// errno, if the device does not take the memory.
ibv_mr* register_memory(const Library& library, ibv_pd& pd, AddressRange range, std::uint64_t shown,
                        int access) noexcept;
// A random address under which peers may know memory that is at `start` here.
std::uint64_t shown_address(std::uint64_t start) noexcept;

// The regions of a domain as the device knows them. A region is registered with the device when a peer or
// this process first needs that, and withdrawn when the region closes.
//
// A key of the device has 32 bits and is valid for every peer of the domain. A region gets a new key whenever
// what peers were told of it is no longer true, so that the device refuses peers that still use the old key.
// Devices may give a key again as soon as it is free, and programs the same memory, so each registration for
// peers is shown under a random address, which the old description does not have.
//
// Memory that this process uses itself goes through a registration cache, if the domain has one, and stays
// with the device for the next region or transfer. Safe from any thread.
class DeviceRegions final : public DeviceAccess, public DeviceMemory {
 public:
  struct Traits {
    // The devices of peers may update memory: nothing else updates it than devices and, after
    // claim_atomics(), this process.
    bool atomics = false;
    // The device takes any address to show memory under.
    bool chosen_addresses = false;
    int access = 0;  // bits of every registration: IBV_ACCESS_ON_DEMAND and IBV_ACCESS_RELAXED_ORDERING
  };
  DeviceRegions(ibv_pd& pd, RegionView regions, const Traits& traits, const DomainOptions& options);

  bool describe(std::uint32_t region, std::byte* out) noexcept override;
  void claim_atomics(std::uint32_t region) noexcept override;
  void forget(std::uint32_t region) noexcept override;
  bool reaches_hidden(AddressRange range, bool stores) noexcept override;

  // The device's key for [at, at + length), if that lies within one piece of a region of this domain. With
  // `stores` the device will write there.
  std::optional<std::uint32_t> local_key(const void* at, std::uint64_t length, bool stores) noexcept;

  // Registers any other memory of this process while the lease lives; key_of() is its key. Throws
  // Error(no_memory).
  RegistrationCache::Lease lend(const void* at, std::uint64_t length, bool stores);
  static std::uint32_t key_of(const RegistrationCache::Lease& lease) noexcept;

  LinkRegistrations registrations(const std::string& link) const;

 private:
  struct Piece {
    std::uint64_t address, length;  // as peers are shown it
    OwnMr mr;
  };
  // A region as peers reach it.
  struct Registered {
    std::uint64_t state = 0;  // of the region's entry
    std::vector<Piece> pieces;
    std::uint32_t access = 0;
    bool told_atomics = false;
  };
  // A piece of a region as transfers of this process reach it. It is registered a second time, so that these
  // transfers do not fail when peers lose their access.
  struct Local {
    std::uint64_t length = 0;
    std::uint64_t state = 0;  // of the region's entry
    std::uint32_t region = 0;
    bool writable = false;
    RegistrationCache::Lease lease{};
  };

  // Returns null if the device does not take the region, or must not reach it by itself.
  Registered* find(std::uint32_t region) FAB_REQUIRES(mutex_);
  bool take(std::uint32_t region, Registered& into) FAB_REQUIRES(mutex_);
  const Local* search(std::uint64_t at, std::uint64_t length) const noexcept FAB_REQUIRES(mutex_);
  const Local* look_for(std::uint64_t at, std::uint64_t length) FAB_REQUIRES(mutex_);
  ibv_mr* reg_mr(AddressRange range, std::uint64_t shown, int rights) const noexcept {
    return register_memory(library(), pd_, range, shown, rights | traits_.access);
  }
  bool hidden(std::uint32_t region) const noexcept;
  bool overlap(std::uint32_t left, std::uint32_t right) const noexcept;
  bool claimed(std::uint32_t region) const noexcept FAB_REQUIRES(mutex_);
  void* enroll(AddressRange range, const MemoryUse& use);
  void dereg_mr(void* mr) noexcept;

  ibv_pd& pd_;
  const RegionView regions_;
  const Traits traits_;
  // Registrations that were made, and those that the cache holds, leased or idle.
  std::atomic<std::uint64_t> made_{0}, leased_{0};
  // Of local memory. It keeps nothing if the domain has no cache.
  const std::unique_ptr<RegistrationCache> cache_;

  mutable Mutex mutex_;
  std::uint64_t reused_ FAB_GUARDED_BY(mutex_) = 0;
  bool atomics_ FAB_GUARDED_BY(mutex_);
  // What is registered, by the region's index in the region table.
  std::unordered_map<std::uint32_t, Registered> registered_ FAB_GUARDED_BY(mutex_);
  // Regions whose atomics the processor does.
  std::unordered_set<std::uint32_t> claimed_ FAB_GUARDED_BY(mutex_);
  // Registered pieces of local memory, by their first address; one for each such address.
  std::map<std::uint64_t, Local> local_ FAB_GUARDED_BY(mutex_);
};

}  // namespace fab::verbs
