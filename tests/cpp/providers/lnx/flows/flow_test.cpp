#include <doctest/doctest.h>

#include <map>

#include "fabric/session/pipe.h"
#include "providers/lnx/flows/carrier.h"
#include "providers/lnx/flows/flow_member.h"
#include "providers/lnx/flows/flow_table.h"

using namespace fab;
using namespace fab::lnx;
using namespace fab::test;

TEST_CASE("a flow is of one authorization key") {
  AddressVector peers;
  ReceiveQueue receives;
  EventOutlet events;
  FlowTable flows(receives, events, 10, [] {});
  const AuthKey first{"first", 1}, second{"second", 2};
  const auto under = [&](const AuthKey& key) {
    return std::make_shared<Sender>(peers, std::vector<Part>{{"test.0", 0, "peer"}}, key);
  };
  const auto flow = flows.open({7, 1}, false, under(first));
  REQUIRE(flow);
  CHECK(flows.open({7, 1}, true, under(first)) == flow);
  CHECK_FALSE(flows.open({7, 1}, false, under(second)));
  CHECK_FALSE(flows.open({7, 2}, false, under(second)));
  CHECK(flows.open({7, 1}, true, under(first)) == flow);
  CHECK(flows.open({8, 1}, false, under(second)));
}

TEST_CASE("a flow knows what was done, as a table of everything would") {
  std::mt19937 random(3);
  AddressVector peers;
  ReceiveQueue receives;
  EventOutlet events;
  Flow flow(receives, somebody(peers), [] {});
  struct Known {
    Errc error;
    std::vector<std::byte> result;
  };
  std::map<std::uint64_t, Known> model;
  std::uint64_t mark = 0;
  for (int step = 0; step < 200'000; ++step) {
    const std::uint64_t number = mark + random() % 300;
    if (random() % 50 == 0) {
      mark += random() % 200;
      flow.settled(mark);
      model.erase(model.begin(), model.lower_bound(mark));
      flow.settled(mark / 2);  // late, by another rail
      continue;
    }
    CHECK(flow.may_come(number));
    const auto expected = model.find(number);
    const PastOutcome* const found = flow.outcome(number);
    REQUIRE((found != nullptr) == (expected != model.end()));
    if (found) {
      REQUIRE(found->error == expected->second.error);
      REQUIRE(found->result == expected->second.result);
    } else {
      Known known{random() % 10 ? Errc::ok : Errc::bounds, {}};
      if (random() % 10 == 0) known.result.assign(8, static_cast<std::byte>(number));
      flow.record(number, known.error, known.result);
      model[number] = known;
    }
  }
}

TEST_CASE("an outcome that takes the place of another one counts once") {
  AddressVector peers;
  ReceiveQueue receives;
  EventOutlet events;
  Flow flow(receives, somebody(peers), [] {});
  const std::vector<std::byte> result(100);
  flow.record(5, Errc::ok, result);
  const std::size_t held = flow.held();
  flow.record(5, Errc::ok, std::span(result).first(40));
  CHECK(flow.held() == held - 60);
  flow.settled(6);
  CHECK(flow.held() == 0);
}

TEST_CASE("beyond what all flows may hold together, each gets no more than its share") {
  AddressVector peers;
  ReceiveQueue receives;
  EventOutlet events;
  const auto in_all = std::make_shared<std::size_t>(Flow::kMostHeld - 200);
  {
    Flow first(receives, somebody(peers), [] {}, in_all), second(receives, somebody(peers), [] {}, in_all);
    std::uint64_t number = 1;
    while (number < 10'000 && first.may_come(number)) first.record(2 * number++, Errc::bounds);
    CHECK(number > 2);
    CHECK(number < 10'000);
    CHECK(first.held() > Flow::kShareOfOne);
    CHECK(second.may_come(1));
    second.record(1, Errc::ok);
    first.settled(20'000);
    CHECK(first.may_come(20'001));
  }
  CHECK(*in_all == Flow::kMostHeld - 200);
}

TEST_CASE("one peer has a bounded number of flows, and the oldest without rails goes for a new one") {
  AddressVector peers;
  ReceiveQueue receives;
  EventOutlet events;
  FlowTable table(receives, events, 100, [] {});
  const auto other = std::make_shared<Sender>(peers, std::vector<Part>{{"test.0", 0, "other"}});
  REQUIRE(table.open({.peer = 1'000'000, .epoch = 1}, false, other));
  const auto known = somebody(peers);
  known->proven_by(PublicKey{1});
  std::vector<std::shared_ptr<Flow>> flows;
  std::vector<Carrier> carriers(1000);
  const auto open = [&](std::uint64_t peer) { return table.open({.peer = peer, .epoch = 1}, false, known); };
  for (std::uint64_t peer = 1; peer <= 1000; ++peer) REQUIRE(open(peer));
  CHECK_FALSE(table.open({.peer = 1, .epoch = 1}, true, known));
  CHECK(table.open({.peer = 1000, .epoch = 1}, true, known));
  CHECK(table.open({.peer = 1'000'000, .epoch = 1}, true, other));
  for (std::uint64_t peer = 1; peer <= 1000; ++peer) {  // with rails, they stay
    const auto flow = open(peer + 2000);
    if (!flow) break;
    REQUIRE(flow->join({.slot = 0, .incarnation = 1}, carriers[peer - 1]) == Errc::ok);
    carriers[peer - 1].flow = flow.get();
    flows.push_back(flow);
  }
  CHECK(flows.size() < 1000);
  CHECK_FALSE(open(5000));
  for (const auto& flow : flows) flow->cut_all();
}

TEST_CASE("a peer cannot make a flow remember without end") {
  AddressVector peers;
  ReceiveQueue receives;
  EventOutlet events;
  Flow flow(receives, somebody(peers), [] {});
  std::uint64_t number = 1;
  while (number < 10'000'000 && flow.may_come(number)) flow.record(number++, Errc::bounds);
  CHECK(number < 10'000'000);
  Flow other(receives, somebody(peers), [] {});
  const std::vector<std::byte> result(kMaxAtomicBytes);
  for (number = 1; number < 100'000 && other.may_come(number);) other.record(number++, Errc::ok, result);
  CHECK(number <= 1 + Flow::kMostResults / kMaxAtomicBytes);
  Carrier carrier;
  REQUIRE(other.join({.slot = 0, .incarnation = 1}, carrier) == Errc::ok);
  struct Origin final : MessageOrigin {
    void fetch(const Message&, const Matched&) noexcept override {}
    void release(const Message&) noexcept override {}
    void consumed(std::uint64_t) noexcept override {}
  } origin;
  std::uint64_t announced = 1;
  while (announced < 1'000'000 && other.announce(announced, carrier, origin) == Standing::unknown)
    ++announced;
  CHECK(announced < 1'000'000);
  other.leave(carrier);
}

TEST_CASE("a rail takes the place of the one before, and a later flow that of a former") {
  AddressVector peers;
  ReceiveQueue receives;
  EventOutlet events;
  int alone = 0;
  FlowTable table(receives, events, 0, [&] { ++alone; });
  const auto flow = table.open({.peer = 7, .epoch = 1}, false, somebody(peers));
  REQUIRE(flow);
  CHECK(table.open({.peer = 7, .epoch = 1}, true, somebody(peers)) == flow);
  Carrier first, second, third;
  first.flow = second.flow = third.flow = flow.get();
  REQUIRE(flow->join({.slot = 0, .incarnation = 1}, first) == Errc::ok);
  CHECK(!flow->alone());
  REQUIRE(flow->join({.slot = 0, .incarnation = 2}, second) == Errc::ok);
  CHECK(first.cuts == 1);
  CHECK(flow->join({.slot = 0, .incarnation = 2}, third) == Errc::peer_lost);  // nobody comes twice
  CHECK(flow->join({.slot = kMaxRails, .incarnation = 1}, third) == Errc::protocol);
  REQUIRE(flow->join({.slot = 1, .incarnation = 1}, third) == Errc::ok);
  CHECK(!flow->fence({.slot = 1, .incarnation = 1}, third));  // not itself
  REQUIRE(flow->fence({.slot = 0, .incarnation = 1}, third));
  CHECK(second.cuts == 0);  // it has come back since
  REQUIRE(flow->fence({.slot = 0, .incarnation = 2}, third));
  CHECK(second.cuts == 1);
  CHECK(flow->join({.slot = 0, .incarnation = 2}, first) == Errc::peer_lost);  // fenced before it came
  CHECK(alone == 1);                                                           // until somebody joined

  const auto later = table.open({.peer = 7, .epoch = 2}, false, somebody(peers));
  REQUIRE(later);
  CHECK(later != flow);
  CHECK(third.cuts == 1);
  CHECK(alone == 2);
  CHECK(!table.open({.peer = 7, .epoch = 1}, false, somebody(peers)));  // of a call that came late
  CHECK(!table.open({.peer = 8, .epoch = 1}, true, somebody(peers)));
  CHECK(table.expire(std::chrono::nanoseconds(0)));
  CHECK(!table.expire(std::chrono::nanoseconds(1)));
  CHECK(!table.open({.peer = 7, .epoch = 2}, true, somebody(peers)));
}

TEST_CASE("a stream becomes a rail of a flow, then of a later one, and not of one that is over") {
  ReceiveQueue receives;
  EventOutlet events;
  FlowTable table(receives, events, 100, [] {});
  Pipe pipe(1, {.extensions = &table}), plain(1);
  const auto join = [](Pipe& over, std::uint64_t epoch, std::uint32_t incarnation) {
    Control asked({.type = FrameType::join,
                   .key = 7,
                   .remote = epoch,
                   .data = RailNumber{.slot = 0, .incarnation = incarnation}.packed()});
    REQUIRE(asked.post(over.a) == 1);
    REQUIRE(over.run() == Errc::ok);
    return asked.error();
  };
  CHECK(join(plain, 1, 1) == Errc::not_supported);
  CHECK_FALSE(pipe.b.session.one_of_several());
  CHECK(join(pipe, 1, 1) == Errc::ok);
  CHECK(pipe.b.session.one_of_several());
  AddressVector peers;
  const auto first = table.open({.peer = 7, .epoch = 1}, true, somebody(peers));
  REQUIRE(first);
  CHECK(!first->alone());
  CHECK(join(pipe, 2, 1) == Errc::ok);
  CHECK(first->alone());
  CHECK(join(pipe, 1, 2) == Errc::peer_lost);
}

TEST_CASE("a flow without rails is forgotten after a time in which this process looked, not before") {
  using std::chrono::milliseconds;
  AddressVector peers;
  ReceiveQueue receives;
  EventOutlet events;
  FlowTable table(receives, events, 10, [] {});
  const FlowId id{.peer = 7, .epoch = 1};
  const auto flow = table.open(id, false, somebody(peers));
  Carrier carrier;
  REQUIRE(flow->join({.slot = 0, .incarnation = 1}, carrier) == Errc::ok);
  CHECK(!table.expire(milliseconds(50'000)));  // it has a rail
  flow->leave(carrier);
  CHECK(table.expire(milliseconds(50'000)));  // by a clock that stood still since
  CHECK(table.expire(milliseconds(60'000)));
  CHECK(table.open(id, true, somebody(peers)) == flow);
  REQUIRE(flow->join({.slot = 0, .incarnation = 2}, carrier) == Errc::ok);
  flow->leave(carrier);
  CHECK(table.expire(milliseconds(60'001)));  // counts from then on
  CHECK(table.expire(milliseconds(70'001)));
  CHECK(table.open(id, true, somebody(peers)) == flow);
  CHECK(!table.expire(milliseconds(70'002)));
  CHECK(!table.open(id, true, somebody(peers)));
}

TEST_CASE("mutated streams of rails end in an error or in answers") {
  EventOutlet events;
  std::mt19937 random(17);
  std::vector<std::byte> memory(20'000);
  constexpr std::uint64_t kKey = 0x1234567;
  std::string honest;
  const auto add = [&](FrameHeader header) {
    std::string bytes(48, '\0');
    encode(header, reinterpret_cast<std::byte*>(bytes.data()));
    honest += bytes + std::string(header.length, 'x');
  };
  using enum FrameType;
  add({.type = join, .key = 5, .remote = 1, .data = RailNumber{0, 2}.packed()});
  for (std::uint64_t number = 1; number < 9; ++number) {
    add({.type = write, .flags = frame_flag::kLast, .length = 8, .key = kKey, .total = 8, .id = number});
    add({.type = write,
         .flags = frame_flag::kLast | frame_flag::kStripe,
         .length = 100,
         .key = kKey,
         .remote = 1000,
         .total = 100,
         .data = 200,
         .id = 5000});
    add({.type = write,
         .flags = frame_flag::kLast | frame_flag::kStriped,
         .key = kKey,
         .total = 5000,
         .id = number + 10});
    add({.type = fetch,
         .atomic_op = static_cast<std::uint8_t>(AtomicOp::sum),
         .data_type = static_cast<std::uint8_t>(DataType::u64),
         .length = 8,
         .key = kKey,
         .total = 8,
         .id = number + 20});
    add({.type = message,
         .flags = frame_flag::kTagged,
         .length = 20,
         .key = 3,
         .total = 20,
         .id = number + 30});
    add({.type = announce, .key = 3, .total = 50'000, .id = number + 40});
    add({.type = read,
         .flags = frame_flag::kStripe,
         .key = kKey,
         .remote = 500,
         .total = 100,
         .data = 400,
         .id = 700});
    add({.type = fence, .data = RailNumber{1, 1}.packed()});
    add({.type = settled, .total = number, .id = number + 39});
  }
  int ended = 0, went_on = 0;
  for (int round = 0; round < 20'000; ++round) {
    Side target(9);
    target.regions.insert({.key = kKey,
                           .base = 0,
                           .buffers = std::vector<iovec>{piece(memory, 64, memory.size() - 128)},
                           .access = access::kAll,
                           .flags = 0,
                           .file = -1,
                           .file_offset = 0,
                           .enabled = true});
    std::string stream = honest;
    for (auto changes = random() % 6; changes; --changes) {
      const std::size_t at = random() % stream.size();
      switch (random() % 4) {
        case 0:
          stream[at] = static_cast<char>(random());
          break;
        case 1:
          stream[at] = static_cast<char>(stream[at] ^ (1 << random() % 8));
          break;
        case 2:
          stream.erase(at, random() % 64);
          break;
        default:  // frames again, and in another order
          stream.insert(at / 48 * 48, stream.substr(random() % stream.size() / 48 * 48, 48));
      }
      if (stream.empty()) stream = honest;
    }
    FlowTable flows(target.receives, events, 1, [] {});
    PathCounts counts;
    Session session({.segment = target.segment,
                     .completions = target.completions,
                     .receives = target.receives,
                     .sender = somebody(target.peers),
                     .context_slot = 0,
                     .counts = counts,
                     .wake_domain = target.wake,
                     .extensions = &flows,
                     .on_cut = [] {}});
    std::size_t done = 0;
    Errc error = Errc::ok;
    while (done < stream.size() && error == Errc::ok) {
      iovec in[2];
      const std::size_t count = session.input(in);
      std::size_t got = 0;
      for (std::size_t i = 0; i < count && done < stream.size(); ++i) {
        const std::size_t part = std::min(in[i].iov_len, stream.size() - done);
        std::memcpy(in[i].iov_base, stream.data() + done, part);
        done += part;
        got += part;
      }
      error = session.received(got);
    }
    error == Errc::ok ? ++went_on : ++ended;
  }
  CHECK(ended > 1000);
  CHECK(went_on > 1000);
}

TEST_CASE("the end of a peer's rail is told, unless it is a rail of this side too or this side closes") {
  for (const auto& [own, why, told] : {std::tuple{false, Errc::peer_lost, true},
                                       {true, Errc::peer_lost, false},
                                       {false, Errc::canceled, false}}) {
    AddressVector peers;
    const PeerId peer = peers.insert(Name{{{"test.0", 0, "peer"}}}.encode());
    ReceiveQueue receives;
    auto queue = std::make_shared<EventQueue>();
    EventOutlet events;
    events.bind(queue);
    FlowTable flows(receives, events, 10, [] {});
    Carrier host(somebody(peers));
    FlowMember member(host, flows);
    const FrameHeader join{.type = FrameType::join, .key = 7, .remote = 1, .data = RailNumber{0, 1}.packed()};
    REQUIRE(member.on_request(join) == Errc::ok);
    REQUIRE(host.answered == Errc::ok);
    if (own) member.on_post(join);
    member.leave(why);
    const auto event = queue->read();
    REQUIRE(event.has_value() == told);
    if (!event) continue;
    CHECK(event->type == EventType::link_lost);
    CHECK(event->error == why);
    CHECK(event->peer == peer);
    CHECK(event->link() == "test.0");
    CHECK_FALSE(queue->read());
  }
}
