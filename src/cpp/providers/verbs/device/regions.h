#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <unordered_set>
#include <vector>

#include "base/deadline.h"
#include "base/lifetime.h"
#include "base/locks/mutex.h"
#include "base/memory/address_range.h"
#include "fabric/provider.h"
#include "fabric/registration/registration_cache.h"
#include "fabric/segment/region_table.h"
#include "fabric/session/session.h"
#include "providers/verbs/device/description.h"
#include "providers/verbs/device/library.h"
#include "providers/verbs/device/registrar.h"
#include "providers/verbs/device/relaxed_ordering.h"

namespace fab::verbs {

// Registers memory of this process with a device, which shows it from address `shown` on. A dma-buf is
// registered as such, if the library and the device can do that; otherwise what is mapped there. `access` is
// of IBV_ACCESS_*. An address other than that of the memory needs ibv_reg_mr_iova2(). Returns null, with
// errno, if the device does not take the memory.
ibv_mr* register_memory(const Library& library, ibv_pd& pd, AddressRange range, std::uint64_t shown,
                        int access) noexcept;
// A random address under which peers may know memory that is at `start` here.
std::uint64_t shown_address(std::uint64_t start) noexcept;

// The regions of a domain as the device knows them. A region is registered with the device when a peer or
// this process first needs that, and withdrawn when the region closes. Memory that takes long is registered
// on the registrar's thread, and nothing waits for it there: peers use messages until then, and so does this
// process, or registers what a transfer needs. Such memory may go away while it is registered. The device
// then has pages, or none, that nobody was told of, and loses them at once.
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
    std::uint64_t longest = ~std::uint64_t{0};  // bytes that the device registers at once
    RelaxedOrdering relaxed = RelaxedOrdering::nowhere;
    int access = 0;  // bits of every registration: IBV_ACCESS_ON_DEMAND
  };
  DeviceRegions(ibv_pd& pd, RegionView regions, const Traits& traits, const DomainOptions& options);

  ~DeviceRegions() override;

  Errc describe(std::uint32_t region, std::byte* out) noexcept override;
  void claim_atomics(std::uint32_t region) noexcept override;
  void forget(std::uint32_t region) noexcept override;
  bool reaches_hidden(AddressRange range, bool stores) noexcept override;

  // The device's key for [at, at + length), if that lies within one piece of a region of this domain. With
  // `stores` the device will write there.
  std::optional<std::uint32_t> local_key(const void* at, std::uint64_t length, bool stores) noexcept;

  // Registers any other memory of this process while the lease lives; key_of() is its key. Throws
  // Error(no_memory).
  RegistrationCache::Lease lend(const void* at, std::uint64_t length, bool stores);
  // Does so if the cache has the memory already; otherwise the lease holds nothing.
  RegistrationCache::Lease lend_known(const void* at, std::uint64_t length, bool stores) noexcept;
  // Whether what lend() registers stays registered for the next use.
  bool keeps_local() const noexcept { return cache_->keeps(); }
  static std::uint32_t key_of(const RegistrationCache::Lease& lease) noexcept;
  // Registers memory in another protection domain while a lease lives, and counts that here. It keeps
  // nothing. This object has to outlive it.
  std::unique_ptr<RegistrationCache> open_cache_in(ibv_pd& other);

  // Whether the registrar should register so many bytes. Paging on demand pins nothing.
  bool takes_long(std::uint64_t length) const noexcept {
    return length > Registrar::kAtOnce && (traits_.access & IBV_ACCESS_ON_DEMAND) == 0;
  }
  Registrar& registrar() noexcept FAB_LIFETIME_BOUND { return registrar_; }

  LinkRegistrations registrations(const std::string& link) const;

 private:
  struct Piece {
    AddressRange range;
    std::uint64_t shown;  // the address that peers are told
    OwnMr mr{};
  };
  // A region as peers reach it. While it is under way, `pieces` belong to the registrar's thread.
  struct Registered {
    std::uint64_t state = 0;  // of the region's entry
    std::vector<Piece> pieces;
    int rights = 0;  // IBV_ACCESS_*
    std::uint32_t access = 0;
    bool told_atomics = false;
    enum class Progress { under_way, made, refused } progress = Progress::under_way;  // guarded by mutex_
    Deadline refused_until{};
  };
  using Registering = std::shared_ptr<Registered>;
  // A map, because moving an entry to another one takes no memory.
  using AllRegistered = std::map<std::uint32_t, Registering>;
  // A piece of a region as transfers of this process reach it. It is registered a second time, so that these
  // transfers do not fail when peers lose their access.
  struct Local {
    std::uint64_t length = 0;
    std::uint64_t state = 0;  // of the region's entry
    std::uint32_t region = 0;
    bool writable = false;
    RegistrationCache::Lease lease{};
  };

  // Memory of a region that is registered for this process on the registrar's thread.
  struct Large {
    AddressRange range;
    std::uint64_t state = 0;  // of the region's entry
    std::uint32_t region = 0;
    bool writable = false;
  };

  // Returns null if the device does not take the region, or must not reach it by itself. It may still be
  // under way. What is not true any more goes to `gone`, to be withdrawn without the lock.
  Registered* find(std::uint32_t region, Registering& gone) FAB_REQUIRES(mutex_);
  // What to register of a region, or null.
  Registering plan(std::uint32_t region, std::uint64_t state) const FAB_REQUIRES(mutex_);
  bool cut(std::span<const iovec> region, std::vector<Piece>& into) const;
  Registered::Progress register_next(Registered& planned) noexcept;
  bool wanted(std::uint32_t region, const Registering& planned) const noexcept FAB_REQUIRES(mutex_);
  bool go_on(std::uint32_t region, const Registering& planned) noexcept;
  bool wanted(const Large& large) const noexcept FAB_REQUIRES(mutex_);
  RegistrationCache::Lease lend_or_none(const Large& large) noexcept;
  void enroll(const Large& large) noexcept;
  void enroll_later(const Large& large) FAB_REQUIRES(mutex_);
  const Local* search(std::uint64_t at, std::uint64_t length) const noexcept FAB_REQUIRES(mutex_);
  const Local* look_for(std::uint64_t at, std::uint64_t length) FAB_REQUIRES(mutex_);
  ibv_mr* reg_mr(ibv_pd& domain, AddressRange range, std::uint64_t shown, int rights) const noexcept {
    const bool relaxed = traits_.relaxed == RelaxedOrdering::everywhere ||
                         (traits_.relaxed == RelaxedOrdering::landing &&
                          (rights & (IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC)) == 0);
    // Devices that do not know it ignore it.
    return register_memory(library(), domain, range, shown,
                           rights | traits_.access | (relaxed ? IBV_ACCESS_RELAXED_ORDERING : 0));
  }
  Enroller enroller_in(ibv_pd& domain) {
    return {.enroll = [this, &domain](AddressRange range, const MemoryUse& use) -> void* {
              return enroll(domain, range, use);
            },
            .withdraw = [this](void* mr) { dereg_mr(mr); }};
  }
  bool hidden(std::uint32_t region) const noexcept;
  bool overlap(std::uint32_t left, std::uint32_t right) const noexcept;
  bool claimed(std::uint32_t region) const noexcept FAB_REQUIRES(mutex_);
  void* enroll(ibv_pd& domain, AddressRange range, const MemoryUse& use);
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
  AllRegistered registered_ FAB_GUARDED_BY(mutex_);
  // Regions whose atomics the processor does.
  std::unordered_set<std::uint32_t> claimed_ FAB_GUARDED_BY(mutex_);
  // Registered pieces of local memory, by their first address; one for each such address.
  std::map<std::uint64_t, Local> local_ FAB_GUARDED_BY(mutex_);
  // Large pieces of local memory that the registrar was given, by their first address. One that the device
  // has refused is tried again after a while.
  struct Given {
    std::uint64_t state = 0;
    std::uint32_t region = 0;
    std::optional<Deadline> refused_until{};
  };
  std::map<std::uint64_t, Given> given_ FAB_GUARDED_BY(mutex_);
  Registrar registrar_;
};

}  // namespace fab::verbs
