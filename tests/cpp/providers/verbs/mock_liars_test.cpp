// Callers over a device that say what no peer says, or nothing.
#include <doctest/doctest.h>

#include <functional>

#include "providers/verbs/mock_caller.h"

using namespace fab;
using namespace fab::test;

namespace {

DomainOptions soon_lost() {
  DomainOptions options;
  options.peer_deadline = 1;
  return options;
}

std::uint64_t count_of(const MockNode& node, SecurityEvent event) {
  return node.core->security.counts()[static_cast<std::size_t>(event)];
}

// A peer that keeps the protocol is served, and of the others nothing is left.
void check_serves(MockNode& called) {
  {
    MockNode honest({}, 64);
    std::uint64_t value = 42;
    Begun put(honest, honest.knows(called),
              transfer_of(OpCode::write, called.region->key(), 0, &value, sizeof value));
    CHECK(put.outcome() == Errc::ok);
    CHECK(std::memcmp(called.memory.data(), &value, sizeof value) == 0);
  }
  CHECK(soon([] { return mock_verbs_objects("qp") == 0; }));
}

}  // namespace

TEST_CASE("a message that no peer may send ends its stream and nothing else") {
  if (!mock_device()) return;
  using Lie = std::function<void(MockCaller&)>;
  const std::pair<const char*, Lie> before_it_stands[] = {
      {"less than a header", [](MockCaller& caller) { caller.send_raw("abcd"); }},
      {"more slots emptied than were filled", [](MockCaller& caller) { caller.send(1, "", 1); }},
      {"a kind that is none", [](MockCaller& caller) { caller.send(2, "abcd"); }},
      {"frames before the handshake", [](MockCaller& caller) { caller.send(0, std::string(48, '\1')); }},
      {"a handshake that is none", [](MockCaller& caller) { caller.send(1, std::string(30, '\xff')); }}};
  const std::pair<const char*, Lie> afterwards[] = {
      {"a second handshake", [](MockCaller& caller) { caller.send(1, "abcd"); }},
      {"more slots emptied than there are", [](MockCaller& caller) { caller.send(0, "", 17); }},
      {"a frame that is none", [](MockCaller& caller) { caller.send(0, std::string(48, '\xff')); }}};
  MockNode called(DomainOptions{}, 64);
  std::uint64_t told = 0;
  const auto check_ends = [&](const auto& lies, bool stands) {
    for (const auto& lie : lies) {
      const std::string what = lie.first;
      CAPTURE(what);
      MockCaller liar(called);
      REQUIRE(liar.call() == RDMA_CM_EVENT_ESTABLISHED);
      if (stands) REQUIRE(liar.shake() == Errc::ok);
      lie.second(liar);
      CHECK(liar.next() == RDMA_CM_EVENT_DISCONNECTED);
      CHECK(count_of(called, SecurityEvent::protocol) == ++told);
    }
  };
  check_ends(before_it_stands, false);
  check_ends(afterwards, true);
  check_serves(called);
}

TEST_CASE("whoever begins a frame and does not go on is cut at the deadline") {
  if (!mock_device()) return;
  MockNode called(soon_lost(), 64);
  {
    MockCaller liar(called);
    REQUIRE(liar.call() == RDMA_CM_EVENT_ESTABLISHED);
    REQUIRE(liar.shake() == Errc::ok);
    liar.send(MockCaller::kFrames, std::string(1, '\1'));
    CHECK(liar.next() == RDMA_CM_EVENT_DISCONNECTED);
  }
  CHECK(count_of(called, SecurityEvent::half_frame) == 1);
  CHECK(count_of(called, SecurityEvent::protocol) == 0);
  check_serves(called);
}

TEST_CASE("a caller that does not finish its handshake is cut at the deadline") {
  if (!mock_device()) return;
  MockNode called(soon_lost(), 64);
  {
    MockCaller silent(called);
    REQUIRE(silent.call() == RDMA_CM_EVENT_ESTABLISHED);
    CHECK(silent.next() == RDMA_CM_EVENT_DISCONNECTED);
  }
  CHECK(count_of(called, SecurityEvent::handshake_late) == 1);
  check_serves(called);
}

TEST_CASE("a caller without the key is told so, and counted") {
  if (!mock_device()) return;
  DomainOptions options;
  options.auth_key = "secret";
  MockNode called(std::move(options), 64);
  {
    MockCaller stranger(called);
    REQUIRE(stranger.call() == RDMA_CM_EVENT_ESTABLISHED);
    CHECK(stranger.shake() == Errc::key_rejected);
  }
  CHECK(soon([&] { return count_of(called, SecurityEvent::key_refused) == 1; }));
  CHECK(soon([] { return mock_verbs_objects("qp") == 0; }));
}

TEST_CASE("a call for somebody else, or for a stream that is none, is refused for good") {
  if (!mock_device()) return;
  using verbs::PrivateData;
  MockNode called(DomainOptions{}, 64);
  const EndpointId id = EndpointAddress::parse(called.context->parts()[0].bytes)->id;
  const auto refusal_of = [&](const auto& data) {
    MockCaller liar(called);
    CHECK(liar.call(data) == RDMA_CM_EVENT_REJECTED);
    return liar.refusal ? liar.refusal->why : verbs::Refusal::Why::busy;
  };
  EndpointId other = id;
  other[0] ^= 1;
  CHECK(refusal_of(PrivateData{.to = other}) == verbs::Refusal::Why::never);
  CHECK(refusal_of(PrivateData{.purpose = PrivateData::Purpose::memory, .to = id, .token = 1}) ==
        verbs::Refusal::Why::never);
  CHECK(refusal_of(std::string(PrivateData::kBytes, 'x')) == verbs::Refusal::Why::never);
  check_serves(called);
}
