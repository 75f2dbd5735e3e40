#include <doctest/doctest.h>

#include <atomic>
#include <cstddef>
#include <functional>
#include <memory>
#include <stdexcept>
#include <thread>
#include <utility>
#include <vector>

#include "fabric/context/context.h"
#include "providers/shm/harness.h"

using namespace fab;
using fab::test::Side;

namespace {

// What endpoints that linger do, and when they end.
struct LingerScript {
  std::function<bool()> lingers;
  std::function<void()> over = [] {};
  std::atomic<int> forgotten{0};  // how often it was told that a region goes
};

class LingeringEndpoint final : public Endpoint, private Lingerer {
 public:
  LingeringEndpoint(const EndpointServices& services, LingerScript& script) : script_(script) {
    services.lingerers->push_back(*this);
  }
  ~LingeringEndpoint() override { script_.over(); }
  LingeringEndpoint(const LingeringEndpoint&) = delete;
  LingeringEndpoint& operator=(const LingeringEndpoint&) = delete;

  std::vector<Part> parts() const override { return {}; }
  std::vector<std::string> socket_names() const override { return {}; }
  Reach reaches(const Name&, std::uint16_t, std::size_t) const override { return {}; }
  std::unique_ptr<Path> connect(PeerId, const Name&, std::uint16_t, std::size_t) override {
    throw std::logic_error("nobody connects");
  }
  bool progress() noexcept override { return false; }
  bool arm() noexcept override { return true; }
  void end_removed_keys() noexcept override {}
  void forget(std::uint32_t) noexcept override { ++script_.forgotten; }

 private:
  bool lingers() noexcept override { return script_.lingers(); }
  LingerScript& script_;
};

class LingeringDomain final : public Domain {
 public:
  explicit LingeringDomain(LingerScript& script) : script_(script) {}
  const Info& info() const noexcept override { return info_; }
  std::vector<LinkRegistrations> registrations() const override { return {}; }
  PartCheck part_check() const override { return {}; }
  std::unique_ptr<Endpoint> open_endpoint(const EndpointServices& services) override {
    return std::make_unique<LingeringEndpoint>(services, script_);
  }

 private:
  LingerScript& script_;
  const Info info_{};
};

// Whether somebody else got a context while it closed and its endpoint waited for that.
bool others_get_in() {
  std::atomic<bool> begun{false}, visited{false};
  LingerScript script{.lingers = [&] {
    begun = true;
    begun.notify_all();
    return !visited;
  }};
  LingeringDomain domain(script);
  const PostRules rules(0);
  Context context(
      domain, {.rules = &rules,
               .peers = std::make_shared<AddressVector>(),
               .completions = std::make_shared<CompletionQueue>(16, CompletionQueue::WhenFull::forget_oldest),
               .wake_domain = [] {}});
  std::thread closing([&] { context.close(); });
  begun.wait(false);
  context.locked([&](Endpoint&) { visited = true; });
  closing.join();
  return visited;
}

// Whether each context of a domain, which all end by `end`, still waited when all others had begun to.
using Contexts = std::vector<std::shared_ptr<Context>>;
bool all_linger_together(const std::function<void(DomainCore&, const Contexts&)>& end) {
  constexpr int kContexts = 4;
  std::atomic<int> begun{0};
  std::atomic<bool> alone{false};
  static thread_local bool counted;  // a context closes on one thread
  counted = false;
  LingerScript script{.lingers =
                          [&] {
                            if (!std::exchange(counted, true)) ++begun;
                            return begun != kContexts;
                          },
                      .over =
                          [&] {
                            counted = false;
                            if (begun != kContexts) alone = true;
                          }};
  const auto domain =
      DomainCore::open([&](const DomainServices&) { return std::make_unique<LingeringDomain>(script); }, {});
  const auto peers = std::make_shared<AddressVector>();
  const auto completions = domain->open_completion_queue(16, CompletionQueue::WhenFull::forget_oldest);
  Contexts contexts;
  for (std::uint16_t i = 0; i < kContexts; ++i)
    contexts.push_back(domain->open_context(i, {.number = 1}, peers, completions, nullptr));
  end(*domain, contexts);
  CHECK(begun == kContexts);  // none was left out
  return !alone;
}

}  // namespace

TEST_CASE("whoever wants a context gets it while that waits for its last messages to be read") {
  bool got_in = false;
  // A starved machine may let the time for reading pass first, now and then.
  for (int round = 0; round < 10 && !got_in; ++round) got_in = others_get_in();
  CHECK(got_in);
}

TEST_CASE("a context that is closing also hears that a region goes, and keeps its slot until it is closed") {
  bool told_all = false;
  // A starved machine may let the time for reading pass first, now and then.
  for (int round = 0; round < 10 && !told_all; ++round) {
    std::atomic<bool> begun{false}, done{false};
    LingerScript script{.lingers = [&] {
      begun = true;
      begun.notify_all();
      return !done;
    }};
    const auto domain = DomainCore::open(
        [&](const DomainServices&) { return std::make_unique<LingeringDomain>(script); }, {});
    const auto peers = std::make_shared<AddressVector>();
    const auto completions = domain->open_completion_queue(16, CompletionQueue::WhenFull::forget_oldest);
    const auto open = [&] { return domain->open_context(0, {.number = 1}, peers, completions, nullptr); };
    std::vector<std::byte> memory(64);
    const auto region = domain->register_memory(
        {.buffers = {{memory.data(), memory.size()}}, .access = access::kAll, .keep_alive = {}});
    const auto context = open();
    std::thread closing([&] { domain->contexts().close(*context); });
    begun.wait(false);
    const auto other = open();
    const bool apart = other->slot() != context->slot();
    CHECK(region->close({}));
    told_all = apart && script.forgotten == 2;
    done = true;
    closing.join();
    CHECK(open()->slot() == context->slot());
    domain->close(true);
  }
  CHECK(told_all);
}

TEST_CASE("contexts that end together wait for their last messages at the same time") {
  const auto with_domain = [](DomainCore& domain, const Contexts&) { domain.close(true); };
  const auto as_list = [](DomainCore& domain, const Contexts& contexts) {
    domain.contexts().close(contexts);
  };
  bool whole = false, listed = false;
  for (int round = 0; round < 10 && !whole; ++round) whole = all_linger_together(with_domain);
  for (int round = 0; round < 10 && !listed; ++round) listed = all_linger_together(as_list);
  CHECK(whole);
  CHECK(listed);
}

TEST_CASE("a message that was sent survives that its receiver's handle goes to another peer") {
  DomainOptions by_hand;
  by_hand.manual_progress = true;
  Side a("auto", by_hand), b("auto", by_hand), c("auto", by_hand);
  const PeerId peer = a.knows(b);
  std::uint64_t value = 4711, other = 1, landed = 0;
  const auto send = [&](std::uint64_t& from, Operation& operation) {
    operation.begin({});
    Transfer message = Side::transfer(OpCode::send, 7, 0, &from, 8, Delivery::inject);
    message.operation = &operation;
    message.flags = transfer_flag::kTagged;
    REQUIRE(a.context->post(peer, {&message, 1}) == 1);
    REQUIRE(operation.done());
  };
  Operation first, second, taken;
  send(value, first);
  a.peers->remove(peer);
  REQUIRE(a.knows(c) == peer);
  send(other, second);
  taken.begin({});
  Receive receive;
  receive.operation = &taken;
  receive.local = reinterpret_cast<std::byte*>(&landed);
  receive.length = 8;
  receive.rule = {.tag = 7, .tagged = true};
  b.context->inbox().receive(receive);
  CHECK(b.context->wait([&] { return taken.done(); }, Deadline::in_seconds(60)));
  b.context->close();
  CHECK(taken.completion().error == Errc::ok);
  CHECK(landed == value);
}
