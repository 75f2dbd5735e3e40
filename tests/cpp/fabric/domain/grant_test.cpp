#include "fabric/domain/grant.h"

#include <doctest/doctest.h>

#include <atomic>
#include <cstdlib>
#include <thread>
#include <vector>

#include "base/memory/mapping.h"
#include "providers/shm/harness.h"

using namespace fab;
using test::Side;

namespace {

int rounds_of_grants() {
  const char* const given = std::getenv("FAB_ROUNDS");
  return given ? std::atoi(given) : 50;
}

Side manual(std::uint32_t mode = 0) {
  DomainOptions options;
  options.manual_progress = true;
  options.mr_mode = mode;
  return Side("auto", std::move(options));
}

const RegionEntry& entry_of(Side& side, std::uint64_t key) {
  return side.domain->regions().entry(static_cast<std::uint32_t>(side.domain->regions().find(key)));
}

}  // namespace

TEST_CASE("a grant has the memory of its part, in all pieces") {
  Side side = manual();
  static std::byte first[100], second[100], third[100];
  const auto region = side.domain->register_memory(
      {.buffers = {{first, 100}, {second, 100}, {third, 100}}, .access = access::kAll, .keep_alive = {}});
  const auto grant = grant_of(*region, {.access = access::kRemoteRead, .offset = 50, .length = 200});
  const RegionEntry& entry = entry_of(side, grant->key());
  iovec pieces[RegionView::kMaxRegionPieces];
  REQUIRE(side.domain->regions().pieces(entry, 0, 200, pieces) == 3);
  CHECK(pieces[0].iov_base == first + 50);
  CHECK(pieces[0].iov_len == 50);
  CHECK(pieces[1].iov_base == second);
  CHECK(pieces[1].iov_len == 100);
  CHECK(pieces[2].iov_base == third);
  CHECK(pieces[2].iov_len == 50);
  CHECK(entry.access == access::kRemoteRead);
  CHECK(grant->revoke({}));
  CHECK(region->close({}));
}

TEST_CASE("peers map a grant of mapped memory where its part begins, unless it is limited") {
  Side side = manual();
  const auto memory = side.alloc(8192);
  const auto open = grant_of(*memory.region, {.access = access::kRemote, .offset = 4000, .length = 100});
  CHECK(entry_of(side, open->key()).file_offset == 4000);
  CHECK((entry_of(side, open->key()).flags & region_flag::kObserved) == 0);
  const auto timed = grant_of(
      *memory.region, {.access = access::kRemote, .length = 100, .until = Deadline::in_seconds(3600)});
  CHECK((entry_of(side, timed->key()).flags & region_flag::kObserved) != 0);
  CHECK(entry_of(side, timed->key()).auth == kAuthLimited);
  CHECK(memory.region->close({}));
  CHECK(open->over());
  CHECK(timed->ended());
  CHECK(side.domain->regions().size() == 0);
}

TEST_CASE("a virtually addressed grant keeps the addresses of its region") {
  Side side = manual(mr_mode::kVirtAddr);
  const auto memory = side.own(256);
  const auto grant = grant_of(*memory.region, {.access = access::kRemote, .offset = 64, .length = 64});
  const PeerId self = side.knows(side);
  const std::uint64_t value = 7;
  CHECK(side.put(self, grant->key(), memory.region->base() + 64, &value, 8) == Errc::ok);
  CHECK(memory.own[64] == std::byte{7});
  CHECK(side.put(self, grant->key(), memory.region->base() + 63, &value, 8) == Errc::bounds);
  CHECK(side.put(self, grant->key(), 0, &value, 8) == Errc::bounds);
  CHECK(grant->remote().base == memory.region->base() + 64);
}

TEST_CASE("writes under a grant raise the counters of its region, bound before it or after") {
  Side side = manual();
  const auto memory = side.alloc(256);
  const auto before = side.domain->open_counter(), after = side.domain->open_counter();
  memory.region->bind(before);
  const auto grant = grant_of(*memory.region, {.access = access::kRemote, .length = 64});
  memory.region->bind(after);
  const PeerId self = side.knows(side);
  const std::uint64_t value = 7;
  CHECK(side.put(self, grant->key(), 0, &value, 8) == Errc::ok);
  CHECK(before->value() == 1);
  CHECK(after->value() == 1);
}

TEST_CASE("a grant opens the pages that its region opens, and those of a refresh") {
  Side side = manual(mr_mode::kMmuNotify);
  const std::size_t page = page_size();
  Mapping memory = Mapping::anonymous(4 * page);
  const auto region = side.domain->register_memory(
      {.buffers = {{memory.data(), 4 * page}}, .access = access::kRemote, .keep_alive = {}});
  const auto grant = grant_of(*region, {.access = access::kRemote, .offset = page, .length = 2 * page});
  const PeerId self = side.knows(side);
  const std::uint64_t value = 7;
  const bool there = side.put(self, grant->key(), 0, &value, 8) == Errc::ok;
  CHECK(there == (side.put(self, region->key(), page, &value, 8) == Errc::ok));
  memory.data()[page] = std::byte{1};
  memory.data()[2 * page] = std::byte{1};
  CHECK(region->refresh({}, {}));
  CHECK(side.put(self, grant->key(), 0, &value, 8) == Errc::ok);
  CHECK(side.put(self, grant->key(), 2 * page - 8, &value, 8) == Errc::ok);
  CHECK(side.put(self, grant->key(), 2 * page, &value, 8) == Errc::bounds);
}

TEST_CASE("a region that peers cannot reach yet gives no grant") {
  Side side = manual(mr_mode::kEndpoint);
  const auto memory = side.own(64);
  CHECK_THROWS_AS(grant_of(*memory.region, {.access = access::kRemote, .length = 64}), Error);
  memory.region->bind_endpoint(1);
  memory.region->enable();
  const auto grant = grant_of(*memory.region, {.access = access::kRemote, .length = 64});
  CHECK(entry_of(side, grant->key()).endpoint == 1);
}

TEST_CASE("grants whose time is over end by themselves, also where nobody uses them") {
  Side side;
  const auto memory = side.alloc(256);
  std::vector<std::shared_ptr<Grant>> grants;
  for (int i = 0; i < 200; ++i)
    grants.push_back(grant_of(*memory.region, {.access = access::kRemote,
                                               .length = 64,
                                               .until = Deadline::in(std::chrono::milliseconds(1 + i % 7))}));
  for (const auto& grant : grants)
    while (!grant->ended()) std::this_thread::yield();
  CHECK(grants_of(*memory.region).empty());
  CHECK(side.domain->regions().size() == 1);
}

TEST_CASE("a domain that closes with grants whose time is not over waits for none of them") {
  std::shared_ptr<Grant> grant;
  {
    Side side;
    const auto memory = side.alloc(256);
    grant = grant_of(*memory.region,
                     {.access = access::kRemote, .length = 64, .until = Deadline::in_seconds(3600)});
    CHECK(memory.region->close({}));
  }
  CHECK(grant->ended());
}

TEST_CASE("a grant ends once, whoever ends it: its owner, its time or its region") {
  Side side;
  for (int round = 0; round < rounds_of_grants(); ++round) {
    const auto memory = side.alloc(256);
    const auto grant =
        grant_of(*memory.region, {.access = access::kRemote,
                                  .length = 64,
                                  .until = Deadline::in(std::chrono::microseconds(100 * (round % 8)))});
    std::atomic<int> ready{0};
    const auto meet = [&] {
      ++ready;
      while (ready < 3) std::this_thread::yield();
    };
    std::thread revoking([&] {
      meet();
      CHECK(grant->revoke(Deadline::in_seconds(30)));
    });
    std::thread granting([&] {
      meet();
      try {
        for (;;) grant_of(*memory.region, {.access = access::kRemote, .length = 8});
      } catch (const Error& error) {
        CHECK(error.code() == Errc::closed);
      }
    });
    meet();
    CHECK(memory.region->close(Deadline::in_seconds(30)));
    revoking.join();
    granting.join();
    CHECK(side.domain->regions().size() == 0);
  }
}
