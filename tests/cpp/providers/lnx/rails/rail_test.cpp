// One rail, and all of them together: what is under way, bandwidth, fences, and when a rail is tried again.

#include "providers/lnx/rails/rail.h"

#include <doctest/doctest.h>

#include "providers/lnx/rails/rail_ground.h"

using namespace fab;
using namespace fab::lnx;
using namespace fab::test;
using std::chrono::milliseconds;
using std::chrono::seconds;
using Kind = Posting::Kind;

namespace {

Transfer transfer_for(Posting& posting, std::uint64_t length = 0) {
  Transfer transfer{};
  transfer.operation = &posting;
  transfer.length = length;
  return transfer;
}

}  // namespace

TEST_CASE("what is posted is counted by its kind until it ends") {
  Posting whole, end, note;
  Stripe stripe;
  Request request;
  RailGround world;
  Rail& rail = world.raise(0);
  CHECK(world.rails.idle());
  rail.begin(stripe, Kind::stripe, &request);
  rail.begin(end, Kind::end, &request);
  rail.begin(note, Kind::note, nullptr);
  REQUIRE(rail.post(stripe, transfer_for(stripe, 5000)));
  REQUIRE(rail.post(end, transfer_for(end, 7000)));
  REQUIRE(rail.post(note, transfer_for(note, 10)));
  rail.begin(whole, Kind::whole, &request);
  whole.length = 300;
  rail.track(whole);
  CHECK(rail.postings == 4);
  CHECK(rail.stripes == 1);
  CHECK(rail.wholes == 2);
  CHECK(rail.bytes == 5300);  // an end and a note move nothing
  CHECK(request.postings == 3);
  CHECK(stripe.under_way);
  CHECK(!world.rails.idle());
  CHECK(rail.under_way.front() == &stripe);
  for (Posting* posting : {&whole, &end, static_cast<Posting*>(&stripe)}) rail.untrack(*posting);
  CHECK(!stripe.under_way);
  CHECK(rail.stripes == 0);
  CHECK(rail.wholes == 0);
  CHECK(rail.bytes == 0);
  CHECK(request.postings == 0);
  CHECK(rail.postings == 1);
  world.links[0].held.clear();
  rail.untrack(note);
  CHECK(world.rails.idle());
  CHECK(rail.under_way.empty());
}

TEST_CASE("a posting begins anew with each use") {
  Request request;
  Posting posting;
  RailGround world;
  Rail &first = world.raise(0), &second = world.raise(1);
  posting.length = posting.out = posting.back = posting.trial = 5;
  posting.announced = true;
  first.begin(posting, Kind::whole, &request);
  CHECK(posting.length + posting.out + posting.back + posting.trial == 0);
  CHECK(!posting.announced);
  CHECK(posting.rail == &first);
  request.announced = true;
  second.begin(posting, Kind::whole, &request);
  CHECK(posting.announced);
  CHECK(posting.rail == &second);
  second.begin(posting, Kind::end, &request);
  CHECK(!posting.announced);
  CHECK(posting.kind == Kind::end);
}

TEST_CASE("what a link does not take is as if it was never posted") {
  Posting posting;
  RailGround world;
  Rail& rail = world.raise(0);
  world.links[0].room = 0;
  rail.begin(posting, Kind::note, nullptr);
  CHECK(!rail.post(posting, transfer_for(posting)));
  CHECK(!posting.under_way);
  CHECK(rail.postings == 0);
  CHECK(rail.under_way.empty());
  CHECK(world.ends.empty());
}

TEST_CASE("each posting spends of the slice, and knows when it was posted") {
  std::vector<Posting> postings(Slice::kTransfers);
  RailGround world;
  Rail& rail = world.raise(0);
  for (Posting& posting : postings) {
    CHECK(!world.slice.spent());
    rail.begin(posting, Kind::note, nullptr);
    REQUIRE(rail.post(posting, transfer_for(posting)));
    CHECK(posting.posted == world.attended);
    world.pass(milliseconds(1));
  }
  CHECK(world.slice.spent());
}

TEST_CASE("the owner is told of each end, also of one that comes while it is posted") {
  Posting now, later;
  RailGround world;
  Rail& rail = world.raise(0);
  rail.begin(later, Kind::join, nullptr);
  REQUIRE(rail.post(later, transfer_for(later)));
  world.links[0].end(Errc::bounds);
  REQUIRE(world.ends == std::vector{&later});
  CHECK(later.completion().error == Errc::bounds);
  world.links[0].state = Errc::peer_lost;
  rail.begin(now, Kind::join, nullptr);
  REQUIRE(rail.post(now, transfer_for(now)));
  CHECK(world.ends == std::vector{&later, &now});
  CHECK(rail.postings == 0);
}

TEST_CASE("what rails tell each other is delivered, and the posting keeps what it said") {
  Posting posting;
  RailGround world;
  Rail& rail = world.raise(0);
  REQUIRE(rail.post_control(posting, Kind::note, {.type = FrameType::settled, .total = 17, .id = 4}));
  const Transfer& held = world.links[0].held.front();
  CHECK(is(held, FrameType::settled));
  CHECK(held.operation == &posting);
  CHECK(held.delivery == Delivery::delivery);
  CHECK(posting.frame.total == 17);
  CHECK(posting.frame.id == 4);
  CHECK(posting.kind == Kind::note);
}

TEST_CASE("a rail owes the oldest posting that was not announced, since it had nothing else to do") {
  Posting announced, owed, later;
  RailGround world;
  Rail& rail = world.raise(0);
  CHECK(rail.oldest_owed() == nullptr);
  for (Posting* posting : {&announced, &owed, &later}) {
    rail.begin(*posting, Kind::note, nullptr);
    REQUIRE(rail.post(*posting, transfer_for(*posting)));
    world.pass(milliseconds(10));
  }
  CHECK(rail.oldest_owed() == &announced);
  announced.announced = true;
  CHECK(rail.oldest_owed() == &owed);
  CHECK(rail.owes_since(owed) == owed.posted);
  world.links[0].end();
  CHECK(rail.owes_since(owed) == world.attended);
  owed.announced = later.announced = true;
  CHECK(rail.oldest_owed() == nullptr);
}

TEST_CASE("a rail has as many stripes under way as it shall have, and no more") {
  Request request;
  RailGround world;
  Rail& rail = world.raise(0);
  std::vector<Stripe*> taken;
  while (Stripe* const stripe = rail.free_stripe()) {
    REQUIRE(taken.size() < kStripesAhead);
    rail.begin(*stripe, Kind::stripe, &request);
    rail.track(*stripe);
    taken.push_back(stripe);
  }
  CHECK(taken.size() == kStripesAhead);
  rail.untrack(*taken[1]);
  CHECK(rail.free_stripe() == taken[1]);
  rail.untrack(*taken[0]);
}

TEST_CASE("bandwidth is what arrived since stripes began, smoothed, in spans that say something") {
  Request request;
  RailGround world;
  Rail& rail = world.raise(0);
  Stripe& stripe = *rail.free_stripe();
  rail.begin_stripes();
  world.pass(milliseconds(3));
  CHECK(!rail.measure(3'000'000));  // too short
  CHECK(rail.rate == 0);
  world.pass(milliseconds(1));
  CHECK(rail.measure(1'000'000));
  CHECK(rail.rate == doctest::Approx(1e9));
  world.pass(milliseconds(10));
  CHECK(rail.measure(20'000'000));
  CHECK(rail.rate == doctest::Approx(1.3e9));  // 0.3 of the newest one
  // While stripes are under way the span goes on; after a pause a new one begins.
  rail.begin(stripe, Kind::stripe, &request);
  rail.track(stripe);
  world.pass(milliseconds(5));
  rail.begin_stripes();
  world.pass(milliseconds(5));
  CHECK(rail.measure(13'000'000));
  CHECK(rail.rate == doctest::Approx(1.3e9));
  rail.untrack(stripe);
  world.pass(seconds(10));
  rail.begin_stripes();
  world.pass(milliseconds(3));
  CHECK(!rail.measure(1'000'000));
  world.pass(milliseconds(7));
  CHECK(rail.measure(12'000'000));
  CHECK(rail.rate == doctest::Approx(1.3e9));
  rail.begin_stripes();  // what had arrived counts no longer
  world.pass(milliseconds(10));
  CHECK(rail.measure(13'000'000));
  CHECK(rail.rate == doctest::Approx(1.3e9));
}

TEST_CASE("a rail that carried is tried at once, then with growing pauses up to a second") {
  RailGround world;
  Rail& rail = world.raise(0);
  world.raise(1);
  world.pass(seconds(100));
  CHECK(rail.stands());
  rail.unfenced = 3;
  rail.asked = rail.broken = true;
  CHECK(!rail.stands());
  rail.refused = Errc::peer_lost;
  rail.failures = 5;
  world.lose(rail);
  CHECK(rail.state == Rail::State::down);
  CHECK(!rail.stands());
  CHECK(!rail.path);
  CHECK(rail.last_dead == rail.incarnation);
  CHECK(rail.unfenced == 0);
  CHECK(!rail.asked);
  CHECK(!rail.broken);
  CHECK(rail.refused == Errc::ok);
  CHECK(rail.failures == 0);
  CHECK(rail.retry_at == world.clock);
  int pause = 20;
  for (unsigned tries = 1; tries < 10; ++tries) {
    rail.state = Rail::State::joining;
    ++rail.incarnation;
    world.lose(rail);
    CHECK(rail.retry_at - world.clock == milliseconds(pause));
    CHECK(rail.failures == tries);
    pause = std::min(2 * pause, 1000);
  }
  // From the beginning when it has been up, or when no other one is left.
  rail.try_soon();
  CHECK(rail.retry_at == world.clock);
  world.lose(rail);
  CHECK(rail.retry_at - world.clock == milliseconds(20));
  rail.retry_at = world.clock - seconds(1);
  rail.try_soon();
  CHECK(rail.retry_at == world.clock - seconds(1));
  world.lose(rail);
  world.lose(rail);
  world.raise(0);
  world.lose(rail);
  rail.state = Rail::State::joining;
  world.lose(rail);
  CHECK(rail.retry_at - world.clock == milliseconds(20));
}

TEST_CASE("a rail that rose begins its pauses anew, if it is lost before it carried again") {
  RailGround world;
  Rail& rail = world.raise(0);
  for (int i = 0; i < 5; ++i) {
    rail.state = Rail::State::joining;
    world.lose(rail);
  }
  rail.rose();
  rail.state = Rail::State::joining;
  world.lose(rail);
  CHECK(rail.retry_at - world.clock == milliseconds(20));
}

TEST_CASE("a link that never led anywhere is tried more and more seldom") {
  RailGround world;
  Rail& rail = world.rails[0];
  Clock::duration last{};
  for (int i = 0; i < 20; ++i) {
    world.lose(rail);
    last = rail.retry_at - world.clock;
  }
  CHECK(last == seconds(30));
}

TEST_CASE("a rail that is lost for the third time in a row, soon after it rose, is doubted") {
  for (const bool others : {true, false}) {
    for (const auto carried : {milliseconds(9'999), milliseconds(10'000)}) {
      CAPTURE(others);
      CAPTURE(carried.count());
      RailGround world;
      if (others) world.raise(1);
      Rail& rail = world.rails[0];
      for (int losses = 0; losses < 3; ++losses) {
        CHECK(!rail.out);
        world.raise(0);
        world.pass(carried);
        world.lose(rail);
        // The first loss counts as one, however long it carried.
      }
      CHECK(rail.out == (others && carried < seconds(10)));
      if (rail.out) CHECK(rail.retry_at == world.clock + milliseconds(250));
    }
  }
}

TEST_CASE("a rail that is doubted again stays away longer, and forgiveness takes as many times as long") {
  RailGround world;
  Rail& rail = world.raise(0);
  rail.rate = 5;
  CHECK(rail.forgiven_at() == Clock::time_point::max());
  for (const int away : {250, 1000, 4000, 16'000, 60'000, 60'000}) {
    rail.doubt();
    CHECK(rail.aside == milliseconds(away));
    CHECK(rail.out);
    CHECK(!rail.trusted);
    CHECK(rail.rate == 0);
  }
  rail.rose();
  CHECK(!rail.out);
  CHECK(!rail.trusted);
  CHECK(rail.forgiven_at() == world.clock + 40 * seconds(60));
  world.pass(40 * seconds(60) - milliseconds(1));
  rail.forgive();
  CHECK(!rail.trusted);
  world.pass(milliseconds(1));
  rail.forgive();
  CHECK(rail.trusted);
  CHECK(rail.aside == seconds(60));
  CHECK(rail.forgiven_at() == rail.rose_at + 80 * seconds(60));
  world.pass(40 * seconds(60) - milliseconds(1));
  rail.forgive();
  CHECK(rail.aside == seconds(60));
  world.pass(milliseconds(1));
  rail.forgive();
  CHECK(rail.aside == Clock::duration::zero());
  CHECK(rail.forgiven_at() == Clock::time_point::max());
  rail.trusted = false;
  rail.forgive();  // nothing is held against it
  CHECK(!rail.trusted);
}

TEST_CASE("a rail is late by how long it joins after it was missed, while another one was up") {
  RailGround world;
  Rail& rail = world.raise(0);
  world.pass(seconds(5));
  world.lose(rail);
  world.pass(milliseconds(500));
  CHECK(!rail.late_after(Clock::time_point{}));
  world.pass(milliseconds(1));
  CHECK(rail.late_after(Clock::time_point{}));
  CHECK(!rail.late_after(world.clock - milliseconds(500)));
  CHECK(rail.late_after(world.clock - milliseconds(501)));
}

TEST_CASE("what carries again is as a rail without a past, but for what it did") {
  RailGround world;
  Rail& rail = world.raise(0);
  rail.out = rail.sick = rail.asked = true;
  rail.strikes = 2;
  world.pass(seconds(1));
  rail.rose();
  CHECK(rail.up());
  CHECK(rail.was_up);
  CHECK(!rail.out);
  CHECK(!rail.sick);
  CHECK(!rail.asked);
  CHECK(rail.strikes == 0);
  CHECK(rail.rose_at == world.clock);
}

// --- all of them

TEST_CASE("how many are up, and since when one is") {
  RailGround world(3);
  CHECK(world.rails.up() == 0);
  CHECK(!world.rails.earliest_up());
  world.raise(1);
  const auto first = world.clock;
  world.pass(seconds(1));
  world.raise(0);
  world.rails[2].state = Rail::State::aside;
  CHECK(world.rails.up() == 2);
  CHECK(world.rails.earliest_up() == first);
  world.lose(world.rails[1]);
  CHECK(world.rails.earliest_up() == first + seconds(1));
  CHECK(world.rails.size() == 3);
}

TEST_CASE("a rail weighs what the user says, or its bandwidth, or that of the best one that is known") {
  RailGround world(4, {}, {0, 3, 0, 0});
  RailSet& rails = world.rails;
  CHECK(rails.weight(rails[0]) == 1);
  CHECK(rails.weight(rails[1]) == 3);
  rails[2].rate = 8;
  rails[3].rate = 5;
  CHECK(rails.weight(rails[0]) == 8);
  CHECK(rails.weight(rails[1]) == 3);
  CHECK(rails.weight(rails[2]) == 8);
  CHECK(rails.weight(rails[3]) == 5);
  for (const std::size_t slot : {0, 1, 3}) world.raise(slot);
  CHECK(rails.share(rails[3]) == doctest::Approx(5.0 / 16));  // of those that are up
  CHECK(rails.share(rails[1]) == doctest::Approx(3.0 / 16));
}

TEST_CASE("what is free goes over the rail that will be done first") {
  RailGround world(3, {}, {1, 2, 2});
  RailSet& rails = world.rails;
  CHECK(rails.best_for(100) == nullptr);
  world.raise_all();
  CHECK(rails.best_for(100) == &rails[1]);  // the first of equals
  rails[1].bytes = 100;
  CHECK(rails.best_for(100) == &rails[2]);
  rails[2].bytes = 100;
  CHECK(rails.best_for(100) == &rails[0]);
  CHECK(rails.best_for(101) == &rails[1]);
  rails[1].bytes = rails[2].bytes = 0;
  world.lose(rails[1]);
  CHECK(rails.best_for(100) == &rails[2]);
}

TEST_CASE("a rail carries nothing before the fences that it owes, and these once") {
  RailGround world(3);
  world.raise_all();
  RailSet& rails = world.rails;
  rails[1].last_dead = 7;
  rails[2].last_dead = 9;
  rails[0].unfenced = 0b110;
  world.links[0].room = 1;
  CHECK(!rails.usable(rails[0]));
  CHECK(rails[0].unfenced == 0b100);
  world.links[0].room = 1;
  CHECK(rails.usable(rails[0]));
  CHECK(rails[0].unfenced == 0);
  REQUIRE(world.links[0].held.size() == 2);
  for (const std::uint32_t slot : {1u, 2u}) {
    const Transfer& fence = world.links[0].held[slot - 1];
    CHECK(is(fence, FrameType::fence));
    CHECK(RailNumber::unpack(frame_of(fence).data).slot == slot);
    CHECK(RailNumber::unpack(frame_of(fence).data).incarnation == (slot == 1 ? 7 : 9));
  }
  CHECK(rails.usable(rails[0]));
  CHECK(world.links[0].held.size() == 2);
  CHECK(rails[0].fences[1].kind == Kind::fence);
  // The same slot died again while its fence is under way: the next one waits for that.
  rails[0].unfenced = 0b010;
  world.links[0].room = 5;
  CHECK(!rails.usable(rails[0]));
  CHECK(rails[0].unfenced == 0b010);
  world.links[0].end();
  CHECK(rails.usable(rails[0]));
  CHECK(world.links[0].held.size() == 2);
}

TEST_CASE("only what is up and stands takes requests, and nothing does while a loss is not fenced off") {
  RailGround world;
  world.raise_all();
  RailSet& rails = world.rails;
  CHECK(rails.usable(rails[0]));
  rails.lost_some = true;
  CHECK(!rails.usable(rails[0]));
  rails.lost_some = false;
  rails[0].state = Rail::State::aside;
  CHECK(!rails.usable(rails[0]));
  rails[0].state = Rail::State::up;
  rails[0].broken = true;
  CHECK(!rails.usable(rails[0]));
  rails[0].broken = false;
  world.links[0].state = Errc::peer_lost;
  CHECK(!rails.usable(rails[0]));
  CHECK(rails.usable(rails[1]));
}
