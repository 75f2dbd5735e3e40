#include <doctest/doctest.h>
#include <fcntl.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <random>
#include <string>
#include <thread>

#include "base/crypto/stretched_key.h"
#include "base/fd.h"
#include "base/memory/mapping.h"
#include "fabric/session/frames/frame.h"
#include "fabric/types/versions.h"
#include "providers/shm/channel.h"
#include "providers/shm/harness.h"
#include "providers/shm/layout.h"
#include "providers/shm/ways.h"

// What peers may send, leave behind or take away without harm to others.
using namespace fab;
using test::kWays;
using test::Pair;
using test::Side;

TEST_CASE("reach tells in words why not") {
  Side a, b;
  const PeerId peer = a.knows(b);
  CHECK(a.context->reaches(peer).ok);
  Name elsewhere = Name::decode(b.name());
  elsewhere.parts[0].bytes[2] = static_cast<char>(elsewhere.parts[0].bytes[2] ^ 1);  // behind the layout
  CHECK(a.context->reaches(a.peers->insert(elsewhere.encode())).why.find("other host") != std::string::npos);
  Name garbled = Name::decode(b.name());
  garbled.parts[0].bytes += "x";
  CHECK_FALSE(a.context->reaches(a.peers->insert(garbled.encode())).ok);
  Name foreign{{{"tcp.0", 0, "anything"}}};
  CHECK(a.context->reaches(a.peers->insert(foreign.encode())).why.find("shm.0") != std::string::npos);

  DomainOptions keyed;
  keyed.auth_key = "secret";
  Side c("auto", keyed), d("auto", keyed);
  CHECK(c.context->reaches(c.knows(d)).ok);
  const Reach refused = a.context->reaches(a.knows(c));
  CHECK_FALSE(refused.ok);
  CHECK(refused.why.find("auth_key") != std::string::npos);
  CHECK_FALSE(c.context->reaches(c.knows(a)).ok);

  b.domain->close(true);
  CHECK_FALSE(a.context->reaches(peer).ok);
}

TEST_CASE("a path to a domain that closes ends with peer_lost, each way") {
  for (const std::string& way : kWays) {
    CAPTURE(way);
    Side a(way);
    Side b;
    auto memory = b.own(64);
    const PeerId peer = a.knows(b);
    std::uint64_t word = 1;
    REQUIRE(a.put(peer, memory.region->key(), 0, &word, 8) == Errc::ok);
    std::uint64_t former;
    REQUIRE(a.fetch_add(peer, memory.region->key(), 0, 1, former) == Errc::ok);
    const std::uint64_t key = memory.region->key();
    b.domain->close(true);
    // The path may have been dropped already, where it has a channel; a new one finds nobody.
    Errc outcome;
    try {
      outcome = a.put(peer, key, 0, &word, 8);
    } catch (const Error& error) {
      outcome = error.code();
    }
    CHECK((outcome == Errc::peer_lost || outcome == Errc::unreachable));
    CHECK_THROWS_AS(a.put(peer, key, 0, &word, 8), Error);
  }
}

TEST_CASE("nothing is left behind: descriptors, mappings and slots after many openings") {
  const auto count = [](const char* folder) {
    std::size_t entries = 0;
    for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator(folder)) ++entries;
    return entries;
  };
  const auto mappings = [] {
    std::ifstream maps("/proc/self/maps");
    std::size_t shared = 0;
    for (std::string line; std::getline(maps, line);) shared += line.find("pyfab") != std::string::npos;
    return shared;
  };
  Side b;
  auto own = b.own(64), alloc = b.alloc(4096);
  const auto once = [&](const std::string& way) {
    Side a(way);
    const PeerId peer = a.knows(b);
    std::uint64_t word = 1, former;
    for (const std::uint64_t key : {own.region->key(), alloc.region->key()}) {
      CHECK(a.put(peer, key, 0, &word, 8) == Errc::ok);
      CHECK(a.fetch_add(peer, key, 0, 1, former) == Errc::ok);
    }
  };
  const auto settled = [&](std::size_t files, std::size_t maps) {
    // The target lets go of a channel when it hears that it was taken back.
    // What it knows of the last peer stays until the next one: also its doorbell, if that was rung.
    return b.context->wait([&] { return count("/proc/self/fd") <= files + 1 && mappings() <= maps; },
                           Deadline::in_seconds(30));
  };
  for (const std::string& way : kWays) once(way);
  b.context->wait([] { return false; }, Deadline::in_seconds(0.1));
  const std::size_t files = count("/proc/self/fd"), maps = mappings();
  for (int round = 0; round < 50; ++round) once(kWays[static_cast<std::size_t>(round) % kWays.size()]);
  CHECK(settled(files, maps));
  const Segment& segment = b.domain->segment();
  for (std::uint32_t i = 0; i < segment.board().slots_used.load(); ++i)
    CHECK(segment.slots()[i].owner.load() == 0);
  CHECK(segment.board().slots_used.load() <= 2);
}

TEST_CASE("a file is unmapped once its region is closed and another one is used") {
  Pair pair("auto");
  const auto mapped = [] {
    std::ifstream maps("/proc/self/maps");
    std::size_t count = 0;
    for (std::string line; std::getline(maps, line);) count += line.find("pyfab-memory") != std::string::npos;
    return count;
  };
  const std::uint64_t word = 1;
  for (int round = 0; round < 20; ++round) {
    auto memory = pair.b.alloc(4096);
    REQUIRE(pair.a.put(pair.peer, memory.region->key(), 0, &word, 8) == Errc::ok);
    CHECK(mapped() == 2);  // the owner's and the peer's
    CHECK(memory.region->close({}));
  }
}

TEST_CASE("names from anywhere are refused in words") {
  Side a, b;
  std::mt19937 random(5);
  const Name good = Name::decode(b.name());
  std::size_t reached = 0;
  for (int round = 0; round < 20'000; ++round) {
    Name bad = good;
    std::string& bytes = bad.parts[0].bytes;
    const int changes = static_cast<int>(random() % 3) + 1;
    for (int i = 0; i < changes; ++i) bytes[random() % bytes.size()] = static_cast<char>(random());
    if (random() % 8 == 0) bytes.resize(random() % 60);
    if (bytes == good.parts[0].bytes) continue;
    const PeerId peer = a.peers->insert(bad.encode());
    const Reach reach = a.context->reaches(peer);
    CHECK(reach.why.empty() == false);
    reached += reach.ok;
    if (!reach.ok) CHECK_THROWS_AS(a.context->report(peer), Error);
    a.peers->remove(peer);
  }
  CHECK(reached < 20'000);
}

TEST_CASE("channels that are none get no answer and harm nobody") {
  Side b;
  auto memory = b.own(64);
  const auto address = *shm::Address::decode(Name::decode(b.name()).parts[0].bytes);
  Segment segment = Segment::attach(address.process, address.segment_fd, address.domain_id);
  const auto offer = [&](int fd) {
    AccessSlot& slot = segment.slots()[segment.claim_slot(this_process())];
    slot.target_context = address.context_slot;
    slot.channel_fd.store(fd);
    segment.board().contexts[address.context_slot].work.fetch_or(shm::work::kChannels);
  };
  offer(0);
  offer(1'000'000);
  const OwnFd small = make_memory_file("small", 4096), zero = make_memory_file("zero", shm::kChannelBytes),
              nonsense = make_memory_file("nonsense", shm::kChannelBytes);
  offer(small.get());
  offer(zero.get());
  Mapping bytes = Mapping::shared(nonsense.get(), 0, shm::kChannelBytes);
  auto& header = *reinterpret_cast<shm::ChannelHeader*>(bytes.data());
  header.magic = shm::kChannelMagic;
  header.layout = versions::kSharedLayout;
  header.target_context_slot = address.context_slot;
  std::memcpy(header.target_domain, address.domain_id, 16);
  shm::Address self = address;
  self.segment_fd = small.get();  // no segment
  self.encode().copy(header.initiator, sizeof header.initiator);
  offer(nonsense.get());
  header.target_context_slot = static_cast<std::uint16_t>(address.context_slot + 1);  // for somebody else
  offer(nonsense.get());

  Side a("ring");
  std::uint64_t word = 5, former;
  const PeerId peer = a.knows(b);
  CHECK(a.put(peer, memory.region->key(), 0, &word, 8) == Errc::ok);
  CHECK(a.fetch_add(peer, memory.region->key(), 0, 1, former) == Errc::ok);
  CHECK(former == 5);
}

TEST_CASE("a tag stays where it is while its key is taken, and then belongs to nobody") {
  const Side side("auto", {}, {{"first", 1}, {"second", 2}});
  Segment& segment = side.domain->segment();
  const auto authorized_by = [&](const char* key) { return authorized(segment, 0, stretched_key(key)); };
  const auto& tags = segment.header().keys[0];
  const auto first = authorized_by("first"), second = authorized_by("second");
  REQUIRE((first && second));
  AuthKeyRing& ring = side.domain->auth_keys();
  ring.add("next", "first");
  CHECK(authorized_by("first") == first);
  CHECK(authorized_by("next") == first);
  CHECK(authorized_by("second") == second);
  CHECK(tags.count.load() == 3);
  ring.use("next");
  CHECK(authorized_by("first") == first);
  ring.remove("first", false);
  CHECK_FALSE(authorized_by("first"));
  CHECK_FALSE(authorized_by(""));
  CHECK(authorized_by("next") == first);
  CHECK(authorized_by("second") == second);
  CHECK(tags.count.load() == 3);
  ring.add("other", "second");  // takes the free place
  CHECK(tags.count.load() == 3);
  CHECK(authorized_by("other") == second);
}

TEST_CASE("a segment tells each key its number, and others nothing") {
  const Side side("auto", {}, {{"first", 1}, {"second", 2}});
  Segment& segment = side.domain->segment();
  const auto authorized_by = [&](std::uint32_t slot, const char* key) {
    return authorized(segment, slot, stretched_key(key));
  };
  const auto first = authorized_by(0, "first"), second = authorized_by(0, "second");
  REQUIRE((first && second));
  CHECK(*first == side.domain->auth_keys().number_of("first"));
  CHECK(*second == side.domain->auth_keys().number_of("second"));
  for (const char* other : {"", "third", "first "}) CHECK_FALSE(authorized_by(0, other));
  CHECK_FALSE(authorized_by(1, "first"));
  // Numbers that somebody exchanged are no numbers any more.
  auto& tags = segment.header().keys[0].tags;
  const std::uint32_t number = tags[0].number.exchange(tags[1].number);
  tags[1].number = number;
  CHECK_FALSE(authorized_by(0, "first"));
  tags[0].number = number;
  CHECK_FALSE(authorized_by(0, "second"));
  segment.header().keys[0].count.store(~0u);
  CHECK_FALSE(authorized_by(0, "third"));
}

namespace {

// A channel for `there` as `self` would make it, with one message, whose tag is `number`.
struct Forged {
  Forged(const shm::Address& self, const shm::Address& there, std::uint64_t number, const Digest& proof) {
    header().magic = shm::kChannelMagic;
    header().layout = versions::kSharedLayout;
    header().target_context_slot = there.context_slot;
    std::memcpy(header().target_domain, there.domain_id, 16);
    self.encode().copy(header().initiator, sizeof header().initiator);
    std::memcpy(header().proof, proof.data(), sizeof header().proof);
    encode({.type = FrameType::message, .flags = frame_flag::kTagged, .length = 8, .key = number, .total = 8},
           bytes.data() + shm::kRingsOffset);
    header().to_target.written.store(kHeaderBytes + 8);
  }
  shm::ChannelHeader& header() const { return *reinterpret_cast<shm::ChannelHeader*>(bytes.data()); }

  OwnFd file = make_memory_file("forged", shm::kChannelBytes);
  Mapping bytes = Mapping::shared(file.get(), 0, shm::kChannelBytes);
};

}  // namespace

TEST_CASE("a channel is taken from who made it and proves one of the keys for this very channel") {
  Side target("auto", {}, {{"first", 1}, {"second", 2}}), maker, other;
  const auto address_of = [](const Side& side) {
    return *shm::Address::decode(Name::decode(side.name()).parts[0].bytes);
  };
  const shm::Address there = address_of(target), self = address_of(maker), another = address_of(other);
  std::vector<Forged> channels;
  // Sends one message whose tag is `number`. The maker vouches for the channel to `vouched`.
  const auto offer = [&](std::uint64_t number, const Digest& proof, const shm::Address& vouched,
                         shm::Hold hold = shm::Hold::initiator) {
    const Forged& channel = channels.emplace_back(self, there, number, proof);
    channel.header().hold.store(hold);
    MadeChannel made{.target_context_slot = vouched.context_slot, .context_slot = self.context_slot};
    std::ranges::copy(vouched.domain_id, made.target_domain);
    channel.header().published =
        maker.domain->segment().publish(shm::FileId::of(channel.file.get()).inode, made);
    const Segment& segment = target.domain->segment();
    AccessSlot& slot = segment.slots()[segment.claim_slot(this_process())];
    slot.target_context = there.context_slot;
    slot.channel_fd.store(channel.file.get());
    segment.board().contexts[there.context_slot].work.fetch_or(shm::work::kChannels);
  };
  const auto proof = [&](const std::string& secret, const shm::Address& from, std::uint16_t context,
                         std::uint16_t context_slot, const shm::Address& to) {
    return shm::channel_proof(stretched_key(secret), from, context, context_slot, to.domain_id);
  };
  offer(100, {}, there);
  offer(101, proof("third", self, 0, there.context_slot, there), there);
  offer(102, proof("first", another, 0, there.context_slot, there), there);
  offer(103, proof("first", self, 1, there.context_slot, there), there);
  offer(104, proof("first", self, 0, static_cast<std::uint16_t>(there.context_slot + 1), there), there);
  offer(105, proof("first", self, 0, there.context_slot, another), there);
  const std::string published(
      reinterpret_cast<const char*>(target.domain->segment().header().keys[0].tags[0].proof), 32);
  Digest copied;
  std::ranges::copy(published, copied.begin());
  offer(106, copied, there);
  // Another process could write all of this, but not what the maker says of its channels.
  offer(107, proof("first", self, 0, there.context_slot, there), another);
  // Its maker has given it up before it was looked at.
  offer(108, proof("first", self, 0, there.context_slot, there), there, shm::Hold::nobody);
  offer(1, proof("first", self, 0, there.context_slot, there), there);
  offer(2, proof("second", self, 0, there.context_slot, there), there);
  const auto deadline = Deadline::in_seconds(30);
  while (target.context->inbox().sizes().unexpected < 2 && !deadline.passed()) target.context->progress();
  CHECK(target.context->inbox().sizes().unexpected == 2);  // slots are looked at in order
  for (const std::uint32_t auth : {1, 2}) {
    MatchRule rule{
        .ignore = ~std::uint64_t{0}, .key = &target.context->handles().key_under(auth), .tagged = true};
    const auto found = target.context->inbox().look(rule, Inbox::Look::discard);
    REQUIRE(found);
    CHECK(found->head.tag == auth);
    CHECK(found->source.id == auth - 1);
    CHECK(found->source.flags == completion_flag::kAuthKey);
  }
}

TEST_CASE(
    "an initiator that writes nonsense into its channel loses it; a target that answers nonsense loses its "
    "peers") {
  Side b;
  auto memory = b.own(64);
  std::mt19937 random(3);
  for (const bool to_target : {true, false}) {
    for (int round = 0; round < 60; ++round) {
      Side a("ring");
      const PeerId peer = a.knows(b);
      std::uint64_t word = 5;
      REQUIRE(a.put(peer, memory.region->key(), 0, &word, 8) == Errc::ok);
      // The channel as a third party with the same rights could open it.
      const AccessSlot* slot = nullptr;
      for (std::uint32_t i = 0; i < b.domain->segment().board().slots_used.load(); ++i)
        if (b.domain->segment().slots()[i].owner.load() != 0) slot = &b.domain->segment().slots()[i];
      REQUIRE(slot);
      const std::string path = "/proc/self/fd/" + std::to_string(slot->channel_fd.load());
      const OwnFd file(::open(path.c_str(), O_RDWR | O_CLOEXEC));
      REQUIRE(file.valid());
      Mapping bytes = Mapping::shared(file.get(), 0, shm::kChannelBytes);
      auto& header = *reinterpret_cast<shm::ChannelHeader*>(bytes.data());
      auto& ring = to_target ? header.to_target : header.to_initiator;
      std::byte* data = bytes.data() + shm::kRingsOffset + (to_target ? 0 : shm::kRingBytes);
      if (round % 2) {
        ring.written.fetch_add(random() % 3 ? random() : shm::kRingBytes + 1);
      } else {
        for (std::size_t i = 0; i < 4096; ++i) data[i] = static_cast<std::byte>(random());
        ring.written.fetch_add(4096);
      }
      // Before the initiator writes again and with that puts its own position back.
      const auto look = [](Side& side) {
        const auto name = *shm::Address::decode(Name::decode(side.name()).parts[0].bytes);
        auto& work = side.domain->segment().board().contexts[name.context_slot].work;
        work.fetch_or(shm::work::kLook);
        while (work.load() & shm::work::kLook) side.context->progress();
        (void)side.context->inbox().link_counters();  // waits for the thread that looks
      };
      look(b);
      look(a);
      std::vector<std::byte> local(64);
      // Lost while it was outstanding, or before: then a new path was opened.
      const Errc outcome =
          a.run(peer, {Side::transfer(OpCode::read, memory.region->key(), 0, local.data(), 64)}).error;
      CHECK((outcome == Errc::ok || outcome == Errc::protocol || outcome == Errc::peer_lost));
      if (outcome == Errc::ok) CHECK(header.closed.load() != 0);
    }
    Side healthy("ring");
    std::uint64_t word = 6;
    CHECK(healthy.put(healthy.knows(b), memory.region->key(), 0, &word, 8) == Errc::ok);
    CHECK(std::memcmp(memory.data(), &word, 8) == 0);
  }
}

TEST_CASE("channels that are opened at the same time are all served, each from the beginning") {
  constexpr int kThreads = 3, kRounds = 500;
  Side b;
  auto memory = b.own(8 * kThreads);
  std::atomic<int> running = kThreads, wrong = 0;
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t)
    threads.emplace_back([&, t] {
      Side a("ring");
      for (std::uint64_t round = 0; round < kRounds; ++round) {
        const PeerId peer = a.knows(b);
        if (a.put(peer, memory.region->key(), static_cast<std::uint64_t>(t) * 8, &round, 8) != Errc::ok)
          ++wrong;
        a.peers->remove(peer);  // the next one is another path, with a slot and a channel of its own
      }
      --running;
    });
  while (running != 0) b.context->progress();
  for (auto& thread : threads) thread.join();
  CHECK(wrong == 0);
}
