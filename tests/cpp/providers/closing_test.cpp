// What an endpoint that closes still owes to its peers, over real links.

#include <doctest/doctest.h>

#include <atomic>
#include <cstddef>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "once.h"
#include "providers/lnx/provider.h"
#include "providers/shm/harness.h"
#include "providers/tcp/harness.h"

using namespace fab;
using namespace fab::test;

namespace {

std::unique_ptr<Domain> open_links(const std::string& links, const DomainServices& services) {
  DomainServices lent = services;
  lent.linked = links == "shm+tcp";
  std::vector<lnx::OpenLink> opened;
  const auto open = [&](const Provider& provider, const Info& info) {
    const std::string tag = std::string(provider.name()) + ".0";
    opened.push_back({.domain = provider.open(info, tag, lent), .tag = tag});
  };
  const auto shm = shm::make_shm_provider(), tcp = tcp::make_tcp_provider();
  if (links != "tcp") open(*shm, shm->discover().front());
  if (links != "shm") open(*tcp, loopback());
  if (!lent.linked) return std::move(opened.front().domain);
  return lnx::make_linked_domain(std::move(opened), {});
}

// Links, and whether the context over them has begun to close: then it asks who lingers.
class Noting final : public Domain, private Lingerer {
 public:
  Noting(std::unique_ptr<Domain> links, std::atomic<bool>& closing)
      : links_(std::move(links)), closing_(closing) {}
  const Info& info() const noexcept override { return links_->info(); }
  std::vector<LinkRegistrations> registrations() const override { return links_->registrations(); }
  PartCheck part_check() const override { return links_->part_check(); }
  std::unique_ptr<Endpoint> open_endpoint(const EndpointServices& services) override {
    auto endpoint = links_->open_endpoint(services);
    services.lingerers->push_back(*this);
    return endpoint;
  }

 private:
  bool lingers() noexcept override {
    closing_ = true;
    closing_.notify_all();
    return false;
  }
  const std::unique_ptr<Domain> links_;
  std::atomic<bool>& closing_;
};

// An endpoint that moves only when a test moves it.
struct Station {
  explicit Station(const std::string& links)
      : core(DomainCore::open(
            [&](const DomainServices& services) {
              return std::make_unique<Noting>(open_links(links, services), closing);
            },
            by_hand())),
        context(core->open_context(
            0, {.number = core->contexts().next_endpoint_number()}, peers,
            core->open_completion_queue(1024, CompletionQueue::WhenFull::forget_oldest))) {}
  ~Station() { core->close(true); }
  Station(const Station&) = delete;
  Station& operator=(const Station&) = delete;
  static DomainOptions by_hand() {
    DomainOptions options;
    options.manual_progress = true;
    return options;
  }
  PeerId knows(const Station& other) { return peers->insert(Name{other.context->parts()}.encode()); }

  std::atomic<bool> closing{false};
  std::shared_ptr<AddressVector> peers = std::make_shared<AddressVector>();
  std::shared_ptr<DomainCore> core;
  std::shared_ptr<Context> context;
};

// Messages that were injected, and so are complete though nobody has read them.
struct Injected {
  static constexpr std::size_t kCount = 24;
  static constexpr std::size_t kSizes[] = {8, 300, 4000};

  Injected(Station& from, PeerId to) {
    for (std::size_t tag = 1; tag <= kCount; ++tag) {
      const std::size_t size = kSizes[tag % std::size(kSizes)];
      std::vector<std::byte> bytes(size, static_cast<std::byte>(tag));
      Operation operation;
      operation.begin({.flags = completion_flag::kMessage});
      Transfer send = Side::transfer(OpCode::send, tag, 0, bytes.data(), size, Delivery::inject);
      send.flags = transfer_flag::kTagged;
      send.operation = &operation;
      REQUIRE(from.context->post(to, {&send, 1}) == 1);
      REQUIRE(operation.done());
      REQUIRE(operation.completion().error == Errc::ok);
      takes.push_back(std::make_unique<Take>(tag, size));
    }
  }
  // Whether `at` receives all of them, whole.
  bool arrive(Station& at) {
    for (auto& take : takes) at.context->inbox().receive(take->receive);
    const auto deadline = Deadline::in_seconds(2);
    for (std::size_t tag = 1; tag <= kCount && !deadline.passed();) {
      at.context->progress();
      const std::vector<std::byte>& got = takes[tag - 1]->bytes;
      if (got == std::vector(got.size(), static_cast<std::byte>(tag))) ++tag;
    }
    at.context->close();
    bool all = true;
    for (auto& take : takes) all &= take->outcome() == Errc::ok;
    return all;
  }

  std::vector<std::unique_ptr<Take>> takes;
};

// A put of more bytes than sockets take from a sender whose receiver does nothing.
struct Flood {
  explicit Flood(Station& to)
      : target(kBytes),
        region(to.core->register_memory(
            {.buffers = {{target.data(), kBytes}}, .access = access::kAll, .keep_alive = {}})) {}
  void begin(Station& from, PeerId to) {
    const RemoteRegion remote = region->remote();
    operation.begin({});
    Transfer put = Side::transfer(OpCode::write, remote.key, remote.base, bytes.data(), kBytes);
    put.operation = &operation;
    REQUIRE(from.context->post(to, {&put, 1}) == 1);
  }

  static constexpr std::size_t kBytes = std::size_t{24} << 20;
  std::vector<std::byte> bytes = std::vector<std::byte>(kBytes), target;
  std::shared_ptr<MemoryRegion> region;
  Operation operation;
};

void meet(Station& a, PeerId to_b, Station& b) {
  std::byte word[8]{};
  Operation sent;
  sent.begin({.flags = completion_flag::kMessage});
  Transfer send = Side::transfer(OpCode::send, 0, 0, word, sizeof word);
  send.operation = &sent;
  REQUIRE(a.context->post(to_b, {&send, 1}) == 1);
  for (const auto deadline = Deadline::in_seconds(20); !sent.done() && !deadline.passed();) {
    a.context->progress();
    b.context->progress();
  }
  REQUIRE(sent.done());
}

}  // namespace

TEST_CASE("what was injected arrives though its receiver does nothing before the sender closes") {
  for (const std::string links : {"shm", "tcp", "shm+tcp"})
    for (const bool met : {true, false}) {
      if (links == "tcp" && !met) continue;  // without a connection it is lost: docs/messages.md
      CAPTURE(links);
      CAPTURE(met);
      bool arrived = false;
      // A starved machine may let the time for reading pass first, now and then.
      for (int round = 0; round < 5 && !arrived; ++round) {
        Station a(links), b(links);
        const PeerId to_b = a.knows(b);
        if (met) meet(a, to_b, b);
        Injected messages(a, to_b);
        std::thread closing([&] { a.context->close(); });
        a.closing.wait(false);
        arrived = messages.arrive(b);
        closing.join();
      }
      CHECK(arrived);
    }
}

TEST_CASE("whoever wants a context gets it while its path waits for a silent peer") {
  for (const std::string links : {"shm", "tcp"}) {
    CAPTURE(links);
    bool got_in = false;
    // A starved machine may let the time for reading pass first, now and then.
    for (int round = 0; round < 5 && !got_in; ++round) {
      Station a(links), b(links);
      const PeerId to_b = a.knows(b);
      Flood flood(b);  // fills the sockets, so the messages wait behind it
      if (links == "tcp") {
        meet(a, to_b, b);
        flood.begin(a, to_b);
      }
      Injected messages(a, to_b);
      std::thread closing([&] { a.context->close(); });
      a.closing.wait(false);
      a.context->locked([&](Endpoint&) { got_in = true; });
      got_in = messages.arrive(b) && got_in;
      closing.join();
    }
    CHECK(got_in);
  }
}
