// While a slow device moves a long put, others get the context.
#include <doctest/doctest.h>

#include <atomic>
#include <thread>

#include "providers/verbs/mock_node.h"

using namespace fab;
using namespace fab::test;

TEST_CASE("while a device moves a long put, regions close and others get the lock") {
  constexpr std::size_t kLong = 32 * Slice::kBytes;
  if (!mock_device()) return;
  MockNode a({}, kLong), b({}, kLong);
  const PeerId to_b = a.knows(b);
  std::vector<std::byte> small(4096);
  const auto put = [&](std::size_t length, void (*hook)(Operation&) noexcept) {
    Operation operation;
    operation.begin({.flags = completion_flag::kRma, .hook = hook});
    Transfer transfer = transfer_of(OpCode::write, b.region->key(), 0, a.memory.data(), length);
    transfer.operation = &operation;
    REQUIRE(a.context->post(to_b, {&transfer, 1}) == 1);
    REQUIRE(a.context->wait([&] { return operation.done(); }, Deadline::in_seconds(60)));
    CHECK(operation.completion().error == Errc::ok);
  };
  for (int i = 0; i < 2; ++i) put(64 * 1024, nullptr);  // the devices know both regions
  REQUIRE(mock_verbs_set("max_message=1048576,late_us=1000") == 0);
  static std::atomic<bool> over;
  bool closed_meanwhile = false;
  int most = 0;
  for (int round = 0; round < 20 && !(closed_meanwhile && most >= 3); ++round) {
    const auto unrelated = a.open_region(small);
    over = false;
    std::fill(a.memory.begin(), a.memory.end(), static_cast<std::byte>(round + 1));
    std::thread putting([&] { put(kLong, [](Operation&) noexcept { over = true; }); });
    while (!over && std::atomic_ref(b.memory.front()).load() != static_cast<std::byte>(round + 1))
      std::this_thread::yield();
    CHECK(unrelated->close(Deadline::in_seconds(30)));
    closed_meanwhile |= !over;
    int entered = 0;
    while (!over) a.context->locked([&](Endpoint&) { entered += over ? 0 : 1; });
    most = std::max(most, entered);
    putting.join();
    CHECK(b.memory == a.memory);
  }
  mock_verbs_set("");
  CHECK(closed_meanwhile);
  CHECK(most >= 3);
}
