#pragma once

#include <algorithm>
#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/lifetime.h"
#include "base/locks/mutex.h"
#include "fabric/address_vector/peer_index.h"
#include "fabric/address_vector/peer_memory.h"
#include "fabric/address_vector/peer_records.h"
#include "fabric/address_vector/peer_runs.h"
#include "fabric/address_vector/peer_vacancies.h"
#include "fabric/address_vector/socket_name.h"
#include "fabric/types/name.h"
#include "fabric/types/peer_id.h"
#include "fabric/types/types.h"

namespace fab {

struct AddressVectorOptions {
  AddressFormat format = AddressFormat::bundle;
  unsigned rx_bits = 0;           // bits of a handle for the receive context
  std::uint64_t max_group = 0;    // the greatest id of a peer group in a handle; 0: no groups
  std::uint32_t ep_per_node = 0;  // with `symmetric`: ports of each node; 0: as many as come
  bool symmetric = false;         // consecutive socket addresses are kept as runs (FI_SYMMETRIC)
  bool user_ids = false;          // completions report what set_user_id() said (FI_AV_USER_ID)
  bool reject_duplicates = false;
  std::uint32_t type = 2;  // enum fi_av_type, which all who open one named vector have to agree on
};

// Fills in the header of a vector's memory, except for the magic number, which is written last.
void describe(PeerHeader& header, const AddressVectorOptions& options);

// Is told when a peer goes, because it keeps something for each peer of an address vector.
class PeerWatcher {
 public:
  virtual ~PeerWatcher() = default;
  // This process removed the peer. Called without a lock, from any thread; another peer may have the index by
  // now.
  virtual void removed(std::uint64_t index) noexcept = 0;
};

// A table of peers: handle → address (fi_av(3)). The index in a handle is the lowest that was free. Reading
// takes no lock; insertions and removals take a lock for one address at a time, about a microsecond each.
// Where the memory is a file, all of this holds among its processes. Layout: docs/address-vectors.md.
class AddressVector final {
 public:
  using Options = AddressVectorOptions;
  explicit AddressVector(Options options = {});
  // On memory of another kind, whose header says the same as `options`.
  AddressVector(Options options, std::unique_ptr<PeerMemory> memory);
  AddressVector(const AddressVector&) = delete;
  AddressVector& operator=(const AddressVector&) = delete;

  // `check` judges every part of the addresses that are inserted; one part of each has to belong to one of
  // `links`. To be set before use.
  void judge_parts(PartCheck check, std::vector<std::string> links) {
    check_ = std::move(check);
    links_ = std::move(links);
  }

  const Options& options() const noexcept FAB_LIFETIME_BOUND { return options_; }

  // What goes with an address, beyond its bytes.
  struct Extra {
    std::uint32_t auth = 0;           // 1 + index of an authorization key; 0: none
    std::optional<PeerId> user_id{};  // what completions report instead of the handle
  };
  // Throws Error: invalid for what is no address of the vector's format, unreachable for an address without a
  // link of the domain, already for a duplicate where these are rejected, access for a vector that was opened
  // to be read.
  PeerId insert(std::string_view address, const Extra& extra);
  PeerId insert(std::string_view address) { return insert(address, Extra{}); }
  // Inserts several addresses in order, and takes the lock less often. extra(i) goes with address i. done(i,
  // handle, error) tells of each: `error` is null, or else `handle` is kNoPeer.
  using Done = std::function<void(std::size_t, PeerId, const Error*)>;
  void insert(std::span<const std::string_view> addresses, const std::function<Extra(std::size_t)>& extra,
              const Done& done);
  void remove(PeerId peer);  // throws Error(invalid) for a handle that is not there
  // From now on `watcher` is told of removals.
  void watch(std::weak_ptr<PeerWatcher> watcher);

  // --- by handle: the receive context in it is ignored; a handle with a peer group has no entry
  std::string lookup(PeerId peer) const;  // throws Error(invalid)
  // Length of the address. Copies as much of it to `out` as there is room for. Throws Error(invalid).
  std::size_t lookup(PeerId peer, std::span<char> out) const;
  Name name(PeerId peer) const;  // the address as parts; a socket address is one part, of kSocketLink
  bool contains(PeerId peer) const noexcept;
  void set_user_id(PeerId peer, PeerId user_id);  // throws Error(invalid)
  std::uint32_t auth(PeerId peer) const;          // its Extra::auth; throws Error(invalid)
  // The index in a handle; no value for kNoPeer, and for a handle with a peer group.
  std::optional<std::uint64_t> index_of(PeerId peer) const noexcept;

  // --- by index
  // The lowest handle of a name that holds `part`, which tells who calls from there; kNoPeer if there is
  // none. With `auth`, only among those inserted with that key.
  PeerId find(const Part& part, std::optional<std::uint32_t> auth = std::nullopt) const;
  // Adds all of these handles, in any order, without those that are there.
  void find_all(const Part& part, std::optional<std::uint32_t> auth, std::vector<PeerId>& found) const;
  // A number that changes when the index is given to another address; 0 while it is vacant.
  std::uint32_t generation(PeerId index) const noexcept;
  // Grows after each change: as long as it stays the same, what was read before holds.
  std::uint64_t changes() const noexcept { return change_count().load(std::memory_order_acquire); }
  // Where changes() looks, for those who ask before every operation; it lives as long as the vector.
  const std::atomic<std::uint64_t>& change_count() const noexcept FAB_LIFETIME_BOUND {
    return memory_->header().changes;
  }
  // What completions report of this peer: the handle itself, or its user id (fi_av(3)).
  PeerId reported(PeerId index) const noexcept;

  // --- by authorization key: `auth` as in Extra
  // What completions report of peers that proved the key and are not in the vector: the key's user id
  // (kNoPeer until one is set), or in vectors without user ids the index of the key.
  PeerId reported_of_key(std::uint32_t auth) const noexcept;
  // No value: the key is forgotten. Throws Error(invalid) in vectors without user ids.
  void set_key_user_id(std::uint32_t auth, std::optional<PeerId> user_id);

  std::size_t size() const noexcept {
    return std::min(memory_->header().live.load(std::memory_order_relaxed), end());
  }
  std::uint64_t end() const noexcept {  // 1 + the highest index ever used
    return std::min(memory_->header().used.load(std::memory_order_acquire), kMaxPeers);
  }
  std::uint64_t map_address() const noexcept { return memory_->header().map_address; }

 private:
  class Writing;
  void changed() noexcept;
  [[noreturn]] static void refuse(PeerId peer);
  std::uint64_t existing(PeerId peer) const;  // its index; throws Error(invalid)
  void check_links(const std::vector<PartView>& parts) const;
  std::string_view checked(std::string_view address, std::string& canonical,
                           std::vector<PartView>& parts) const;
  PeerId insert_now(std::string_view address, const Extra& extra);  // under the writers' lock
  std::uint64_t remove_now(PeerId peer);                            // returns its index
  void check_writable() const;
  void repair();
  // The index that a new peer gets: the lowest vacant one, or a new one, which is end(). Repairs a vector
  // that takes peers for vacant; throws Error(bad_state) for one whose count is wrong.
  std::optional<std::uint64_t> find_vacant();
  void check_end() const;
  // Length of the address, 0 where there is none. Its bytes are in `out` if there is room for all of them.
  std::size_t read(std::uint64_t index, std::span<char> out) const;
  bool read(std::uint64_t index, std::string& out) const;  // false: there is none
  void hashes_of(std::string_view address, std::vector<std::uint32_t>& hashes) const;
  bool holds(std::uint64_t index, const Part& part) const;
  bool is_there(std::string_view address, std::uint32_t hash) const;
  template <class Visit>
  void visit_candidates(std::uint32_t hash, Visit&& visit) const;
  template <class Visit>
  void visit_holders(const Part& part, std::optional<std::uint32_t> auth, Visit&& visit) const;

  const Options options_;
  PartCheck check_;
  std::vector<std::string> links_;
  const std::unique_ptr<PeerMemory> memory_;
  PeerColumn<PeerEntry, PeerSection::entries> entries_;
  mutable PeerColumn<std::atomic<std::uint64_t>, PeerSection::user_ids> user_ids_;  // ~id; 0: none
  mutable PeerColumn<std::atomic<std::uint32_t>, PeerSection::auths> auths_;        // Extra::auth
  PeerRecords records_;
  PeerIndex index_;
  PeerRuns runs_;
  PeerVacancies vacancies_;
  Mutex watchers_mutex_;
  std::vector<std::weak_ptr<PeerWatcher>> watchers_ FAB_GUARDED_BY(watchers_mutex_);
  mutable Mutex key_ids_mutex_;
  std::map<std::uint32_t, PeerId> key_user_ids_
      FAB_GUARDED_BY(key_ids_mutex_);  // not in `memory_`: a key belongs to one process
};

}  // namespace fab
