#include <doctest/doctest.h>

#include <algorithm>
#include <functional>
#include <set>

#include "fabric/address_vector/address_vector.h"
#include "fabric/completion/completion_queue.h"
#include "fabric/completion/event_queue.h"
#include "fabric/domain/memory_region.h"
#include "fabric/messages/receive_queue.h"
#include "providers/lnx/combinations.h"
#include "providers/lnx/provider.h"

// Links over domains that keep a book of what is done to them.
namespace fab::lnx {
namespace {

// What is open, and which call shall fail.
struct Book {
  std::multiset<std::string> open;
  std::vector<std::string> calls;
  std::string failing;  // as in `calls`
  int closed_twice = 0;

  void call(const std::string& what) {
    calls.push_back(what);
    if (what == failing) throw Error(Errc::no_memory, what + " fails");
  }
  void begin(const std::string& what) {
    call(what);
    open.insert(what);
  }
  void end(const std::string& what) {
    const auto found = open.find(what);
    if (found == open.end())
      ++closed_twice;
    else
      open.erase(found);
  }
};

class FakeEndpoint final : public Endpoint {
 public:
  FakeEndpoint(Book& book, std::string link, std::uint16_t context)
      : book_(book), link_(std::move(link)), context_(context) {
    book_.begin("endpoint " + link_);
  }
  ~FakeEndpoint() override { book_.end("endpoint " + link_); }
  FakeEndpoint(const FakeEndpoint&) = delete;
  FakeEndpoint& operator=(const FakeEndpoint&) = delete;

  std::vector<Part> parts() const override { return {{link_, context_, "where " + link_ + " is"}}; }
  std::vector<std::string> socket_names() const override { return {}; }
  Reach reaches(const Name& peer, std::uint16_t target, std::size_t) const override {
    return {.ok = peer.find(link_, target) != nullptr, .why = link_ + " was asked"};
  }
  std::unique_ptr<Path> connect(PeerId, const Name&, std::uint16_t, std::size_t) override {
    book_.call("connect " + link_);
    throw Error(Errc::unreachable, link_ + " cannot");
  }
  bool progress() noexcept override {
    book_.calls.push_back("progress " + link_);
    return false;
  }
  bool arm() noexcept override { return true; }
  void end_removed_keys() noexcept override {}
  void forget(std::uint32_t) noexcept override { book_.calls.push_back("forget " + link_); }

 private:
  Book& book_;
  const std::string link_;
  const std::uint16_t context_;
};

// Those of provider "b" have devices that reach memory, one of them also what processors do not.
class FakeDomain final : public Domain, private DeviceMemory {
 public:
  FakeDomain(Book& book, Info info) : book_(book), info_(std::move(info)) {
    book_.begin("domain " + info_.domain);
  }
  ~FakeDomain() override { book_.end("domain " + info_.domain); }
  FakeDomain(const FakeDomain&) = delete;
  FakeDomain& operator=(const FakeDomain&) = delete;

  const Info& info() const noexcept override { return info_; }
  std::vector<LinkRegistrations> registrations() const override { return {{.link = info_.domain}}; }
  DeviceMemory* device_memory() noexcept override { return info_.provider == "b" ? this : nullptr; }
  PartCheck part_check() const override {
    return [link = info_.domain](const PartView& part) -> PartVerdict {
      if (part.link != link) return {};
      if (part.bytes == "where " + link + " is") return {.usable = true, .found = {}};
      if (part.bytes == "newer") return {.found = other_version(link, 2, 1)};
      throw Error(Errc::invalid, "bad part of " + link);
    };
  }
  std::unique_ptr<Endpoint> open_endpoint(const EndpointServices& services) override {
    return std::make_unique<FakeEndpoint>(book_, info_.domain, services.context);
  }

 private:
  void forget(std::uint32_t index) noexcept override {
    book_.calls.push_back("forget " + std::to_string(index) + " " + info_.domain);
  }
  bool reaches_hidden(AddressRange, bool) noexcept override { return info_.domain == "b.1"; }

  Book& book_;
  const Info info_;
};

Info info_of(const std::string& device) {
  Info info;
  info.provider = device.substr(0, device.find('.'));
  info.domain = device;
  info.links = {device};
  info.caps = caps::kRma | caps::kLocalComm;
  info.shares_fate_with_node = true;
  return info;
}

const std::vector<std::string> kDevices = {"a.0", "b.0", "b.1", "c.0"};  // several of one provider (LNX-57)

std::unique_ptr<Domain> link_all(Book& book) {
  std::vector<OpenLink> links;
  for (const std::string& device : kDevices)
    links.push_back({.domain = std::make_unique<FakeDomain>(book, info_of(device)), .tag = device});
  return make_linked_domain(std::move(links), {});
}

struct Lent {
  Poller poller;
  CompletionQueue completions{16, CompletionQueue::WhenFull::refuse};
  EventOutlet events;
  AddressVector peers;
  ReceiveQueue receives;
  LinkBook links;
  Slice slice;
  bool path_ended = false;
  const AuthKeys keys = AuthKeys(1);
  EndpointServices services(std::uint16_t context) {
    return {.context = context,
            .context_slot = 0,
            .keys = keys,
            .poller = poller,
            .completions = completions,
            .events = events,
            .peers = peers,
            .receives = receives,
            .links = links,
            .slice = slice,
            .on_path_ended = [this] { path_ended = true; },
            .wake_domain = [] {}};
  }
};

Errc outcome(const std::function<void()>& call) {
  try {
    call();
    return Errc::ok;
  } catch (const Error& error) {
    return error.code();
  }
}

// LNX-15
TEST_CASE("an endpoint opens one of each link, and all or none stay open") {
  for (std::size_t failing = 0; failing <= kDevices.size(); ++failing) {
    Book book;
    {
      Lent lent;
      const auto domain = link_all(book);
      const auto domains = book.open;
      if (failing < kDevices.size()) book.failing = "endpoint " + kDevices[failing];
      std::unique_ptr<Endpoint> endpoint;
      const Errc ended = outcome([&] { endpoint = domain->open_endpoint(lent.services(0)); });
      CHECK(ended == (failing < kDevices.size() ? Errc::no_memory : Errc::ok));
      CHECK(book.open.size() == (endpoint ? 2 : 1) * kDevices.size());
      endpoint.reset();
      CHECK(book.open == domains);
    }
    CHECK(book.open.empty());
    CHECK(book.closed_twice == 0);
  }
}

// LNX-52, LNX-57
TEST_CASE("a region that closes is forgotten by every device, and by links that have none nobody asks") {
  Book book;
  const auto domain = link_all(book);
  REQUIRE(domain->device_memory());
  book.calls.clear();
  domain->device_memory()->forget(7);
  CHECK(book.calls == std::vector<std::string>{"forget 7 b.0", "forget 7 b.1"});
}

TEST_CASE("memory that only devices reach is for a domain that has one which does") {
  Book book;
  const auto domain = link_all(book);
  CHECK(domain->device_memory()->reaches_hidden({}, true));
  std::vector<OpenLink> without;
  without.push_back({.domain = std::make_unique<FakeDomain>(book, info_of("a.0")), .tag = "a.0"});
  CHECK(lnx::make_linked_domain(std::move(without), {})->device_memory() == nullptr);
}

// LNX-16
TEST_CASE("the name of an endpoint holds the parts of its links as they are") {
  Book book;
  Lent lent;
  const auto domain = link_all(book);
  const auto endpoint = domain->open_endpoint(lent.services(3));
  const Name name = Name::decode(Name{endpoint->parts()}.encode());
  REQUIRE(name.parts.size() == kDevices.size());
  for (std::size_t i = 0; i < kDevices.size(); ++i)
    CHECK(name.parts[i] == Part{kDevices[i], 3, "where " + kDevices[i] + " is"});
}

// LNX-20
TEST_CASE("an address with a part that one link cannot read leaves nothing in the vector") {
  Book book;
  const auto domain = link_all(book);
  AddressVector peers;
  peers.judge_parts(domain->part_check(), kDevices);
  const auto name_with = [](const std::string& link, const std::string& bytes) {
    Name name;
    for (const std::string& device : kDevices)
      name.parts.push_back({device, 0, device == link ? bytes : "where " + device + " is"});
    return name.encode();
  };
  for (const std::string& device : kDevices) {
    CHECK(outcome([&] { peers.insert(name_with(device, "nowhere")); }) == Errc::invalid);
    CHECK(peers.size() == 0);
    CHECK(peers.end() == 0);
  }
  // Parts of another version are kept beside others, and named where there is nothing else.
  CHECK(outcome([&] { peers.insert(Name{{{kDevices[0], 0, "newer"}}}.encode()); }) == Errc::unreachable);
  CHECK(peers.size() == 0);
  AddressVector mixed;
  mixed.judge_parts(domain->part_check(), kDevices);
  for (const std::string& device : kDevices) {
    const std::string name = name_with(device, "newer");
    CHECK(mixed.lookup(mixed.insert(name)) == name);
  }
  const Part elsewhere{"d.0", 0, "of a link that is not here"};
  CHECK(outcome([&] { peers.insert(Name{{elsewhere}}.encode()); }) == Errc::unreachable);  // LNX-18
  CHECK(peers.insert(name_with("", "")) == 0);
  CHECK(peers.insert(Name{{elsewhere, {kDevices[0], 0, "where " + kDevices[0] + " is"}}}.encode()) == 1);
}

TEST_CASE("every link has its turn, and hears of a region that closes") {
  Book book;
  Lent lent;
  const auto domain = link_all(book);
  const auto endpoint = domain->open_endpoint(lent.services(0));
  book.calls.clear();
  endpoint->progress();
  endpoint->forget(7);
  for (const std::string& device : kDevices) {
    CHECK(std::ranges::count(book.calls, "progress " + device) == 1);
    CHECK(std::ranges::count(book.calls, "forget " + device) == 1);
  }
}

// LNX-9, LNX-10
TEST_CASE("limits of a link are the smallest, capabilities common, demands and devices added up") {
  Info one = info_of("a.0"), two = info_of("b.0");
  one.mr_key_size = 8, two.mr_key_size = 4;
  one.mr_iov_limit = 16, two.mr_iov_limit = 64;
  one.inject_size = 100, two.inject_size = 50;
  one.max_msg_size = 1000, two.max_msg_size = 2000;
  one.max_rma_size = 4000, two.max_rma_size = 3000;
  one.max_contexts = 2, two.max_contexts = 8;
  one.max_group_id = 0, two.max_group_id = 5;
  one.mr_mode = mr_mode::kLocal, two.mr_mode = mr_mode::kVirtAddr;
  one.caps = caps::kRma | caps::kAtomic | caps::kLocalComm;
  two.caps = caps::kRma | caps::kTagged | caps::kRemoteComm;
  two.nics = {{.name = "nic0", .driver = "", .pci_address = "0000:01:00.0", .state = "up"}};
  two.src_addr = "10.0.0.1";
  for (const Info& all : {combine({one, two}), combine({two, one})}) {
    CHECK(all.provider == "lnx");
    CHECK(all.mr_key_size == 4);
    CHECK(all.mr_iov_limit == 16);
    CHECK(all.inject_size == 50);
    CHECK(all.max_msg_size == 1000);
    CHECK(all.max_rma_size == 3000);
    CHECK(all.max_contexts == 2);
    CHECK(all.max_group_id == 0);
    CHECK(all.mr_mode == (mr_mode::kLocal | mr_mode::kVirtAddr));
    CHECK(all.caps == (caps::kRma | caps::kLocalComm | caps::kRemoteComm));  // whom it reaches adds up
    REQUIRE(all.nics.size() == 1);
    CHECK(all.nics[0].pci_address == "0000:01:00.0");
    CHECK(all.src_addr == "10.0.0.1");
    CHECK(all.usable);
  }
  CHECK(combine({one, two}).links == std::vector<std::string>{"a.0", "b.0"});
  two.usable = false;
  two.why = "it is down";
  CHECK(combine({one, two}).usable);  // peers on the node are reached another way
  two.shares_fate_with_node = false;
  CHECK_FALSE(combine({one, two}).usable);
  CHECK(combine({one, two}).why == "b: it is down");
}

// LNX-6, LNX-41
TEST_CASE("what cannot share queues with others cannot be linked") {
  Info hermit = info_of("hermit.0");
  hermit.not_linkable = "it matches messages in hardware";
  try {
    combine({info_of("a.0"), hermit});
    FAIL("linked");
  } catch (const Error& error) {
    CHECK(error.code() == Errc::invalid);
    const std::string text = error.what();
    CHECK(text.find("hermit") != text.npos);
    CHECK(text.find("matches messages in hardware") != text.npos);
  }
}

// LNX-7, LNX-8, LNX-14
TEST_CASE("combinations take one of each, the last varying fastest") {
  using Rows = std::vector<std::vector<std::size_t>>;
  CHECK(combinations({1, 2}) == Rows{{0, 0}, {0, 1}});
  CHECK(combinations({2, 3, 1}) == Rows{{0, 0, 0}, {0, 1, 0}, {0, 2, 0}, {1, 0, 0}, {1, 1, 0}, {1, 2, 0}});
  CHECK(combinations({4, 0, 2}).empty());
  CHECK(combinations({kMaxCombinations}).size() == kMaxCombinations);
  CHECK(combinations({8, 8}).size() == 64);
  CHECK(outcome([] { combinations({kMaxCombinations + 1}); }) == Errc::too_big);
  CHECK(outcome([] { combinations({2, 2, 17}); }) == Errc::too_big);
}

}  // namespace
}  // namespace fab::lnx
