#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "fabric/address_vector/address_vector.h"
#include "fabric/domain/domain_core.h"
#include "fabric/memory/slice.h"
#include "providers/verbs/provider.h"

// For test programs named mock_*: they are linked with the device of tests/cpp/mock_verbs.
extern "C" {
int mock_verbs_set(const char* faults);
int mock_verbs_objects(const char* what);
}

namespace fab::test {

// Null, with a message, on a machine whose only interface is the loopback: the mock device has no address.
inline const Info* mock_device() {
  static const auto devices = verbs::make_verbs_provider()->discover();
  REQUIRE(devices.size() == 1);
  if (devices.front().usable) return &devices.front();
  MESSAGE(devices.front().why);
  return nullptr;
}

// A domain over the mock device with one context, and a region of `size` bytes.
struct MockNode {
  explicit MockNode(DomainOptions options, std::size_t size)
      : core(DomainCore::open(
            [](const DomainServices& services) {
              return verbs::make_verbs_provider()->open(*mock_device(), "verbs.0", services);
            },
            std::move(options))),
        context(
            core->open_context(0, {.number = core->contexts().next_endpoint_number()}, peers,
                               core->open_completion_queue(1024, CompletionQueue::WhenFull::forget_oldest))),
        memory(size),
        region(open_region(memory)) {}
  ~MockNode() {
    core->contexts().close(*context);
    region->close({});
    core->close(true);
  }
  MockNode(const MockNode&) = delete;
  MockNode& operator=(const MockNode&) = delete;

  std::shared_ptr<MemoryRegion> open_region(std::vector<std::byte>& bytes) {
    return core->register_memory(
        {.buffers = {{bytes.data(), bytes.size()}}, .access = access::kAll, .keep_alive = {}});
  }
  PeerId knows(const MockNode& other) { return peers->insert(Name{other.context->parts()}.encode()); }

  std::shared_ptr<AddressVector> peers = std::make_shared<AddressVector>();
  std::shared_ptr<DomainCore> core;
  std::shared_ptr<Context> context;
  std::vector<std::byte> memory;
  std::shared_ptr<MemoryRegion> region;
};

inline Transfer transfer_of(OpCode op, std::uint64_t key, std::uint64_t remote, void* local,
                            std::size_t length) {
  Transfer made{};
  made.op = op;
  made.key = key;
  made.remote = remote;
  made.local = static_cast<std::byte*>(local);
  made.length = length;
  made.delivery = Delivery::delivery;
  made.atomic = AtomicOp::sum;
  made.type = DataType::u64;
  return made;
}

// A transfer that is under way.
struct Begun {
  Begun(MockNode& from, PeerId to, Transfer what) : node(from) {
    operation.begin({.flags = completion_flag::kRma});
    what.operation = &operation;
    REQUIRE(node.context->post(to, {&what, 1}) == 1);
  }
  Errc outcome() {
    REQUIRE(node.context->wait([this] { return operation.done(); }, Deadline::in_seconds(60)));
    return operation.completion().error;
  }
  MockNode& node;
  Operation operation;
};

template <class Holds>
bool soon(const Holds& holds) {
  const auto patience = Deadline::in_seconds(60);
  while (!holds() && !patience.passed()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  return holds();
}

}  // namespace fab::test
