// Memory that a device takes long to register, at both sides.
#include <doctest/doctest.h>

#include <cstring>

#include "providers/verbs/mock_node.h"

using namespace fab;
using namespace fab::test;

namespace {

constexpr std::size_t kLarge = 32u << 20, kSmall = 64 * 1024;
constexpr char kHeld[] = "hold_mr=20000000";

struct Two {
  MockNode a{{}, kSmall}, b{{}, kLarge};
  const PeerId to_b = a.knows(b);

  Begun begin(OpCode op, void* local, std::size_t length, std::uint64_t at = 0) {
    return {a, to_b, transfer_of(op, b.region->key(), at, local, length)};
  }
  // A get that the device has done.
  void known() {
    std::vector<std::byte> into(kSmall);
    const int before = mock_verbs_objects("read");
    CHECK(soon([&] {
      CHECK(begin(OpCode::read, into.data(), kSmall).outcome() == Errc::ok);
      return mock_verbs_objects("read") != before;
    }));
  }
};

bool held(int count) {
  return soon([count] { return mock_verbs_objects("held") == count; });
}

}  // namespace

TEST_CASE("messages reach a large region until its device has it, and updates wait") {
  if (!mock_device()) return;
  Two two;
  REQUIRE(mock_verbs_set(kHeld) == 0);
  std::vector<std::byte> bytes(kSmall, std::byte{1});
  CHECK(two.begin(OpCode::write, bytes.data(), kSmall).outcome() == Errc::ok);
  CHECK(held(1));
  std::uint64_t one = 1, former = 5;
  Transfer add = transfer_of(OpCode::fetch_atomic, two.b.region->key(), kLarge - 8, &one, 8);
  add.result = reinterpret_cast<std::byte*>(&former);
  Begun adding(two.a, two.to_b, add);
  CHECK_FALSE(adding.operation.done());
  mock_verbs_set("");
  CHECK(adding.outcome() == Errc::ok);
  CHECK(former == 0);
  CHECK(two.b.memory[kLarge - 8] == std::byte{1});
  two.known();
}

TEST_CASE("transfers of large local memory wait for it, those of a part of it do not") {
  if (!mock_device()) return;
  Two two;
  two.known();
  std::vector<std::byte> large(kLarge, std::byte{3}), back(kLarge);
  REQUIRE(mock_verbs_set(kHeld) == 0);
  {
    Begun putting = two.begin(OpCode::write, large.data(), kLarge);
    CHECK(held(1));
    CHECK_FALSE(putting.operation.done());
    mock_verbs_set("");
    CHECK(putting.outcome() == Errc::ok);
  }
  CHECK(two.b.memory == large);
  CHECK(two.begin(OpCode::read, back.data(), kLarge).outcome() == Errc::ok);
  CHECK(back == large);

  const auto region = two.a.open_region(large);
  std::memset(large.data(), 4, kLarge);
  REQUIRE(mock_verbs_set(kHeld) == 0);
  CHECK(two.begin(OpCode::write, large.data() + 1000, kSmall).outcome() == Errc::ok);
  CHECK(held(1));
  mock_verbs_set("");
  CHECK(held(0));
  CHECK(soon([&] {
    CHECK(two.begin(OpCode::write, large.data(), kLarge).outcome() == Errc::ok);
    return two.a.core->domain().registrations().front().reused > 1;
  }));
  CHECK(two.b.memory == large);
  CHECK(region->close(Deadline::in_seconds(30)));
}

TEST_CASE("what a device refuses, and regions that close meanwhile, leave nothing") {
  if (!mock_device()) return;
  Two two;
  two.known();  // so that the refusal below is for another region
  std::vector<std::byte> bytes(kSmall, std::byte{1}), more(kLarge);
  for (const char* const faults : {"refuse=reg_mr:1/1", kHeld}) {
    const auto region = two.b.open_region(more);
    CHECK(two.begin(OpCode::write, bytes.data(), kSmall).outcome() == Errc::ok);  // connected
    REQUIRE(mock_verbs_set(faults) == 0);
    for (int i = 0; i < 3; ++i)
      CHECK(Begun(two.a, two.to_b, transfer_of(OpCode::write, region->key(), 0, bytes.data(), kSmall))
                .outcome() == Errc::ok);
    CHECK(std::memcmp(more.data(), bytes.data(), kSmall) == 0);
    CHECK(region->close(Deadline::in_seconds(30)));
    mock_verbs_set("");
  }
  CHECK(held(0));
  two.known();
}

TEST_CASE("what a device refused once it is offered again") {
  if (!mock_device()) return;
  Two two;
  std::vector<std::byte> bytes(kSmall, std::byte{1});
  REQUIRE(mock_verbs_set(kHeld) == 0);
  CHECK(two.begin(OpCode::write, bytes.data(), kSmall).outcome() == Errc::ok);
  CHECK(held(1));
  REQUIRE(mock_verbs_set("max_mr_size=20000000") == 0);
  CHECK(held(0));
  // Long enough for the peer to ask, and to hear that the device does not take the memory.
  for (const auto until = Deadline::in(std::chrono::milliseconds(200)); !until.passed();)
    CHECK(two.begin(OpCode::write, bytes.data(), kSmall).outcome() == Errc::ok);
  mock_verbs_set("");
  two.known();
}
