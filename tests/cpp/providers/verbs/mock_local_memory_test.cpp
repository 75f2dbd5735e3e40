// How a device gets to memory of this process that lies in no region.
#include <doctest/doctest.h>
#include <sys/mman.h>

#include <list>

#include "base/memory/mapping.h"
#include "providers/verbs/mock_node.h"

using namespace fab;
using namespace fab::test;

namespace {

constexpr std::size_t kMedium = 48 * 1024, kLong = 256 * 1024, kSize = 4u << 20;

struct Ends {
  explicit Ends(DomainOptions options = {}) : a(std::move(options), 64), b({}, kSize) {
    const int before = mock_verbs_objects("read");
    CHECK(soon([&] {  // messages do the first transfers, until the devices are connected
      std::uint64_t word = 0;
      CHECK(begin(OpCode::read, &word, 8).outcome() == Errc::ok);
      return mock_verbs_objects("read") != before;
    }));
  }
  Begun begin(OpCode op, void* local, std::size_t length, std::uint64_t at = 0) {
    return {a, to_b, transfer_of(op, b.region->key(), at, local, length)};
  }
  LinkRegistrations registered() { return a.core->domain().registrations().front(); }
  MockNode a, b;
  const PeerId to_b = a.knows(b);
};

}  // namespace

TEST_CASE("up to 64 KiB are copied, more than there are slots for as well") {
  if (!mock_device()) return;
  Ends ends;
  std::vector<std::byte> bytes(kSize / kMedium * kMedium), back(bytes.size());
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(i / 997);
  for (const OpCode op : {OpCode::write, OpCode::read}) {
    std::vector<std::byte>& local = op == OpCode::write ? bytes : back;
    std::list<Begun> all;
    for (std::size_t at = 0; at < bytes.size(); at += kMedium)
      all.emplace_back(ends.a, ends.to_b,
                       transfer_of(op, ends.b.region->key(), at, local.data() + at, kMedium));
    for (Begun& each : all) CHECK(each.outcome() == Errc::ok);
  }
  CHECK(back == bytes);
  CHECK(ends.registered().held == 0);
  CHECK(ends.registered().made <= 2 * (bytes.size() / kMedium - 64));  // where no slot was free
}

TEST_CASE("memory that is gone is an outcome, whichever way its bytes go") {
  if (!mock_device()) return;
  Ends ends;
  const Mapping gone = Mapping::anonymous(kLong);
  REQUIRE(::mprotect(gone.data(), kLong, PROT_NONE) == 0);
  for (const std::size_t length : {std::size_t{100}, std::size_t{2000}, kMedium, kLong})
    for (const OpCode op : {OpCode::write, OpCode::read}) {
      CAPTURE(length);
      CHECK(ends.begin(op, gone.data(), length).outcome() == Errc::bounds);
    }
  CHECK(ends.begin(OpCode::atomic, gone.data(), 8).outcome() == Errc::bounds);
  std::uint64_t word = 7, back = 0;
  CHECK(ends.begin(OpCode::write, &word, 8).outcome() == Errc::ok);
  CHECK(ends.begin(OpCode::read, &back, 8).outcome() == Errc::ok);
  CHECK(back == 7);
}

TEST_CASE("messages carry what a device has neither slots nor registrations for") {
  if (!mock_device()) return;
  Ends ends;
  std::vector<std::byte> bytes(kMedium, std::byte{3});
  REQUIRE(mock_verbs_set("refuse=reg_mr:1/1") == 0);
  for (int i = 0; i < 3; ++i) CHECK(ends.begin(OpCode::write, bytes.data(), kMedium).outcome() == Errc::ok);
  mock_verbs_set("");
  CHECK(std::equal(bytes.begin(), bytes.end(), ends.b.memory.begin()));
}

TEST_CASE("a cache keeps what was registered, and makes room for other memory") {
  if (!mock_device()) return;
  DomainOptions options;
  options.settings["mr_cache"] = "True";
  Ends ends(options);
  const std::string limit = "mr_limit=" + std::to_string(mock_verbs_objects("mr") + 2);
  REQUIRE(mock_verbs_set(limit.c_str()) == 0);
  std::list<std::vector<std::byte>> kept;
  for (int i = 0; i < 8; ++i) {
    auto& bytes = kept.emplace_back(kLong, static_cast<std::byte>(i));
    for (int twice = 0; twice < 2; ++twice)
      CHECK(ends.begin(OpCode::write, bytes.data(), kLong).outcome() == Errc::ok);
    CHECK(ends.b.memory[1000] == static_cast<std::byte>(i));
  }
  CHECK(ends.registered().held <= 8);
  mock_verbs_set("");
}
