#include "providers/tcp/guests.h"

#include <algorithm>
#include <utility>

namespace fab::tcp {

std::string source_of(const SocketAddress& address) {
  if (address.loopback()) return "loopback";  // whose addresses every user of the host may take, all of them
  if (!address.v6()) return address.host();
  std::string network = address.bytes();
  std::fill(network.begin() + 8, network.end(), '\0');
  return SocketAddress::from_bytes(network, 0).host() + "/64";
}

void Guests::add(Guest& guest, std::string source) {
  ++by_source_[source];
  guest.source_ = std::move(source);
  guest.seen_ = guest.heard();
  guests_.push_back(guest);
  ++size_;
}

void Guests::remove(Guest& guest) noexcept {
  const auto found = by_source_.find(guest.source_);
  if (guest.source_.empty() || found == by_source_.end()) return;
  if (--found->second == 0) by_source_.erase(found);
  guest.source_.clear();
  decltype(guests_)::erase(guest);
  --size_;
}

std::size_t Guests::of(const std::string& source) const noexcept {
  const auto found = by_source_.find(source);
  return found == by_source_.end() ? 0 : found->second;
}

bool Guests::make_room(const std::string& source, const Bounds& bounds) noexcept {
  if (of(source) >= bounds.guests_of_one) return evict(&source, "too many streams come from there");
  if (size_ < bounds.guests) return true;
  constexpr const char* kWhy = "too many streams, and it was idle";
  const auto greediest = std::ranges::max_element(by_source_, {}, [](const auto& one) { return one.second; });
  return evict(&greediest->first, kWhy) || evict(nullptr, kWhy);
}

bool Guests::evict(const std::string* of, const char* why) noexcept {
  const auto may_go = [of](const Guest& guest) {
    return (!of || guest.source() == *of) && guest.may_be_evicted();
  };
  for (Guest& guest : guests_)
    if (!guest.has_spoken() && may_go(guest)) {
      guest.evict(why);
      return true;
    }
  // Who was heard since the last look goes to the end, and is met there once more.
  for (auto at = guests_.begin(); at != guests_.end();) {
    Guest& guest = *at;
    ++at;
    const std::uint64_t heard = guest.heard();
    if (std::exchange(guest.seen_, heard) != heard) {
      decltype(guests_)::erase(guest);
      guests_.push_back(guest);
    } else if (may_go(guest)) {
      guest.evict(why);
      return true;
    }
  }
  return false;
}

}  // namespace fab::tcp
