#include "fabric/admission/guests.h"

#include <algorithm>
#include <utility>

namespace fab {
namespace {

constexpr int kPriceless = INT_MAX;
constexpr std::chrono::seconds kMoment{1};

}  // namespace

// What the end of a stream costs. A peer whose stream was idle begins another one with its next operation,
// and notices no more than that. A proven peer gives way to proven peers alone, and before a stranger's work
// only if it has none itself.
int Guests::price_of(Guest& guest, bool for_proven, Clock::time_point now) noexcept {
  const Guest::Work work = guest.has_spoken() ? guest.work() : Guest::Work::none;
  if (!guest.proven()) {
    if (work == Guest::Work::moving) return for_proven ? 5 : kPriceless;
    // One price for all of them, so that who was silent for longest goes, whatever the others have said.
    if (now - guest.heard_at_ < kMoment) return 3;
    return work == Guest::Work::stalled ? 2 : guest.has_spoken() ? 1 : 0;
  }
  if (!for_proven || work == Guest::Work::moving) return kPriceless;
  return work == Guest::Work::none ? 4 : 6;
}

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
  guest.heard_at_ = now_();
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

bool Guests::make_room(const std::string& source, bool proven, const Bounds& bounds) noexcept {
  if (of(source) >= bounds.guests_of_one)
    return evict({.for_proven = proven, .from = &source}, "too many streams come from there");
  if (size_ < bounds.guests) return true;
  constexpr const char* kWhy = "too many streams, and it did nothing";
  const auto greediest = std::ranges::max_element(by_source_, {}, [](const auto& one) { return one.second; });
  return evict({.from = &greediest->first}, kWhy) || evict({}, kWhy) ||
         (proven && (evict({.for_proven = true, .from = &greediest->first}, kWhy) ||
                     evict({.for_proven = true}, kWhy)));
}

bool Guests::may_come(const std::string& source, const Bounds& bounds) noexcept {
  if (of(source) >= bounds.callers_of_one) return false;
  if (size_ < bounds.callers) return true;
  const auto greediest = std::ranges::max_element(by_source_, {}, [](const auto& one) { return one.second; });
  if (greediest->second <= of(source) + 1) return false;
  return evict({.from = &greediest->first, .at_rest = true}, "too many handshakes are under way");
}

// Who was heard since the last look goes to the end, and is met there once more.
void Guests::order(Clock::time_point now) noexcept {
  for (auto at = guests_.begin(); at != guests_.end();) {
    Guest& guest = *at;
    ++at;
    const std::uint64_t heard = guest.heard();
    if (std::exchange(guest.seen_, heard) == heard) continue;
    guest.heard_at_ = now;
    decltype(guests_)::erase(guest);
    guests_.push_back(guest);
  }
}

bool Guests::evict(const Sought& sought, const char* why) noexcept {
  const Clock::time_point now = now_();
  order(now);
  Guest* cheapest = nullptr;
  int least = kPriceless;
  for (Guest& guest : guests_) {
    if ((sought.from && guest.source() != *sought.from) || guest.descriptor() >= sought.below ||
        (sought.silent && guest.has_spoken()) || (sought.at_rest && now - guest.heard_at_ < kMoment))
      continue;
    const int price = price_of(guest, sought.for_proven, now);
    if (price >= least) continue;
    least = price;
    cheapest = &guest;
    if (least == 0) break;
  }
  if (cheapest) cheapest->evict(why);
  return cheapest != nullptr;
}

}  // namespace fab
