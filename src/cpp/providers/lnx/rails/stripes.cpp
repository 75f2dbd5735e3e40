#include "providers/lnx/rails/stripes.h"

#include <algorithm>

#include "fabric/memory/local_memory.h"

namespace fab::lnx {
namespace {

constexpr std::uint64_t kPage = 4096;
constexpr double kLongestStripe = 0.05;  // seconds

}  // namespace

bool may_be_striped(const Transfer& transfer) noexcept {
  return moves_data(transfer.op) && transfer.length >= kStriped && transfer.piece_count <= kMostPieces &&
         transfer.remote + transfer.length >= transfer.remote;  // the peer refuses a range that wraps
}

std::uint64_t longest_stripe(double rate, bool weighted) noexcept {
  if (rate > 0)
    return static_cast<std::uint64_t>(
        std::clamp(rate * kLongestStripe, double{kLeastStripe}, double{kMostStripe}));
  return weighted ? kMostStripe : kFirstStripe;
}

Range next_range(Request& request, double share, std::uint64_t longest) noexcept {
  const std::uint64_t length = request.transfer.length;
  Range rest{request.next, length - request.next};
  const auto fair = static_cast<std::uint64_t>(static_cast<double>(rest.length) * share);
  const std::uint64_t size = std::clamp(fair / kPage * kPage, kLeastStripe, longest);
  const bool hole = !request.holes.empty();
  Range& there = hole ? request.holes.back() : rest;
  Range range = there;
  // A stripe takes the rest along if that is very short, or if there is no place for it in `holes`.
  const bool place = !hole || request.holes.size() + request.postings < kMostHoles;
  if (place && range.length > size + kLeastStripe / 2) range.length = size;
  there = {range.offset + range.length, there.length - range.length};
  if (!hole)
    request.next += range.length;
  else if (there.length == 0)
    request.holes.pop_back();
  return range;
}

Transfer stripe_of(Request& request, Stripe& stripe, Range range) noexcept {
  Transfer transfer = request.transfer;
  transfer.operation = &stripe;
  if (transfer.delivery != Delivery::commit) transfer.delivery = Delivery::delivery;
  transfer.flags = transfer_flag::kMarked;
  stripe.frame = {.flags = frame_flag::kStripe, .data = range.offset, .id = request.transfer.length};
  transfer.remote += range.offset;
  transfer.length = range.length;
  if (transfer.piece_count == 0) {
    transfer.local += range.offset;
    return transfer;
  }
  PieceCursor at = local_of(request.transfer);
  at.skip(range.offset);
  std::uint16_t count = 0;
  for (std::uint64_t left = range.length; left; ++count) {
    stripe.pieces[count] = at.here(left);
    at.advance(stripe.pieces[count].iov_len);
    left -= stripe.pieces[count].iov_len;
  }
  transfer.local_pieces = stripe.pieces.data();
  transfer.piece_count = count;
  return transfer;
}

}  // namespace fab::lnx
