#include "fabric/segment/grant_limits.h"

#include <doctest/doctest.h>

#include <vector>

#include "base/memory/mapping.h"
#include "fabric/segment/region_table.h"

namespace fab {
namespace {

struct Area {
  OwnFd file = make_memory_file("grant-limits-test", RegionView::kAreaBytes);
  Mapping mapping = Mapping::shared(file.get(), 0, RegionView::kAreaBytes);
  RegionTable table{mapping.data()};
};

char memory[64];
ContextRights rights;
const Part kAlice{"tcp.0", 0, "alice"}, kBob{"tcp.0", 0, "bob"};

std::uint32_t limited(RegionTable& table, GrantLimits limits) {
  iovec buffer{memory, sizeof memory};
  const std::uint32_t index =
      table.insert({.key = 5, .buffers = {&buffer, 1}, .access = access::kRemoteRead, .enabled = false});
  table.set_limits(index, std::move(limits));
  table.set_enabled(index, true);
  return index;
}

struct Asked {
  std::vector<Part> names{};
  std::uint32_t auth = 0;
  OpCode op = OpCode::read;
  std::uint64_t length = 8;
  bool by_owner = true;
};

Errc verdict(const RegionTable& table, std::uint32_t index, const Asked& asked) {
  const Requester requester{rights, asked.auth, asked.by_owner ? &table.limits() : nullptr, &asked.names};
  std::uint64_t offset;
  return table.judge(table.entry(index), {5, 0, asked.op, 0, asked.length}, requester, offset);
}

TEST_CASE("a limited entry admits its peers, by any of their names, and nobody else") {
  Area area;
  const Part other_context{"tcp.0", 1, "alice"}, other_link{"tcp.1", 0, "alice"};
  const auto index = limited(area.table, {.peers = {kBob, {"shm.0", 0, "alice"}, kAlice}});
  CHECK(verdict(area.table, index, {.names = {kAlice}}) == Errc::ok);
  CHECK(verdict(area.table, index, {.names = {kBob}}) == Errc::ok);
  CHECK(verdict(area.table, index, {.names = {other_link, kAlice}}) == Errc::ok);
  CHECK(verdict(area.table, index, {.names = {other_context}}) == Errc::key_rejected);
  CHECK(verdict(area.table, index, {.names = {other_link}}) == Errc::key_rejected);
  CHECK(verdict(area.table, index, {.names = {{"tcp.0", 0, {}}}}) == Errc::key_rejected);
  CHECK(verdict(area.table, index, {}) == Errc::key_rejected);
}

TEST_CASE("limits come first, then rights, then bounds") {
  Area area;
  const auto index = limited(area.table, {.peers = {kAlice}});
  CHECK(verdict(area.table, index, {.names = {kBob}, .op = OpCode::write}) == Errc::key_rejected);
  CHECK(verdict(area.table, index, {.names = {kAlice}, .op = OpCode::write}) == Errc::access);
  CHECK(verdict(area.table, index, {.names = {kAlice}, .length = 65}) == Errc::bounds);
}

TEST_CASE("who is not the owner cannot judge a limited entry, and so admits nobody") {
  Area area;
  const auto index = limited(area.table, {});
  CHECK(verdict(area.table, index, {}) == Errc::ok);
  CHECK(verdict(area.table, index, {.by_owner = false}) == Errc::key_rejected);
}

TEST_CASE("the authorization key of the region is asked for beside the limits") {
  Area area;
  const auto index = limited(area.table, {.auth = 3, .peers = {kAlice}});
  CHECK(verdict(area.table, index, {.names = {kAlice}, .auth = 3}) == Errc::ok);
  CHECK(verdict(area.table, index, {.names = {kAlice}}) == Errc::key_rejected);
}

TEST_CASE("an entry admits nobody after its time") {
  Area area;
  const auto index = limited(area.table, {.until = Deadline::in({})});
  CHECK(verdict(area.table, index, {}) == Errc::key_rejected);
}

TEST_CASE("limits go with their entry, and the next one in its place has its own") {
  Area area;
  const auto index = limited(area.table, {.peers = {kAlice}});
  area.table.start_close(index);
  area.table.finish_close(index);
  const std::vector<Part> alice{kAlice};
  CHECK_FALSE(area.table.limits().admits(index, {rights, 0, &area.table.limits(), &alice}));
  iovec buffer{memory, sizeof memory};
  CHECK(area.table.insert({.key = 5, .buffers = {&buffer, 1}, .access = access::kRemoteRead}) == index);
  CHECK(verdict(area.table, index, {}) == Errc::ok);
}

}  // namespace
}  // namespace fab
