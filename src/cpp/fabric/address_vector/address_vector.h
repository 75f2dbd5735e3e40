#pragma once

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

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
  unsigned rx_bits = 0;           // of a handle, for the receive context
  std::uint64_t max_group = 0;    // of the domain: ids of peer groups in handles
  std::uint32_t ep_per_node = 0;  // with `symmetric`: ports of each node, 0: as they come
  bool symmetric = false;         // consecutive socket addresses are kept as runs (AV-5)
  bool user_ids = false;          // completions report what set_user_id() said (AV-74)
  bool reject_duplicates = false;
  std::uint32_t type = 2;  // kept for others that open the same named vector
};

// Writes what the header of its memory says of a vector, but for the magic number, which comes last.
void describe(PeerHeader& header, const AddressVectorOptions& options);

// Who keeps something for the peers of an address vector.
class PeerWatcher {
 public:
  virtual ~PeerWatcher() = default;
  // This process took the peer out. Called without a lock, from any thread; its index may have been given
  // anew.
  virtual void removed(std::uint64_t index) noexcept = 0;
};

// A table of peers: handle → address (fi_av(3)). The index in a handle is the lowest that was free (AV-11).
// Reading takes no lock; insertion and removal take turns, one address at a time, at about a microsecond.
// Where the memory is a file, all of this holds among its processes. Layout: docs/address-vectors.md.
class AddressVector final {
 public:
  using Options = AddressVectorOptions;
  explicit AddressVector(Options options = {});
  // On memory of another kind, whose header says the same as `options`.
  AddressVector(Options options, std::unique_ptr<PeerMemory> memory);
  AddressVector(const AddressVector&) = delete;
  AddressVector& operator=(const AddressVector&) = delete;

  // Judges every part of addresses to insert, of which one has to be of one of `links`. Set before use.
  void judge_parts(PartCheck check, std::vector<std::string> links) {
    check_ = std::move(check);
    links_ = std::move(links);
  }

  const Options& options() const noexcept { return options_; }

  // What goes with an address, beyond its bytes.
  struct Extra {
    std::uint32_t auth = 0;           // 1 + index of an authorization key; 0: none
    std::optional<PeerId> user_id{};  // what completions report instead of the handle
  };
  // Throws Error: invalid for what is no address of the vector's format, unreachable for one without a link
  // of the domain (LNX-18), already for a duplicate where these are rejected, access for a vector that was
  // opened to be read.
  PeerId insert(std::string_view address, const Extra& extra);
  PeerId insert(std::string_view address) { return insert(address, Extra{}); }
  // Several, in order, with fewer turns. extra(i) goes with address i; done(i, handle, error) tells of each,
  // with a null error or kNoPeer.
  using Done = std::function<void(std::size_t, PeerId, const Error*)>;
  void insert(std::span<const std::string_view> addresses, const std::function<Extra(std::size_t)>& extra,
              const Done& done);
  void remove(PeerId peer);  // throws Error(invalid) for a handle that is not there
  // From now on tells of removals.
  void watch(std::weak_ptr<PeerWatcher> watcher);

  // --- by handle: the receive context in it is ignored (AV-41); one with a peer group is no entry's handle
  std::string lookup(PeerId peer) const;  // throws Error(invalid)
  // Length of the address, whose first bytes are copied to `out` as far as there is room. Throws likewise.
  std::size_t lookup(PeerId peer, std::span<char> out) const;
  Name name(PeerId peer) const;  // the address as parts; a socket address is one, of kSocketLink
  bool contains(PeerId peer) const noexcept;
  void set_user_id(PeerId peer, PeerId user_id);  // throws Error(invalid)
  std::uint32_t auth(PeerId peer) const;          // as Extra::auth; throws Error(invalid)
  // Index in a handle; nothing for kNoPeer and where a peer group is set.
  std::optional<std::uint64_t> index_of(PeerId peer) const noexcept;

  // --- by index
  // Lowest handle of a name that holds `part`, or kNoPeer: who is it that calls from there? With `auth`, only
  // those inserted with that key.
  PeerId find(const Part& part, std::optional<std::uint32_t> auth = std::nullopt) const;
  // Changes whenever the handle is given to another address; 0 while it is vacant.
  std::uint32_t generation(PeerId index) const noexcept;
  // Grows after each change: as long as it is the same, what was read before still holds.
  std::uint64_t changes() const noexcept { return memory_->header().changes.load(std::memory_order_acquire); }
  // What completions report of this peer: the handle itself, or its user id (AV-73, AV-74).
  PeerId reported(PeerId index) const noexcept;

  // --- by Extra::auth of an authorization key
  // What completions report of peers that came under the key and are not here: its user id, kNoPeer before
  // one was set, and in vectors without user ids the index of the key (AV-82).
  PeerId reported_of_key(std::uint32_t auth) const noexcept;
  // Nothing: the key goes. Throws Error(invalid) in vectors without user ids.
  void set_key_user_id(std::uint32_t auth, std::optional<PeerId> user_id);

  std::size_t size() const noexcept { return memory_->header().live.load(std::memory_order_relaxed); }
  std::uint64_t end() const noexcept {  // 1 + the highest index ever used
    return memory_->header().used.load(std::memory_order_acquire);
  }
  std::uint64_t map_address() const noexcept { return memory_->header().map_address; }

 private:
  class Writing;
  void changed() noexcept;
  [[noreturn]] static void refuse(PeerId peer);
  std::uint64_t existing(PeerId peer) const;  // index; throws
  void check_links(const std::vector<PartView>& parts) const;
  std::string_view checked(std::string_view address, std::string& canonical,
                           std::vector<PartView>& parts) const;
  PeerId insert_now(std::string_view address, const Extra& extra);  // in the caller's turn
  std::uint64_t remove_now(PeerId peer);                            // its index
  void check_writable() const;
  void repair();
  // Length of the address, 0 where there is none; its bytes are in `out` if there is room for all.
  std::size_t read(std::uint64_t index, std::span<char> out) const;
  bool read(std::uint64_t index, std::string& out) const;  // whatever its length; false: there is none
  void hashes_of(std::string_view address, std::vector<std::uint32_t>& hashes) const;
  bool holds(std::uint64_t index, const Part& part) const;
  bool is_there(std::string_view address, std::uint32_t hash) const;
  template <class Visit>
  void visit_candidates(std::uint32_t hash, Visit&& visit) const;

  const Options options_;
  PartCheck check_;
  std::vector<std::string> links_;
  const std::unique_ptr<PeerMemory> memory_;
  PeerColumn<PeerEntry, PeerSection::entries> entries_;
  mutable PeerColumn<std::atomic<std::uint64_t>, PeerSection::user_ids> user_ids_;  // complement; 0: none
  mutable PeerColumn<std::atomic<std::uint32_t>, PeerSection::auths> auths_;        // as Extra::auth
  PeerRecords records_;
  PeerIndex index_;
  PeerRuns runs_;
  PeerVacancies vacancies_;
  std::mutex watchers_mutex_;
  std::vector<std::weak_ptr<PeerWatcher>> watchers_;
  mutable std::mutex key_ids_mutex_;
  std::map<std::uint32_t, PeerId> key_user_ids_;  // keys are of one process: their ids are not in `memory_`
};

}  // namespace fab
