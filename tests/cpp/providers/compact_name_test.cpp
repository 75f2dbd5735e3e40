// A name in 56 bytes becomes the name again, wherever its owner is.

#include "providers/compact_name.h"

#include <doctest/doctest.h>

#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "fabric/address_vector/address_vector.h"
#include "fabric/domain/domain_core.h"
#include "fabric/session/frames/hello.h"
#include "providers/providers.h"
#include "providers/shm/layout.h"

namespace fab {
namespace {

struct Named {
  std::shared_ptr<DomainCore> domain;
  std::shared_ptr<Context> context;
  Name name;

  explicit Named(const std::string& links) : domain(open_domain(links, {})) {
    context = domain->open_context(
        0, {.number = domain->contexts().next_endpoint_number()}, std::make_shared<AddressVector>(),
        domain->open_completion_queue(16, CompletionQueue::WhenFull::forget_oldest));
    name = Name{context->parts()};
  }
  ~Named() {
    context.reset();
    domain->close(true);
  }
};

EndpointAddress somewhere(const std::string& address) {
  EndpointAddress where;
  where.id.fill(7);
  where.kind = IdKind::key;
  where.network.fill(9);
  where.addresses.push_back(SocketAddress::from_bytes(address, 4711));
  return where;
}

}  // namespace

TEST_CASE("a name of this host comes back part by part") {
  for (const char* const links : {"shm", "tcp:lo", "shm+tcp:lo"}) {
    CAPTURE(links);
    const Named there(links);
    const auto bytes = compact(there.name);
    REQUIRE(bytes);
    CHECK(bytes->size() == kCompactNameBytes);
    CHECK(is_compact(*bytes));
    CHECK_FALSE(is_compact(there.name.encode()));
    CHECK(expand(*bytes).parts == there.name.parts);
  }
}

TEST_CASE("a name of elsewhere keeps what leads there, and is the same bytes again") {
  const Named here("shm+tcp:lo");
  Name elsewhere = here.name;
  const auto change = [&](auto&& what) {
    auto address = shm::Address::decode(elsewhere.parts[0].bytes).value();
    what(address);
    elsewhere.parts[0].bytes = address.encode();
  };
  SUBCASE("another host") {
    change([](shm::Address& address) { std::memset(address.host, 1, sizeof address.host); });
  }
  SUBCASE("a process that is gone") {
    change([](shm::Address& address) { ++address.process.start_time; });
  }
  SUBCASE("another segment") {
    change([](shm::Address& address) { address.domain_id[0] ^= 1; });
  }
  const std::string bytes = compact(elsewhere).value();
  const Name again = expand(bytes);
  CHECK(again.parts[1] == here.name.parts[1]);
  CHECK(again.parts[0] != here.name.parts[0]);
  CHECK(compact(again) == bytes);
  AddressVector peers;
  peers.judge_parts(here.domain->domain().part_check(), here.domain->domain().info().links);
  CHECK(here.context->reaches(here.context->peers().insert(again.encode())).why.starts_with("tcp"));
}

TEST_CASE("two rails have names of 64 bytes, beside shared memory and without it") {
  const Named here("shm+tcp:lo");
  const auto rail = [](const char* link, std::uint8_t number, const std::string& address) {
    EndpointAddress where = somewhere(address);
    where.id.fill(number);
    where.network = {};
    return Part{link, 0, where.encode()};
  };
  const Part first = rail("tcp.0", 1, {10, 0, 0, 1}), second = rail("tcp.1", 2, {10, 0, 1, 1});
  for (const Name& name : {Name{{here.name.parts[0], first, second}}, Name{{first, second}}}) {
    const std::string bytes = compact(name).value();
    CHECK(bytes.size() == 64);
    CHECK(compact_length(bytes.front()) == 64);
    CHECK(expand(bytes).parts == name.parts);
    CHECK_THROWS_AS(expand(bytes.substr(0, 56)), Error);
  }
  CHECK_FALSE(compact({{first, rail("tcp.1", 2, std::string(16, '\x7f'))}}));
  CHECK_FALSE(compact({{first, second, rail("tcp.2", 3, {10, 0, 2, 1})}}));
  CHECK_FALSE(compact({{second}}));
}

TEST_CASE("what has no room is told, and what is no name is refused") {
  const Named here("shm+tcp:lo");
  const Part memory = here.name.parts[0];
  const Part v4{"tcp.0", 0, somewhere(std::string(4, '\x7f')).encode()};
  const Part v6{"tcp.0", 0, somewhere(std::string(16, '\x7f')).encode()};
  CHECK(compact({{memory, v4}}));
  CHECK(expand(compact({{v6}}).value()).parts == std::vector{v6});
  CHECK_FALSE(compact({{memory, v6}}));
  CHECK_FALSE(compact({{memory, v4, {"tcp.1", 0, v4.bytes}}}));  // they are of a network
  CHECK_FALSE(compact({{memory, {"tcp.0", 1, v4.bytes}}}));
  CHECK_FALSE(compact({{{"verbs.0", 0, "x"}}}));

  const std::string good = compact(here.name).value();
  CHECK_THROWS_AS(expand(good.substr(1)), Error);
  CHECK_THROWS_AS(expand(std::string(kCompactNameBytes, '\xff')), Error);
  CHECK_THROWS_AS(expand(std::string(kCompactNameBytes, '\0')), Error);
  std::string newer = good;
  ++newer[1];
  CHECK_THROWS_AS(expand(newer), Error);
  std::string no_process = good;
  no_process[6] = no_process[7] = no_process[8] = 0;
  CHECK_THROWS_AS(expand(no_process), Error);
}

}  // namespace fab
