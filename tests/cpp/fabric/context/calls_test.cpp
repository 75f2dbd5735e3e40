#include <doctest/doctest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "fabric/completion/event_queue.h"
#include "fabric/context/context.h"

// What each call of a context does with a link on which the test says what happens.
namespace {

using namespace fab;
using Log = std::vector<std::string>;

struct Wire {
  Log log;  // what was asked of the link
  std::size_t room = 1000;
  std::vector<std::uint64_t> keys;  // of what was posted
  bool asks = false;                // the user, before it connects
  Errc refusal = Errc::ok;          // to open a path
  EventOutlet* events = nullptr;
};

class WirePath final : public Path {
 public:
  explicit WirePath(Wire& wire) : wire_(wire) { wire_.log.push_back("open"); }
  ~WirePath() override { wire_.log.push_back("end"); }
  WirePath(const WirePath&) = delete;
  WirePath& operator=(const WirePath&) = delete;
  void hint(const RemoteRegion& region) override {
    wire_.log.push_back("hint " + std::to_string(region.key));
  }
  std::size_t post(std::span<const Transfer> batch) noexcept override {
    const std::size_t taken = std::min(batch.size(), wire_.room);
    for (const Transfer& transfer : batch.first(taken)) wire_.keys.push_back(transfer.key);
    wire_.room -= taken;
    counts_.posted += taken;
    return taken;
  }
  Errc state() const noexcept override { return Errc::ok; }
  bool idle() const noexcept override { return true; }
  PathCounts counts() const noexcept override { return counts_; }
  std::uint64_t oldest() const noexcept override { return counts_.posted + 1; }
  PathReport report() const override { return {"wire.0", "test"}; }

 private:
  Wire& wire_;
  PathCounts counts_;
};

class WireEndpoint final : public Endpoint, private PathPolicy {
 public:
  explicit WireEndpoint(Wire& wire) : wire_(wire) {}
  ~WireEndpoint() override { wire_.log.push_back("closed"); }
  WireEndpoint(const WireEndpoint&) = delete;
  WireEndpoint& operator=(const WireEndpoint&) = delete;
  std::vector<Part> parts() const override { return {{"wire.0", 0, "here"}}; }
  std::vector<std::string> socket_names() const override { return {"socket"}; }
  Reach reaches(const Name& name, std::uint16_t, std::size_t) const override {
    return {true, "to " + name.parts.at(0).bytes, Errc::ok};
  }
  std::unique_ptr<Path> connect(PeerId, const Name&, std::uint16_t, std::size_t) override {
    if (wire_.refusal != Errc::ok) throw Error(wire_.refusal, "no way");
    return std::make_unique<WirePath>(wire_);
  }
  PathPolicy* policy() noexcept override { return this; }
  Question question(PeerId, const Name&, std::uint16_t, std::size_t) const override {
    if (!wire_.asks) return {};
    return [this] {
      wire_.log.push_back("asked");
      return std::vector<double>{0.25};
    };
  }
  void answer(const Name&, std::uint16_t, std::size_t, const std::vector<double>& shares) override {
    wire_.log.push_back("answered " + std::to_string(shares.size()));
    wire_.asks = false;
  }
  bool progress() noexcept override {
    wire_.log.push_back("progress");
    return false;
  }
  bool arm() noexcept override { return true; }
  void end_removed_keys() noexcept override {}
  void forget(std::uint32_t) noexcept override {}

 private:
  Wire& wire_;
};

class WireDomain final : public Domain {
 public:
  explicit WireDomain(Wire& wire) : wire_(wire) {}
  const Info& info() const noexcept override { return info_; }
  std::vector<LinkRegistrations> registrations() const override { return {}; }
  PartCheck part_check() const override { return {}; }
  std::unique_ptr<Endpoint> open_endpoint(const EndpointServices& services) override {
    wire_.events = &services.events;
    return std::make_unique<WireEndpoint>(wire_);
  }

 private:
  Wire& wire_;
  const Info info_{};
};

struct World {
  explicit World(std::uint32_t mr_mode = 0) : rules(mr_mode) {
    peers->judge_parts([](const PartView&) { return PartVerdict{.usable = true, .found = {}}; }, {"wire.0"});
    Name name;
    name.parts.push_back({"wire.0", 0, "there"});
    peer = peers->insert(name.encode());
    context = std::make_unique<Context>(
        domain, Context::Parameters{
                    .rules = &rules, .peers = peers, .completions = completions, .wake_domain = [] {}});
  }
  Log take_log() { return std::exchange(wire.log, {}); }
  std::optional<std::size_t> try_post(std::span<const Transfer> batch) {
    Context::FullPath full;
    return context->try_post(peer, batch, full);
  }

  Wire wire;
  WireDomain domain{wire};
  PostRules rules;
  std::shared_ptr<AddressVector> peers = std::make_shared<AddressVector>();
  std::shared_ptr<CompletionQueue> completions =
      std::make_shared<CompletionQueue>(16, CompletionQueue::WhenFull::refuse);
  PeerId peer = kNoPeer;
  std::unique_ptr<Context> context;
};

Errc refusal(const auto& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.code();
  }
  return Errc::ok;
}

Transfer of(std::uint64_t key, std::uint64_t length = 8) {
  Transfer transfer{};
  transfer.op = OpCode::write;
  transfer.key = key;
  transfer.length = length;
  return transfer;
}

}  // namespace

TEST_CASE("what is posted goes to the path slice by slice, as far as there is room") {
  World world;
  const std::vector<Transfer> many(Slice::kOfBatch * 3, of(7));
  CHECK(world.context->post(world.peer, many) == many.size());
  CHECK(world.wire.keys.size() == many.size());
  CHECK(world.context->counts(world.peer).posted == many.size());
  CHECK(world.context->driver().slice().used() == Slice::kBytes);  // the last turn was a whole one
  CHECK(world.context->post(world.peer, std::vector<Transfer>(1, of(7, 100'000))) == 1);
  CHECK(world.context->driver().slice().used() == 100'000);

  world.wire.room = Slice::kOfBatch + 3;
  CHECK(world.context->post(world.peer, many) == Slice::kOfBatch + 3);
  CHECK(world.context->post(world.peer, many) == 0);
}

TEST_CASE(
    "a batch that is refused from the beginning says why, and one that has begun says it with the next") {
  World world;
  const std::vector<Transfer> many(Slice::kOfBatch * 2, of(7));
  CHECK(refusal([&] { world.context->post(world.peer + 1, many); }) == Errc::invalid);
  world.wire.refusal = Errc::unreachable;
  CHECK(refusal([&] { world.context->post(world.peer, many); }) == Errc::unreachable);
}

TEST_CASE("a small batch is tried, without waiting for whoever has the context") {
  World world;
  const std::vector<Transfer> slice(Slice::kOfBatch, of(7)), more(Slice::kOfBatch + 1, of(7));
  CHECK(world.try_post(slice) == slice.size());
  CHECK(world.context->driver().slice().used() == Slice::kBytes);
  CHECK_FALSE(world.try_post(more).has_value());
  CHECK(world.wire.keys.size() == slice.size());
  {
    Driver::Lock lock(world.context->driver());
    std::thread([&] { CHECK_FALSE(world.try_post(slice).has_value()); }).join();
  }
  CHECK(world.try_post(slice).has_value());
}

TEST_CASE("the user is asked without the lock, and a try does not ask") {
  World world;
  world.wire.asks = true;
  const std::vector<Transfer> one(1, of(7));
  CHECK_FALSE(world.try_post(one).has_value());
  CHECK(world.take_log().empty());
  CHECK(world.context->post(world.peer, one) == 1);
  CHECK(world.take_log() == Log{"asked", "answered 1", "open"});
}

TEST_CASE("keys that were mapped stand for what they were mapped to, however it is posted") {
  World world(mr_mode::kRaw);
  const std::uint64_t mapped = world.rules.map_key(4711);
  const std::vector<Transfer> batch(2, of(mapped));
  CHECK(world.context->post(world.peer, batch) == 2);
  CHECK(world.try_post(batch) == 2u);
  CHECK(world.wire.keys == std::vector<std::uint64_t>(4, 4711));
}

TEST_CASE("who finds no room moves the context, and naps when that has not helped for long") {
  World world;
  world.context->make_room(1);
  CHECK(world.take_log() == Log{"progress"});
  world.context->make_room(1000);
  CHECK(world.take_log() == Log{"progress"});
  world.context->make_room(1001);
  CHECK(world.take_log().size() > 1);  // it looks before it sleeps, and afterwards
}

TEST_CASE("transfers of an operation that were never posted settle here") {
  World world;
  Operation operation;
  operation.begin({.transfers = 3});
  world.context->settle(operation, Errc::ok, 8);
  CHECK_FALSE(operation.done());
  world.context->abandon(operation, 2, Errc::bounds);
  CHECK(operation.done());
  CHECK(operation.completion().error == Errc::bounds);
}

TEST_CASE("what is asked of a path or of the link reaches it") {
  World world;
  world.context->hint(world.peer, RemoteRegion{.key = 9, .base = 0, .length = 8, .access = 0, .parts = {}});
  CHECK(world.take_log() == Log{"open", "hint 9"});
  CHECK(world.context->report(world.peer).how == "test");
  CHECK(world.context->reaches(world.peer).why == "to there");
  CHECK(world.context->parts().size() == 1);
  auto goals = world.context->flush_goals(world.peer);
  CHECK(goals.size() == 1);
  CHECK(world.context->flushed(goals, Deadline::in_seconds(60)));
}

TEST_CASE("losses are told to the queue that is bound, and to none once it is taken away") {
  World world;
  const auto queue = std::make_shared<EventQueue>(4);
  const auto lose = [&] { world.wire.events->tell_lost({}); };
  lose();
  world.context->bind(queue);
  CHECK_FALSE(queue->read());
  lose();
  CHECK(queue->read());
  world.context->bind(nullptr);
  lose();
  CHECK_FALSE(queue->read());
}

TEST_CASE("the secrets of a key are exchanged by its number") {
  World world;
  const AuthKey& key = world.context->handles().keys().front();
  AuthKey next{.secret = "new", .number = key.number, .handles = {}, .others = {"old"}};
  CHECK(world.context->swap_secrets(next));
  CHECK(key.secret == "new");
  CHECK(key.others == std::vector<std::string>{"old"});
  CHECK(next.secret.empty());
  CHECK(next.others.empty());
  AuthKey unknown{.secret = "foreign", .number = key.number + 1, .handles = {}, .others = {}};
  CHECK_FALSE(world.context->swap_secrets(unknown));
  CHECK(unknown.secret == "foreign");
  CHECK(key.secret == "new");
}

TEST_CASE("the path of a peer that was removed goes") {
  World world;
  world.context->post(world.peer, std::vector<Transfer>(1, of(7)));
  world.take_log();
  world.peers->remove(world.peer);
  static_cast<PeerWatcher&>(*world.context).removed(world.context->handles().target(world.peer).index);
  CHECK(world.take_log() == Log{"end"});
}

TEST_CASE("work with the lock held is done, and what it asked for is left to whoever drives") {
  World world;
  int notices = 0;
  world.context->driver().on_callbacks = [&] { ++notices; };
  bool done = false;
  world.context->locked([&](Endpoint&) {
    done = true;
    world.context->driver().request_callbacks();
  });
  CHECK(done);
  CHECK(notices == 0);
  CHECK(world.context->driver().arm() == Driver::Rest::work_left);
  world.context->progress();
  CHECK(notices == 1);
  CHECK(world.context->driver().arm() == Driver::Rest::allowed);
}

TEST_CASE("a closed context has let go of all, and says so") {
  World world;
  const std::vector<Transfer> one(1, of(7));
  world.context->post(world.peer, one);
  Operation taken;
  taken.begin({});
  std::byte place[8];
  Receive receive;
  receive.operation = &taken;
  receive.local = place;
  receive.length = sizeof place;
  world.context->inbox().receive(receive);
  world.take_log();
  for (int round = 0; round < 2; ++round) {
    world.context->close();
    CHECK(world.take_log() == (round ? Log{} : Log{"end", "closed"}));
  }
  CHECK(taken.done());
  CHECK(taken.completion().error == Errc::canceled);
  CHECK(world.context->parts().empty());
  world.context->locked([](Endpoint&) { FAIL("a closed context has no endpoint"); });
  CHECK(refusal([&] { world.context->reaches(world.peer); }) == Errc::closed);
  CHECK(refusal([&] { world.context->post(world.peer, one); }) == Errc::closed);
  CHECK_FALSE(world.context->progress());
  bool visited = false;
  world.context->locked([&](Endpoint&) { visited = true; });
  CHECK_FALSE(visited);
}

TEST_CASE("in a child of fork() a context refuses to be used, and leaves everything to its parent") {
  World world;
  world.context->post(world.peer, std::vector<Transfer>(1, of(7)));
  world.take_log();
  const pid_t child = ::fork();
  if (child == 0) {
    const auto refused = [&](const auto& call) { return refusal(call) == Errc::closed; };
    bool good = refused([&] { world.context->counts(world.peer); });
    good &= refused([&] { world.context->last_report(world.peer); });
    good &= refused([&] { world.context->report(world.peer); });
    good &= refused([&] { world.context->reaches(world.peer); });
    good &= refused([&] { world.context->flush_goals(world.peer); });
    good &= refused([&] { world.context->hint(world.peer, {}); });
    static_cast<PeerWatcher&>(*world.context).removed(world.context->handles().target(world.peer).index);
    world.context.reset();
    good &= world.wire.log.empty();
    ::_exit(good ? 0 : 1);
  }
  int status = 1;
  REQUIRE(::waitpid(child, &status, 0) == child);
  CHECK(status == 0);
  world.context.reset();
  CHECK(world.take_log() == Log{"end", "closed"});
}
