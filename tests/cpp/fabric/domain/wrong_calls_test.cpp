// Calls that a program may get wrong: each is refused with a code and a text that says what to do, and
// changes nothing.

#include <doctest/doctest.h>

#include <string>
#include <utility>
#include <vector>

#include "fabric/completion/counter.h"
#include "fabric/domain/grant.h"
#include "fabric/domain/memory_region.h"
#include "providers/shm/harness.h"

using namespace fab;
using test::Side;

namespace {

Side opened_with(std::uint32_t mode, std::uint32_t key_size = 8, bool strict = false) {
  DomainOptions options;
  options.manual_progress = true;
  options.mr_mode = mode;
  options.mr_key_size = key_size;
  options.strict_keys = strict;
  return Side("auto", std::move(options));
}

template <class Call>
void check_refused(Errc code, const std::string& part, const Call& call) {
  CAPTURE(part);
  try {
    call();
    FAIL("it was not refused");
  } catch (const Error& error) {
    CHECK(error.code() == code);
    CHECK_MESSAGE(std::string(error.what()).find(part) != std::string::npos, error.what());
  }
}

}  // namespace

TEST_CASE("a registration that cannot be is refused, and registers nothing") {
  Side side = opened_with(0, 4);
  std::byte memory[64];
  const auto refused = [&](Errc code, const char* part, MemoryRegion::Parameters parameters) {
    check_refused(code, part, [&] { side.domain->register_memory(std::move(parameters)); });
  };
  const std::uint32_t all = access::kAll;
  refused(Errc::invalid, "no buffer", {.buffers = {}, .access = all, .keep_alive = {}});
  refused(Errc::invalid, "length 0",
          {.buffers = {{memory, 8}, {memory, 0}}, .access = all, .keep_alive = {}});
  refused(Errc::invalid, "past the end of the address space",
          {.buffers = {{memory, ~std::size_t{0}}}, .access = all, .keep_alive = {}});
  refused(Errc::invalid, "none of the six rights",
          {.buffers = {{memory, 64}}, .access = 1u << 31, .keep_alive = {}});
  refused(Errc::bad_flags, "PMEM",
          {.buffers = {{memory, 64}}, .access = all, .flags = 1u << 31, .keep_alive = {}});
  refused(Errc::key_rejected, "4 bytes of keys",
          {.buffers = {{memory, 64}}, .access = all, .requested_key = 1ull << 32, .keep_alive = {}});
  BufferList many;
  for (std::size_t i = 0; i <= side.domain->domain().info().mr_iov_limit; ++i) many.push_back({memory, 1});
  refused(Errc::invalid, "mr_iov_limit", {.buffers = std::move(many), .access = all, .keep_alive = {}});
  CHECK(side.domain->regions().size() == 0);

  const auto first = side.own(64, all, 7);
  refused(Errc::no_key, "7",
          {.buffers = {{memory, 64}}, .access = all, .requested_key = 7, .keep_alive = {}});
  CHECK(side.domain->regions().size() == 1);
}

TEST_CASE("where the library chooses keys, a strict domain refuses a wish, and another one ignores it") {
  Side strict = opened_with(mr_mode::kProvKey, 8, true);
  check_refused(Errc::key_rejected, "the library chooses", [&] { strict.own(64, access::kAll, 7); });
  Side lenient = opened_with(mr_mode::kProvKey);
  CHECK(lenient.own(64, access::kAll, 7).region->key() != kNoKey);
}

TEST_CASE("a region without remote rights has nothing to count and no key to show") {
  Side side = opened_with(0);
  const auto memory = side.own(64, access::kRead);
  CHECK(memory.region->key() == kNoKey);
  check_refused(Errc::invalid, "nothing to count", [&] { memory.region->bind(side.domain->open_counter()); });
  check_refused(Errc::access, "remote", [&] { memory.region->remote(); });
  check_refused(Errc::access, "remote", [&] { memory.region->raw_key(); });
}

TEST_CASE("a part of a region is its pieces, and what is not inside is refused") {
  Side side = opened_with(0);
  std::byte first[10], second[20];
  const auto region = side.domain->register_memory(
      {.buffers = {{first, 10}, {second, 20}}, .access = access::kAll, .keep_alive = {}});
  const auto pieces = region->slice(5, 10);
  REQUIRE(pieces.size() == 2);
  CHECK(pieces[0].iov_base == first + 5);
  CHECK(pieces[0].iov_len == 5);
  CHECK(pieces[1].iov_base == second);
  CHECK(pieces[1].iov_len == 5);
  REQUIRE(region->slice(12, 3).size() == 1);
  CHECK(region->slice(12, 3)[0].iov_base == second + 2);
  CHECK(region->slice(30, 0).empty());
  check_refused(Errc::bounds, "[25, 25 + 6) is not inside the region of 30 bytes",
                [&] { region->slice(25, 6); });
  check_refused(Errc::bounds, "[31, ", [&] { region->slice(31, 0); });

  Side local = opened_with(mr_mode::kLocal);
  const auto memory = local.own(64);
  check_refused(Errc::invalid, "not inside", [&] { memory.region->slice(0, 65); });
  CHECK(memory.region->close({}));
  check_refused(Errc::closed, "closed", [&] { memory.region->slice(0, 1); });
  check_refused(Errc::closed, "closed", [&] { memory.region->descriptor(); });
}

TEST_CASE("in ENDPOINT mode a region is bound to one endpoint, and enabled then") {
  Side side = opened_with(mr_mode::kEndpoint);
  const auto memory = side.own(64);
  CHECK_FALSE(memory.region->enabled());
  check_refused(Errc::bad_state, "bind an endpoint before", [&] { memory.region->enable(); });
  memory.region->bind_endpoint(1);
  check_refused(Errc::bad_state, "takes one", [&] { memory.region->bind_endpoint(2); });
  memory.region->enable();
  CHECK(memory.region->enabled());
  check_refused(Errc::bad_state, "enabled already", [&] { memory.region->enable(); });
  check_refused(Errc::bad_state, "before enable()", [&] { memory.region->bind_endpoint(1); });
  check_refused(Errc::bad_state, "before enable()",
                [&] { memory.region->bind(side.domain->open_counter()); });
  const std::vector<std::string> keys{"another"};
  check_refused(Errc::bad_state, "enabled already", [&] { memory.region->admit(keys); });

  Side other = opened_with(0);
  const auto usual = other.own(64);
  check_refused(Errc::invalid, "MRMode.ENDPOINT", [&] { usual.region->bind_endpoint(1); });
  usual.region->enable();  // does nothing, as it was never disabled
  CHECK(usual.region->enabled());
}

TEST_CASE("in RMA_EVENT mode a region that is to raise counters waits for one, and others take none") {
  Side side = opened_with(mr_mode::kRmaEvent);
  std::byte bytes[64];
  const auto counted = side.domain->register_memory(
      {.buffers = {{bytes, 64}}, .access = access::kAll, .flags = region_flag::kRmaEvent, .keep_alive = {}});
  check_refused(Errc::bad_state, "bind a counter before", [&] { counted->enable(); });
  counted->bind(side.domain->open_counter());
  counted->enable();
  CHECK(counted->enabled());
  const auto plain = side.own(64);
  check_refused(Errc::invalid, "MRFlag.RMA_EVENT", [&] { plain.region->bind(side.domain->open_counter()); });
}

TEST_CASE("a refresh of what is not inside the region is refused, and the region stays reachable") {
  Side side = opened_with(mr_mode::kMmuNotify);
  const auto memory = side.alloc(8192);
  for (const RegionSpan& part : {RegionSpan{8193, 0}, RegionSpan{8000, 193}}) {
    const RegionSpan parts[] = {part};
    check_refused(Errc::invalid, "is not inside the region of 8192 bytes",
                  [&] { memory.region->refresh(parts, {}); });
  }
  CHECK(memory.region->refresh({}, Deadline::in_seconds(60)));
}

TEST_CASE("a grant of more than the region has is refused, and leaves no key behind") {
  Side side = opened_with(0);
  const auto memory = side.own(64, access::kRemoteRead);
  const auto refused = [&](Errc code, const char* part, GrantTerms terms) {
    check_refused(code, part, [&] { grant_of(*memory.region, std::move(terms)); });
  };
  const std::uint32_t read = access::kRemoteRead;
  refused(Errc::invalid, "REMOTE_READ, REMOTE_WRITE or both", {.access = 0, .length = 8});
  refused(Errc::invalid, "REMOTE_READ, REMOTE_WRITE or both", {.access = access::kRead, .length = 8});
  refused(Errc::access, "a right that the region does not have",
          {.access = access::kRemoteWrite, .length = 8});
  refused(Errc::bounds, "[60, 60 + 5) is not inside", {.access = read, .offset = 60, .length = 5});
  refused(Errc::bounds, "[65, ", {.access = read, .offset = 65, .length = 0});
  refused(Errc::invalid, "no bytes", {.access = read, .offset = 64, .length = 0});
  CHECK(side.domain->regions().size() == 1);

  const auto grant = grant_of(*memory.region, {.access = read, .length = 8});
  CHECK(grant->remote().length == 8);
  CHECK(grant->revoke({}));
  check_refused(Errc::closed, "the grant is over", [&] { grant->remote(); });
}

TEST_CASE("a domain with open regions or endpoints does not close, and says how many there are") {
  Side side = opened_with(0);
  const auto memory = side.own(64);
  check_refused(Errc::busy, "1 open endpoint contexts and 1 regions", [&] { side.domain->close(false); });
  CHECK_FALSE(side.domain->closed());
  CHECK(memory.region->close({}));
  check_refused(Errc::busy, "1 open endpoint contexts and 0 regions", [&] { side.domain->close(false); });
  side.domain->close(true);
  CHECK(side.domain->closed());
  check_refused(Errc::closed, "closed", [&] { side.own(64); });
}

TEST_CASE("the authorization key in use is not removed, and one too many is not added") {
  DomainOptions options;
  options.manual_progress = true;
  options.auth_key = "first";
  Side side("auto", std::move(options));
  AuthKeyRing& ring = side.domain->auth_keys();
  check_refused(Errc::invalid, "is in use", [&] { ring.remove("first", false); });
  CHECK(ring.add("second", "first"));
  CHECK_FALSE(ring.add("second", "first"));
  CHECK(ring.own_keys() == 2);
  ring.use("second");
  check_refused(Errc::invalid, "is in use", [&] { ring.remove("second", false); });
  ring.remove("first", false);
  CHECK(ring.own_keys() == 1);

  std::string last = "second";
  int added = 0;
  check_refused(Errc::invalid, "remove some", [&] {
    for (; added < 1000; ++added) {
      const std::string next = "key " + std::to_string(added);
      ring.add(next, last);
      last = next;
    }
  });
  CHECK(ring.own_keys() == static_cast<std::size_t>(added) + 1);
  CHECK(ring.add("key 0", "second") == false);  // what was refused left the ring as it was
}
