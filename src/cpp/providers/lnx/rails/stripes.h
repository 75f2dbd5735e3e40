#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "providers/lnx/flows/flow.h"
#include "providers/lnx/rails/request.h"

// How a large put or get is cut into stripes, which rails carry side by side.
namespace fab::lnx {

inline constexpr std::uint64_t kStriped = 256 * 1024;  // puts and gets of this many bytes or more are cut
inline constexpr unsigned kStripesAhead = 2;           // under way on one rail
inline constexpr std::uint16_t kMostPieces = 64;       // in a local vector that is cut
inline constexpr std::size_t kMostHoles = 64;          // in a request
static_assert(kMostHoles >= std::size_t{kStripesAhead} * kMaxRails);
inline constexpr std::uint64_t kLeastStripe = 64 * 1024, kFirstStripe = 256 * 1024, kMostStripe = 4 << 20;

// A stripe's own list of pieces, where the local memory is one.
struct Stripe final : Posting {
  std::array<iovec, kMostPieces> pieces;
};

bool may_be_striped(const Transfer& transfer) noexcept;

// Whether bytes of the request are still to be given to a rail.
inline bool has_more(const Request& request) noexcept {
  return request.error == Errc::ok && (!request.holes.empty() || request.next != request.transfer.length);
}
inline bool all_stored(const Request& request) noexcept { return request.stored == request.transfer.length; }

// The longest stripe for a rail that moves `rate` bytes a second (0: not measured yet). `weighted`: the user
// has given the rail its share.
std::uint64_t longest_stripe(double rate, bool weighted) noexcept;

// Takes the next range to go over a rail: about `share` of what is left, at most about `longest`. has_more()
// holds.
Range next_range(Request& request, double share, std::uint64_t longest) noexcept;

// The transfer of this range, which `stripe` stands for.
Transfer stripe_of(Request& request, Stripe& stripe, Range range) noexcept;

}  // namespace fab::lnx
