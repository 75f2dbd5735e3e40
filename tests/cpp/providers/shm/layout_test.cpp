#include <doctest/doctest.h>
#include <fcntl.h>
#include <unistd.h>

#include <string>
#include <thread>

#include "fabric/types/versions.h"
#include "providers/shm/processes.h"

// Processes whose shared memory has another layout. Each test says that by the one number that stands in
// front of it.
namespace fab::test {
namespace {

constexpr std::uint16_t kOther = versions::kSharedLayout + 1;

bool names_both(const std::string& text) {
  const auto names = [&](std::uint16_t layout) {
    return text.find("layout " + std::to_string(layout)) != std::string::npos;
  };
  CAPTURE(text);
  CHECK(names(kOther));
  CHECK(names(versions::kSharedLayout));
  return names(kOther) && names(versions::kSharedLayout);
}

std::string name_in_layout(const std::string& name, std::uint16_t layout) {
  Name parts = Name::decode(name);
  WireWriter number;
  number.put(layout);
  parts.parts[0].bytes.replace(0, 2, number.bytes());
  return parts.encode();
}

// What keeps the next path to the peer from being opened; empty: nothing.
std::string hindrance(Side& side, PeerId peer) try {
  std::uint64_t word = 0;
  side.put(peer, 1, 0, &word, 8);
  return {};
} catch (const Error& error) {
  CHECK(error.code() == Errc::unreachable);
  return error.what();
}

}  // namespace

TEST_CASE("a name of another layout is refused by its first number, whatever follows") {
  Side a, b;
  CHECK(names_both(a.context->reaches(a.peers->insert(name_in_layout(b.name(), kOther))).why));
  Name longer = Name::decode(name_in_layout(b.name(), kOther));
  longer.parts[0].bytes += "and more";
  const PeerId peer = a.peers->insert(longer.encode());
  CHECK(names_both(a.context->reaches(peer).why));
  CHECK(names_both(hindrance(a, peer)));
}

TEST_CASE("a segment of another layout is refused, of whatever size it is") {
  Side a, b;
  b.domain->segment().header().layout = kOther;
  const PeerId peer = a.knows(b);
  CHECK(names_both(a.context->reaches(peer).why));
  CHECK(names_both(hindrance(a, peer)));

  const OwnFd small = make_memory_file("another segment", 16);
  const struct {
    std::uint64_t magic = kSegmentMagic;
    std::uint32_t layout = kOther;
  } first;
  REQUIRE(::pwrite(small.get(), &first, sizeof first, 0) == sizeof first);
  Name elsewhere = Name::decode(b.name());
  shm::Address address = *shm::Address::decode(elsewhere.parts[0].bytes);
  address.segment_fd = small.get();
  address.domain_id[0] ^= 1;
  elsewhere.parts[0].bytes = address.encode();
  CHECK(names_both(a.context->reaches(a.peers->insert(elsewhere.encode())).why));
}

TEST_CASE("what waits for a target that finds another layout at its initiator fails, and says so") {
  Side a("ring"), b;
  auto memory = b.own(64);
  a.domain->segment().header().layout = kOther;
  const PeerId peer = a.knows(b);
  std::uint64_t former = 0;
  CHECK(a.fetch_add(peer, memory.region->key(), 0, 1, former) == Errc::unreachable);
  CHECK(names_both(a.context->reaches(peer).why));
  CHECK(names_both(hindrance(a, peer)));
  a.domain->segment().header().layout = versions::kSharedLayout;
}

TEST_CASE("messages and remote data in a channel of another layout are errors of who sent them") {
  for (const bool message : {true, false}) {
    CAPTURE(message);
    Target target;
    target.stop();
    Side a;
    const PeerId peer = a.peers->insert(target.name);
    std::thread changer([&] {
      const Segment segment = segment_of(target.name);
      const AccessSlot* slot = nullptr;
      while (!slot)
        for (std::uint32_t i = 0; i < segment.slots_used(); ++i)
          if (segment.slots()[i].channel_fd.load() >= 0 &&
              SlotOwner::unpack(segment.slots()[i].owner.load()) == this_process())
            slot = &segment.slots()[i];
      const std::uint32_t other = kOther;
      // Through a descriptor of its own: the other one is closed by the context, whenever it likes.
      const std::string file = "/proc/self/fd/" + std::to_string(slot->channel_fd.load());
      const OwnFd channel(::open(file.c_str(), O_RDWR | O_CLOEXEC));
      [[maybe_unused]] const auto written = ::pwrite(channel.get(), &other, sizeof other, 8);
      target.go_on();
    });
    std::uint64_t word = 7;
    Transfer transfer =
        Side::transfer(message ? OpCode::send : OpCode::write, target.mapped_key, 0, &word, 8);
    if (!message) transfer.flags = transfer_flag::kRemoteData;
    CHECK(a.run(peer, {transfer}).error == Errc::unreachable);
    changer.join();
    CHECK(names_both(a.context->reaches(peer).why));
    CHECK(names_both(hindrance(a, peer)));
    target.end();
    CHECK_FALSE(a.context->reaches(peer).ok);
  }
}

}  // namespace fab::test
