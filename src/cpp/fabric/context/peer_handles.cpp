#include "fabric/context/peer_handles.h"

#include <algorithm>
#include <string>

namespace fab {

PeerTarget PeerHandles::target(PeerId peer) const {
  const PeerTarget target = take_apart(peer, rules_.rx_bits);
  if (peer != kNoPeer && target.group > rules_.max_group_id)
    throw Error(Errc::invalid, "group " + std::to_string(target.group) + " of peer " +
                                   std::to_string(target.index) + ": this domain has groups up to " +
                                   std::to_string(rules_.max_group_id));
  return target;
}

std::uint16_t PeerHandles::context_of(const PeerTarget& target, const Name& peer) const noexcept {
  if (rules_.rx_bits != 0) return static_cast<std::uint16_t>(target.rx_context);
  return static_cast<std::uint16_t>(rules_.index % std::max<std::uint16_t>(peer.contexts(), 1));
}

const AuthKey& PeerHandles::key_under(std::uint32_t auth) const {
  for (const AuthKey& key : keys_)
    if (std::ranges::find(key.handles, auth) != key.handles.end()) return key;
  throw Error(Errc::invalid, "the endpoint does not have authorization key " + std::to_string(auth - 1) +
                                 " of its address vector: it takes those that are there when it is opened");
}

std::size_t PeerHandles::key_to(PeerId index) const {
  const std::uint32_t auth = peers_.auth(index);
  if (auth != 0) return static_cast<std::size_t>(&key_under(auth) - keys_.data());
  if (keys_.size() == 1) return 0;
  throw Error(Errc::invalid, "peer " + std::to_string(index) +
                                 " was inserted without an authorization key, of "
                                 "which the endpoint has " +
                                 std::to_string(keys_.size()) +
                                 ": insert it with InsertFlag.AUTH_KEY and the handle of one of them");
}

}  // namespace fab
