#include "fabric/context/path_table.h"

#include <doctest/doctest.h>

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "fabric/completion/operation.h"
#include "fabric/types/error.h"

using namespace fab;

namespace {

// A link on which a test says what happens.
struct Wire {
  Errc state = Errc::ok;
  bool idle = true;
  std::size_t room = 100;
  PathCounts counts{};
  std::uint64_t oldest = 1;  // that has not settled
  bool open = true;          // the path has not been destroyed
  std::uint16_t target = 0;
  std::size_t auth_index = 0;
};

class WirePath final : public Path {
 public:
  explicit WirePath(std::shared_ptr<Wire> wire) : wire_(std::move(wire)) {}
  ~WirePath() override { wire_->open = false; }
  WirePath(const WirePath&) = delete;
  WirePath& operator=(const WirePath&) = delete;
  std::size_t post(std::span<const Transfer> batch) noexcept override {
    const std::size_t taken = std::min(batch.size(), wire_->room);
    wire_->room -= taken;
    wire_->counts.posted += taken;
    return taken;
  }
  Errc state() const noexcept override { return wire_->state; }
  bool idle() const noexcept override { return wire_->idle; }
  PathCounts counts() const noexcept override { return wire_->counts; }
  std::uint64_t oldest() const noexcept override { return wire_->oldest; }
  PathReport report() const override { return {"wire.0", "test"}; }

 private:
  std::shared_ptr<Wire> wire_;
};

class WireEndpoint final : public Endpoint, public PathPolicy {
 public:
  std::vector<Part> parts() const override { return {}; }
  std::vector<std::string> socket_names() const override { return {}; }
  Reach reaches(const Name&, std::uint16_t, std::size_t) const override { return {true, "", Errc::ok}; }
  std::unique_ptr<Path> connect(PeerId, const Name&, std::uint16_t target, std::size_t auth_index) override {
    if (refusal != Errc::ok) throw Error(refusal, "no way");
    wires.push_back(std::make_shared<Wire>());
    wires.back()->target = target;
    wires.back()->auth_index = auth_index;
    auto path = std::make_unique<WirePath>(wires.back());
    paths.push_back(path.get());
    return path;
  }
  PathPolicy* policy() noexcept override { return this; }
  Question question(PeerId, const Name&, std::uint16_t, std::size_t) const override {
    return answered ? Question{} : on_question;
  }
  void answer(const Name&, std::uint16_t, std::size_t, const std::vector<double>& shares) override {
    answered = true;
    answer_ = shares;
  }
  bool progress() noexcept override { return false; }
  bool arm() noexcept override { return true; }
  void end_removed_keys() noexcept override {}
  void forget(std::uint32_t) noexcept override {}

  Wire& last() { return *wires.back(); }
  std::vector<std::shared_ptr<Wire>> wires;
  std::vector<Path*> paths;  // of the wires; those that are open exist
  Errc refusal = Errc::ok;
  Question on_question;
  bool answered = false;
  std::vector<double> answer_;
};

// A table over such a link, of a context whose handles have receive contexts where `rx_bits` says so.
struct World {
  explicit World(unsigned rx_bits = 0, std::uint16_t index = 0)
      : peers({.rx_bits = rx_bits}),
        handles({.index = index, .rx_bits = rx_bits}, keys, peers),
        table(handles) {
    peers.judge_parts([](const PartView&) { return PartVerdict{.usable = true, .found = {}}; }, {"wire.0"});
    table.open(endpoint, nullptr);
  }
  PeerId add(const std::string& who, std::uint16_t contexts = 1) {
    Name name;
    for (std::uint16_t i = 0; i < contexts; ++i) name.parts.push_back({"wire.0", i, who});
    return peers.insert(name.encode());
  }
  void remove(PeerId peer) {
    peers.remove(peer);
    table.removed(handles.parts(peer).index);
  }
  std::size_t post(PeerId peer, std::size_t count = 1) {
    FullPath full;
    return post(peer, count, full);
  }
  std::size_t post(PeerId peer, std::size_t count, FullPath& full) {
    return table.post(peer, std::vector<Transfer>(count), full);
  }

  AuthKeys keys = AuthKeys(1);
  AddressVector peers;
  PeerHandles handles;
  WireEndpoint endpoint;
  PathTable table;
};

Errc refusal(const auto& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.code();
  }
  return Errc::ok;
}

}  // namespace

TEST_CASE("a peer has one path, opened on first use, and each peer its own") {
  World world;
  const PeerId a = world.add("a"), b = world.add("b");
  CHECK(world.endpoint.wires.empty());
  Path& path = world.table.to(a);
  CHECK(&world.table.to(a) == &path);
  CHECK(&world.table.to(b) != &path);
  CHECK(&world.table.to(a) == &path);
  CHECK(world.endpoint.wires.size() == 2);
}

TEST_CASE("receive contexts of a peer are reached by paths of their own") {
  World world(4);
  const PeerId a = world.add("a", 3), second = a | PeerId{2} << 60;
  Path& path = world.table.to(a);
  Path& other = world.table.to(second);
  CHECK(&path != &other);
  CHECK(world.endpoint.wires[0]->target == 0);
  CHECK(world.endpoint.wires[1]->target == 2);
  CHECK(&world.table.to(second) == &other);
  world.post(second, 3);
  CHECK(world.table.counts(second).posted == 3);
  CHECK(world.table.counts(a).posted == 0);
  CHECK(world.table.flush_goals(a).size() == 2);
}

TEST_CASE("contexts pair up by number where handles have no receive contexts") {
  World world(0, 5);
  world.table.to(world.add("a", 3));
  CHECK(world.endpoint.last().target == 2);
}

TEST_CASE("what cannot be reached is refused, and may work the next time") {
  World world;
  const PeerId a = world.add("a");
  world.endpoint.refusal = Errc::unreachable;
  CHECK_THROWS_WITH_AS(world.table.to(a), "no way (links of the peer: wire.0)", Error);
  world.endpoint.refusal = Errc::no_memory;
  CHECK_THROWS_WITH_AS(world.table.to(a), "no way", Error);
  CHECK(world.table.counts(a).posted == 0);
  CHECK(world.table.flush_goals(kNoPeer).empty());
  world.endpoint.refusal = Errc::ok;
  CHECK(world.post(a) == 1);
  CHECK(refusal([&] { world.table.to(a + 1); }) == Errc::invalid);
  CHECK(refusal([&] { world.table.to(PeerId{1} << kPeerIndexBits); }) == Errc::ok);  // a group of peer 0
}

TEST_CASE("a path that was lost leaves what it did, once, and the next post opens a new one") {
  World world;
  const PeerId a = world.add("a"), b = world.add("b");
  world.post(a, 4);
  world.post(b, 2);
  Wire& lost = *world.endpoint.wires[0];
  lost.counts.settled = 4;
  lost.counts.errors = 4;
  lost.state = Errc::peer_lost;
  world.table.tidy(false);  // nobody said so
  CHECK(lost.open);
  world.table.tidy(true);
  CHECK(!lost.open);
  CHECK(world.endpoint.wires[1]->open);
  CHECK(world.table.counts(a).errors == 4);
  lost.counts.errors = 8;  // whatever happens to the link now does not change it
  world.table.tidy(true);
  CHECK(world.table.counts(a).errors == 4);
  CHECK(world.table.counts(a).settled == 4);
  CHECK(world.table.counts(b).posted == 2);
  CHECK(world.post(a) == 1);
  CHECK(world.endpoint.wires.size() == 3);
  CHECK(world.table.counts(a).errors == 0);
  CHECK(world.table.counts(a).posted == 1);
  world.endpoint.last().state = Errc::peer_lost;
  world.table.tidy(true);
  CHECK(!world.endpoint.last().open);
}

TEST_CASE("a lost path is not used, even before it is tidied") {
  World world;
  const PeerId a = world.add("a");
  Path& first = world.table.to(a);
  CHECK(first.state() == Errc::ok);
  world.endpoint.last().state = Errc::peer_lost;
  CHECK(world.table.to(a).state() == Errc::ok);
  CHECK(world.endpoint.wires.size() == 2);
  CHECK(!world.endpoint.wires[0]->open);
}

TEST_CASE("a lost path goes even if there is no other one, and leaves nothing to its successor") {
  World world;
  const PeerId a = world.add("a");
  world.post(a, 3);
  for (const bool tidied : {false, true}) {
    CAPTURE(tidied);
    Wire& lost = world.endpoint.last();
    lost.state = Errc::peer_lost;
    if (tidied) world.table.tidy(true);
    world.endpoint.refusal = Errc::unreachable;
    CHECK(refusal([&] { world.table.to(a); }) == Errc::unreachable);
    CHECK(!lost.open);
    CHECK(world.table.counts(a).posted == 0);
    CHECK(world.table.flush_goals(kNoPeer).empty());
    world.endpoint.refusal = Errc::ok;
    CHECK(world.post(a, 2) == 2);
  }
  world.endpoint.last().state = Errc::peer_lost;
  world.table.tidy(true);  // the successor of one that was tidied is tidied, too
  CHECK(!world.endpoint.last().open);
}

TEST_CASE("a post that waits for room shares the fate of the path that was full") {
  World world;
  const PeerId a = world.add("a");
  FullPath full;
  world.table.to(a);
  world.endpoint.last().room = 2;
  CHECK(world.post(a, 3, full) == 2);
  CHECK(full.path == 0);
  CHECK(world.post(a, 1, full) == 0);
  CHECK(full.path != 0);
  CHECK(!full.ended);
  world.endpoint.last().room = 1;
  CHECK(world.post(a, 1, full) == 1);  // there is room again
  CHECK(full.path == 0);
  CHECK(world.post(a, 1, full) == 0);
  for (const bool replaced : {false, true}) {
    CAPTURE(replaced);
    FullPath waiting = full;
    if (!replaced) {
      world.endpoint.last().state = Errc::peer_lost;
      CHECK(world.post(a, 1, waiting) == 0);
    } else {
      CHECK(world.post(a) == 1);  // another one has opened the next path
      CHECK(world.post(a, 1, waiting) == 0);
    }
    CHECK(waiting.ended);
  }
  CHECK(world.endpoint.wires.size() == 2);  // one that waited opened none
}

TEST_CASE("a post does not go on, on the path to another peer that has the handle now") {
  World world;
  const PeerId a = world.add("a");
  FullPath full;
  world.table.to(a);
  world.endpoint.last().room = 0;
  CHECK(world.post(a, 1, full) == 0);
  world.endpoint.last().idle = false;
  world.remove(a);
  REQUIRE(world.add("b") == a);
  CHECK(world.post(a, 1, full) == 0);
  CHECK(full.ended);
}

TEST_CASE("the path to a removed peer goes as soon as nothing is under way") {
  World world(4);
  const PeerId a = world.add("a", 3), second = a | PeerId{1} << 60;
  const PeerId b = world.add("b", 3);
  world.table.to(a);
  world.table.to(second);
  world.table.to(b | PeerId{1} << 60);
  Wire &idle = *world.endpoint.wires[0], &busy = *world.endpoint.wires[1];
  busy.idle = false;
  world.remove(a);
  CHECK(!idle.open);
  CHECK(busy.open);
  world.table.tidy(false);
  CHECK(busy.open);
  busy.idle = true;
  world.table.tidy(false);
  CHECK(!busy.open);
  CHECK(world.endpoint.wires[2]->open);
  CHECK(refusal([&] { world.table.to(a); }) == Errc::invalid);
}

TEST_CASE("a handle that another peer has got leads to that one, and the former path ends in peace") {
  World world;
  const PeerId a = world.add("a");
  world.post(a, 3);
  Wire& former = world.endpoint.last();
  former.idle = false;
  world.remove(a);
  REQUIRE(world.add("b") == a);
  CHECK(world.post(a) == 1);
  CHECK(former.open);
  CHECK(world.table.counts(a).posted == 1);
  auto all = world.table.flush_goals(kNoPeer), one = world.table.flush_goals(a);
  CHECK(all.size() == 2);  // what the former peer was sent is flushed as well
  CHECK(one.size() == 1);
  world.endpoint.last().oldest = 2;
  CHECK(world.table.reached(one));
  CHECK(!world.table.reached(all));
  former.oldest = 3;
  former.counts.settled = 3;  // what came later settles too
  CHECK(!world.table.reached(all));
  former.oldest = 4;
  CHECK(world.table.reached(all));
  world.table.tidy(false);
  CHECK(former.open);
  former.idle = true;
  world.table.tidy(false);
  CHECK(!former.open);
}

TEST_CASE("the former path of a handle goes when it is lost") {
  World world;
  const PeerId a = world.add("a");
  world.post(a);
  Wire& former = world.endpoint.last();
  former.idle = false;
  world.remove(a);
  REQUIRE(world.add("b") == a);
  world.post(a);
  former.state = Errc::peer_lost;
  world.table.tidy(false);
  CHECK(!former.open);
  CHECK(world.endpoint.last().open);
}

TEST_CASE("flushing waits for what was posted before, on each path, and for nothing of a path that is gone") {
  World world;
  const PeerId a = world.add("a"), b = world.add("b");
  world.add("c");
  world.post(a, 2);
  world.post(b, 5);
  Wire &to_a = *world.endpoint.wires[0], &to_b = *world.endpoint.wires[1];
  auto goals = world.table.flush_goals(kNoPeer);
  auto of_b = world.table.flush_goals(b);
  CHECK(goals.size() == 2);
  CHECK(of_b.size() == 1);
  world.post(b, 1);
  to_b.oldest = 5;
  to_b.counts.settled = 5;  // one of them was posted later
  CHECK(!world.table.reached(of_b));
  to_b.oldest = 6;
  CHECK(world.table.reached(of_b));
  CHECK(!world.table.reached(goals));
  CHECK(goals.size() == 1);  // what was reached is not looked at again
  to_a.state = Errc::peer_lost;
  CHECK(world.table.to(a).state() == Errc::ok);
  CHECK(world.table.reached(goals));
}

TEST_CASE("paths under different keys are asked for by the key that the peer was inserted with") {
  World world;
  world.keys = AuthKeys(2);
  world.keys[1].handles = {7};
  Name name;
  name.parts.push_back({"wire.0", 0, "a"});
  const PeerId a = world.peers.insert(name.encode(), {.auth = 7});
  world.table.to(a);
  CHECK(world.endpoint.last().auth_index == 1);
  CHECK(&world.handles.key_under(7) == &world.keys[1]);
  CHECK(refusal([&] { (void)world.handles.key_under(8); }) == Errc::invalid);
  const PeerId b = world.add("b");  // without a key, where there are two
  CHECK(refusal([&] { world.table.to(b); }) == Errc::invalid);
}

TEST_CASE("the user is asked without the lock, and once; who uses the peer meanwhile is refused") {
  World world;
  const PeerId a = world.add("a"), b = world.add("b");
  std::string inner;
  bool other = false;
  world.endpoint.on_question = [&]() -> std::vector<double> {
    CHECK(PathQuestion::pending(&world.table, a));
    CHECK(!PathQuestion::pending(&world.table, b));
    CHECK(!PathQuestion::pending(&world, a));
    try {
      world.table.to(a);
    } catch (const Error& error) {
      inner = error.what();
    }
    try {
      world.table.to(b);
    } catch (const PathQuestion&) {
      other = true;
    }
    return {0.5, 0.25};
  };
  try {
    world.table.to(a);
    FAIL("nobody asked");
  } catch (const PathQuestion& question) {
    CHECK(!PathQuestion::pending(&world.table, a));
    question.answer(world.endpoint, question.ask(&world.table));
  }
  CHECK(inner.starts_with("rail_policy was called for peer 0 and uses that peer itself"));
  CHECK(other);
  CHECK(!PathQuestion::pending(&world.table, a));
  CHECK(world.endpoint.answer_ == std::vector<double>{0.5, 0.25});
  CHECK(world.table.to(a).state() == Errc::ok);
}

TEST_CASE("a closed table has no paths and opens none") {
  World world(4);
  const PeerId a = world.add("a"), b = world.add("b", 2);
  world.post(a);
  world.post(b);
  world.post(b | PeerId{1} << 60);
  world.endpoint.wires[0]->idle = false;
  world.remove(a);
  REQUIRE(world.add("c") == a);
  world.post(a);
  world.table.close();
  for (const auto& wire : world.endpoint.wires) CHECK(!wire->open);
  CHECK(refusal([&] { world.table.to(b); }) == Errc::closed);
  CHECK(world.table.counts(b).posted == 0);
  CHECK(world.table.flush_goals(kNoPeer).empty());
  world.table.tidy(true);
  world.table.removed(world.handles.parts(b).index);
}

TEST_CASE("paths that are left to the parent process are not touched") {
  World world(4);
  const PeerId a = world.add("a", 2);
  world.table.to(a);
  world.table.to(a | PeerId{1} << 60);
  for (const auto& wire : world.endpoint.wires) wire->idle = false;
  world.remove(a);
  REQUIRE(world.add("b", 2) == a);
  world.table.to(a);
  world.table.leave_to_parent();
  world.table.close();
  for (std::size_t i = 0; i < world.endpoint.wires.size(); ++i) {
    REQUIRE(world.endpoint.wires[i]->open);
    delete world.endpoint.paths[i];  // as the end of the process does
  }
}

TEST_CASE("what a path was can be told without opening the next one") {
  World world;
  const PeerId peer = world.add("a");
  CHECK(!world.table.last_report(peer));
  world.post(peer);
  CHECK(world.table.last_report(peer)->link == "wire.0");
  world.endpoint.last().state = Errc::key_rejected;
  world.table.tidy(true);
  CHECK(world.table.last_report(peer)->how == "test");
  CHECK(world.endpoint.wires.size() == 1);
}
