#pragma once

#include <cstddef>
#include <cstdint>

#include "fabric/address_vector/address_vector.h"
#include "fabric/types/auth_key.h"
#include "fabric/types/name.h"
#include "fabric/types/peer_id.h"

namespace fab {

// What the handles of peers mean to one context. Nothing here changes, so no lock is needed.
class PeerHandles final {
 public:
  struct Rules {
    std::uint16_t index = 0;  // of the context, within the endpoint that the user opened
    unsigned rx_bits = 0;     // bits of a handle for the receive context
    std::uint64_t max_group_id = kMaxGroupId;
  };
  // `keys` are the endpoint's; both outlive this.
  PeerHandles(Rules rules, const AuthKeys& keys, const AddressVector& peers)
      : rules_(rules), keys_(keys), peers_(peers) {}

  std::uint64_t max_group_id() const noexcept { return rules_.max_group_id; }
  const AddressVector& peers() const noexcept { return peers_; }
  const AuthKeys& keys() const noexcept { return keys_; }
  // Throws Error(invalid) for a group or a receive context that cannot be.
  PeerTarget target(PeerId peer) const;
  PeerTarget parts(PeerId peer) const { return take_apart(peer, rules_.rx_bits); }  // as target(), unchecked
  // Which context of the peer is meant. Where handles have no receive contexts, contexts pair up by number.
  std::uint16_t context_of(const PeerTarget& target, const Name& peer) const noexcept;
  // The endpoint's key that the address vector has under this AddressVector::auth(); throws Error(invalid).
  const AuthKey& key_under(std::uint32_t auth) const;
  // Index of the key under which the peer is reached; throws Error(invalid).
  std::size_t key_to(PeerId index) const;

 private:
  const Rules rules_;
  const AuthKeys& keys_;
  const AddressVector& peers_;
};

}  // namespace fab
