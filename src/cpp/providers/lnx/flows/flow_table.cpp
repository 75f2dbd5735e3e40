#include "providers/lnx/flows/flow_table.h"

#include "providers/lnx/flows/flow_member.h"

namespace fab::lnx {

std::unique_ptr<Extension> FlowTable::make(ExtensionHost& host) {
  return std::make_unique<FlowMember>(host, *this);
}

void FlowTable::stands_alone(std::uint64_t peer) noexcept {
  if (const auto found = flows_.find(peer); found != flows_.end()) goes_last(found->second);
  on_alone_();
}

// Moves the flow to the end of its lists, so that the first one has been without rails for longest.
void FlowTable::goes_last(Entry& entry) noexcept {
  Alone::erase(entry);
  alone_.push_back(entry);
  if (!entry.owned) return;
  LinkedList<Entry, OfOne>::erase(entry);
  entry.owner->second.flows.push_back(entry);
}

void FlowTable::forget(const Entry& entry) noexcept {
  const std::uint64_t peer = entry.peer;  // copies, because erase() destroys the entry
  const auto owner = entry.owner;
  const bool owned = entry.owned;
  flows_.erase(peer);
  if (owned && --owner->second.count == 0) owners_.erase(owner);
}

// Whether the initiator may have one more flow. It stays among the owners.
bool FlowTable::make_room_for(const Owned& owner) noexcept {
  if (owner.count < kMostOfOne) return true;
  const Entry* oldest = nullptr;
  for (const Entry& entry : owner.flows)
    if (!oldest && entry.flow->alone()) oldest = &entry;
  if (!oldest) return false;
  forget(*oldest);
  return true;
}

std::shared_ptr<Flow> FlowTable::open(FlowId id, bool must_know, const std::shared_ptr<Sender>& initiator) {
  const auto make = [&] {
    return std::make_shared<Flow>(
        receives_, initiator, [this, peer = id.peer] { stands_alone(peer); }, held_);
  };
  const auto found = flows_.find(id.peer);
  if (found != flows_.end()) {
    Entry& entry = found->second;
    const Sender& owner = entry.flow->initiator();
    if (&owner.key() != &initiator->key() || owner.public_key() != initiator->public_key())
      return nullptr;  // the flow of another peer
    if (id.epoch == entry.epoch) return entry.flow;
    if (id.epoch < entry.epoch || must_know) return nullptr;
    auto flow = make();
    const auto former = std::exchange(entry.flow, std::move(flow));
    entry.epoch = id.epoch;
    former->cut_all();
    goes_last(entry);  // the new flow has no rail until one joins
    return entry.flow;
  }
  if (must_know || flows_.size() >= kMost) return nullptr;
  const bool owned = initiator->public_key() != kNoPublicKey;  // otherwise nothing tells it from others
  Owners::iterator owner{};
  if (owned) {
    owner = owners_.try_emplace({&initiator->key(), initiator->public_key()}).first;
    if (!make_room_for(owner->second)) return nullptr;
  }
  const auto flow = make();
  Entry& entry = flows_.try_emplace(id.peer, id.peer, id.epoch, flow).first->second;
  entry.owner = owner;
  entry.owned = owned;
  if (owned) ++owner->second.count;
  stands_alone(id.peer);
  return flow;
}

std::string FlowTable::message_link(PeerId peer) const {
  for (const auto& [id, entry] : flows_)
    if (!entry.flow->alone() && entry.flow->initiator().handle() == peer) return entry.flow->message_link();
  return {};
}

bool FlowTable::expire(std::chrono::nanoseconds now) noexcept {
  std::size_t left = 0, bytes = 0;
  for (auto at = alone_.begin(); at != alone_.end();) {
    Entry& entry = *at;
    ++at;
    const auto since = entry.flow->alone_since(now);
    if (!since) {
      Alone::erase(entry);  // a rail has joined
    } else if (entry.flow->over() || now - *since > keep_) {
      forget(entry);
    } else {
      ++left;
      bytes += entry.flow->held();
    }
  }
  for (; left > kMostAlone || bytes > Flow::kMostResults; --left) {
    const Entry& oldest = alone_.pop_front();
    bytes -= oldest.flow->held();
    forget(oldest);
  }
  return left != 0;
}

}  // namespace fab::lnx
