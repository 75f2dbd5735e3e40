#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "base/crypto/key_pair.h"
#include "base/lifetime.h"
#include "fabric/address_vector/address_vector.h"
#include "fabric/messages/link_counters.h"
#include "fabric/types/auth_key.h"
#include "fabric/types/name.h"
#include "fabric/types/types.h"

namespace fab {

// What completions say of a sender.
struct Source {
  PeerId id = kNoPeer;
  std::uint32_t flags = 0;  // completion_flag::kAuthKey or none
};

// Who is at the other end of a session. A peer may enter the address vector, or leave it, at any time, so it
// is looked up when somebody asks: by its name and the key that it proved, else by its name without a key.
// Used under its context's lock.
class Sender {
 public:
  // `names`: the parts by which the address vector may know the peer; of a peer that has not proven who it
  // is, one that says the link only, which no address vector knows. `key`: the one that the peer proved;
  // outlives this. `counters`: those of its link; null if none are kept.
  Sender(const AddressVector& peers, std::vector<Part> names, const AuthKey& key = kNoAuthKey,
         LinkCounters* counters = nullptr)
      : peers_(peers), names_(std::move(names)), key_(key), counters_(counters) {}

  // The peer has proven that it has this public key, which is the same on all links of its domain.
  void proven_by(const PublicKey& key) noexcept { public_key_ = key; }
  // The two sides have proven key() to each other with this secret.
  void proven_with(const std::string& secret) noexcept { secret_.set(secret); }
  // Whether what was proven has been removed from key().
  bool key_removed() const noexcept { return secret_.removed_from(key_); }
  // kNoPublicKey: it has proven none.
  const PublicKey& public_key() const noexcept FAB_LIFETIME_BOUND { return public_key_; }

  void known_as(PeerId peer) noexcept;
  // The address vector may know it by this, too. Throws std::bad_alloc.
  void also_named(Part name) {
    names_.push_back(std::move(name));
    seen_ = ~std::uint64_t{0};
  }
  // Its handle, or kNoPeer while it has none.
  PeerId handle() noexcept {
    look();
    return handle_;
  }
  // Whether the address vector knows it by this handle. It may know it by several: who gives out an address
  // may put parts of another one into it, and takes nobody's place with that.
  bool known_by(PeerId peer) noexcept {
    look();
    return peer == handle_ || std::ranges::find(handles_, peer) != handles_.end();
  }
  // What completions say of it: its handle or user id, or else what stands for its authorization key
  // (fi_av(3)). `asked`: the handle that the receive has named, which is one of its own.
  Source reported(PeerId asked = kNoPeer) noexcept {
    look();
    return asked == kNoPeer || asked == handle_ ? reported_ : Source{peers_.reported(asked)};
  }
  // Calls visit(handle) for each handle that it has.
  template <class Visit>
  void visit_handles(Visit&& visit) noexcept {
    look();
    if (handle_ != kNoPeer) visit(handle_);
    for (const PeerId other : handles_)
      if (other != handle_) visit(other);
  }
  const AuthKey& key() const noexcept { return key_; }
  // Whether the peer is more than somebody who has called: it has proven a key or, where there is none, a
  // name that is in the address vector.
  bool proven() noexcept { return !key_.secret.empty() || handle() != kNoPeer; }
  const Part& name() const noexcept FAB_LIFETIME_BOUND { return names_.front(); }
  const std::vector<Part>& names() const noexcept FAB_LIFETIME_BOUND { return names_; }
  const std::string& link() const noexcept FAB_LIFETIME_BOUND { return names_.front().link; }  // "tcp.0"
  LinkCounters* counters() const noexcept { return counters_; }

 private:
  void look() noexcept {
    if (peers_.changes() != seen_) look_again();
  }
  void look_again() noexcept;
  PeerId find() const;
  void find_all();

  const AddressVector& peers_;
  std::vector<Part> names_;
  const AuthKey& key_;
  PublicKey public_key_{};
  ProvenSecret secret_;
  LinkCounters* const counters_;
  PeerId handle_ = kNoPeer;
  std::vector<PeerId> handles_;  // all, the same one among them
  Source reported_{};
  std::uint32_t generation_ = 0;            // of the handle, when it was found
  std::uint64_t seen_ = ~std::uint64_t{0};  // AddressVector::changes() at the last look
};

}  // namespace fab
