#include "providers/lnx/rails/stripes.h"

#include <doctest/doctest.h>

#include <vector>

using namespace fab;
using namespace fab::lnx;

namespace {

constexpr std::uint64_t kPage = 4096;

struct Large {
  std::vector<std::byte> bytes;
  Request request;

  explicit Large(std::uint64_t length) : bytes(length) {
    request.transfer.op = OpCode::write;
    request.transfer.local = bytes.data();
    request.transfer.remote = 1000;
    request.transfer.length = length;
    request.transfer.flags = transfer_flag::kRemoteData;
    request.transfer.delivery = Delivery::inject;
  }
  bool next_is(double share, std::uint64_t longest, std::uint64_t offset, std::uint64_t length) {
    const Range range = next_range(request, share, longest);
    CHECK(range.offset == offset);
    CHECK(range.length == length);
    return range.offset == offset && range.length == length;
  }
};

}  // namespace

TEST_CASE("large puts and gets whose pieces can be listed are striped") {
  Transfer transfer{};
  transfer.op = OpCode::write;
  transfer.length = kStriped;
  CHECK(may_be_striped(transfer));
  transfer.op = OpCode::read;
  CHECK(may_be_striped(transfer));
  transfer.op = OpCode::send;
  CHECK(!may_be_striped(transfer));
  transfer.op = OpCode::write;
  transfer.length = kStriped - 1;
  CHECK(!may_be_striped(transfer));
  transfer.length = kStriped;
  transfer.piece_count = kMostPieces;
  CHECK(may_be_striped(transfer));
  transfer.piece_count = kMostPieces + 1;
  CHECK(!may_be_striped(transfer));
  transfer.piece_count = 0;
  transfer.remote = 0 - kStriped;  // ends where the last address does
  CHECK(!may_be_striped(transfer));
  transfer.remote = 0 - kStriped - 1;
  CHECK(may_be_striped(transfer));
}

TEST_CASE("a stripe is as long as its rail moves in a twentieth of a second, within limits") {
  CHECK(longest_stripe(0, false) == kFirstStripe);
  CHECK(longest_stripe(0, true) == kMostStripe);
  CHECK(longest_stripe(20e6, false) == 1'000'000);
  CHECK(longest_stripe(20e6, true) == 1'000'000);
  CHECK(longest_stripe(1, false) == kLeastStripe);
  CHECK(longest_stripe(1e12, false) == kMostStripe);
}

TEST_CASE("stripes take their share of what is left, in whole pages") {
  Large large(10'000'000);
  CHECK(has_more(large.request));
  const std::uint64_t first = 2'500'000 / kPage * kPage;
  CHECK(large.next_is(0.25, kMostStripe, 0, first));
  CHECK(large.next_is(0.5, 1 << 20, first, 1 << 20));
  CHECK(large.next_is(0.001, kMostStripe, first + (1 << 20), kLeastStripe));
  CHECK(large.request.next == first + (1 << 20) + kLeastStripe);
}

TEST_CASE("the last stripe takes along what would be a crumb") {
  for (const std::uint64_t crumb : {std::uint64_t{0}, kLeastStripe / 2}) {
    Large large(kFirstStripe + crumb);
    CHECK(large.next_is(1, kFirstStripe, 0, kFirstStripe + crumb));
    CHECK(!has_more(large.request));
  }
  Large more(kFirstStripe + kLeastStripe / 2 + 1);
  CHECK(more.next_is(1, kFirstStripe, 0, kFirstStripe));
  CHECK(has_more(more.request));
  CHECK(more.next_is(1, kFirstStripe, kFirstStripe, kLeastStripe / 2 + 1));
  CHECK(!has_more(more.request));
}

TEST_CASE("what was lost with a rail goes first, as one stripe or several") {
  Large large(1'000'000);
  large.request.next = 600'000;
  large.request.holes = {{100'000, 50'000}, {200'000, 300'000}};
  CHECK(large.next_is(0.000001, kFirstStripe, 200'000, kLeastStripe));
  CHECK(large.request.holes.size() == 2);
  CHECK(large.next_is(1, kFirstStripe, 200'000 + kLeastStripe, 300'000 - kLeastStripe));
  CHECK(large.request.holes.size() == 1);
  CHECK(large.next_is(1, kFirstStripe, 100'000, 50'000));
  CHECK(large.request.holes.empty());
  CHECK(large.request.next == 600'000);
  CHECK(large.next_is(1, kMostStripe, 600'000, 400'000));
  CHECK(!has_more(large.request));
}

TEST_CASE("a hole is not cut where there is no place for what would be left of it") {
  for (const bool place : {false, true}) {
    CAPTURE(place);
    Large large(1'000'000);
    large.request.next = 1'000'000;
    large.request.holes = {{0, 500'000}};
    large.request.postings = kMostHoles - 1 - (place ? 1 : 0);
    CHECK(large.next_is(0.000001, kFirstStripe, 0, place ? kLeastStripe : 500'000));
    CHECK(large.request.holes.size() == (place ? 1 : 0));
  }
  // What was never given away leaves no hole.
  Large large(1'000'000);
  large.request.postings = kMostHoles;
  CHECK(large.next_is(0.000001, kFirstStripe, 0, kLeastStripe));
}

TEST_CASE("nothing more is given away after an error, or when all is") {
  Large large(1'000'000);
  large.request.error = Errc::bounds;
  CHECK(!has_more(large.request));
  large.request.error = Errc::ok;
  large.request.next = 1'000'000;
  CHECK(!has_more(large.request));
  large.request.holes = {{1, 2}};
  CHECK(has_more(large.request));
  CHECK(!all_stored(large.request));
  large.request.stored = 1'000'000;
  CHECK(all_stored(large.request));
}

TEST_CASE("a stripe is a transfer of its range, told by its own posting, with no effect beside it") {
  Large large(1'000'000);
  Stripe stripe;
  Transfer transfer = stripe_of(large.request, stripe, {300'000, 65'536});
  CHECK(transfer.operation == &stripe);
  CHECK(transfer.local == large.bytes.data() + 300'000);
  CHECK(transfer.remote == 301'000);
  CHECK(transfer.length == 65'536);
  CHECK(transfer.flags == transfer_flag::kMarked);
  CHECK(is_stripe(transfer));
  CHECK(stripe.frame.data == 300'000);
  CHECK(stripe.frame.id == 1'000'000);
  CHECK(transfer.delivery == Delivery::delivery);
  CHECK(transfer.piece_count == 0);
  large.request.transfer.delivery = Delivery::commit;
  CHECK(stripe_of(large.request, stripe, {0, 8}).delivery == Delivery::commit);
}

TEST_CASE("a stripe of a local vector lists the pieces of its range") {
  Large large(1'000'000);
  std::vector<iovec> pieces;
  for (std::size_t i = 0; i < 10; ++i) pieces.push_back({large.bytes.data() + i * 100'000, 100'000});
  large.request.transfer.local_pieces = pieces.data();
  large.request.transfer.piece_count = 10;
  Stripe stripe;
  Transfer transfer = stripe_of(large.request, stripe, {150'000, 200'000});
  CHECK(transfer.remote == 151'000);
  CHECK(transfer.length == 200'000);
  REQUIRE(transfer.piece_count == 3);
  REQUIRE(transfer.local_pieces == stripe.pieces.data());
  CHECK(stripe.pieces[0].iov_base == large.bytes.data() + 150'000);
  CHECK(stripe.pieces[0].iov_len == 50'000);
  CHECK(stripe.pieces[1].iov_base == large.bytes.data() + 200'000);
  CHECK(stripe.pieces[1].iov_len == 100'000);
  CHECK(stripe.pieces[2].iov_base == large.bytes.data() + 300'000);
  CHECK(stripe.pieces[2].iov_len == 50'000);
}
