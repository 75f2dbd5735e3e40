#include <algorithm>

#include "fabric/address_vector/address_vector.h"

// How an address vector finds whom it holds by address, and by part of an address.

namespace fab {

// If a writer died, the index never comes to rest; then all peers are candidates.
template <class Visit>
void AddressVector::visit_candidates(std::uint32_t hash, Visit&& visit) const {
  if (index_.visit(hash, visit)) return;
  const std::uint64_t entries = std::min(end(), entries_.room());  // runs are visited apart
  for (std::uint64_t index = 0; index < entries; ++index) visit(static_cast<std::uint32_t>(index));
}

bool AddressVector::is_there(std::string_view address, std::uint32_t hash) const {
  bool found = false;
  if (options_.format != AddressFormat::bundle)
    runs_.visit(address, [&](std::uint64_t index) {
      std::string held;
      found |= read(index, held) && held == address;
    });
  visit_candidates(hash, [&](std::uint32_t index) {
    std::string held(address.size(), '\0');
    found = found || (read(index, held) && held == address);
  });
  return found;
}

// Calls visit(index, holds) for each peer that may hold the part; holds() says whether it does.
template <class Visit>
void AddressVector::visit_holders(const Part& part, std::optional<std::uint32_t> auth, Visit&& visit) const {
  const auto consider = [&](std::uint64_t index) {
    visit(index, [&] {
      if (auth) {
        const auto* with = auths_.find(index);
        if ((with ? with->load(std::memory_order_relaxed) : 0) != *auth) return false;
      }
      return holds(index, part);
    });
  };
  if (options_.format != AddressFormat::bundle && part.link == kSocketLink) runs_.visit(part.bytes, consider);
  visit_candidates(PeerIndex::hash(memory_->header().seed, part.link, part.context, part.bytes), consider);
}

PeerId AddressVector::find(const Part& part, std::optional<std::uint32_t> auth) const {
  PeerId lowest = kNoPeer;
  visit_holders(part, auth, [&](std::uint64_t index, const auto& holds) {
    if (index < lowest && holds()) lowest = index;
  });
  return lowest;
}

void AddressVector::find_all(const Part& part, std::optional<std::uint32_t> auth,
                             std::vector<PeerId>& found) const {
  visit_holders(part, auth, [&](std::uint64_t index, const auto& holds) {
    if (std::ranges::find(found, index) == found.end() && holds()) found.push_back(index);
  });
}

}  // namespace fab
