#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "fabric/address_vector/address_vector.h"
#include "fabric/completion/event_queue.h"
#include "fabric/domain/domain_core.h"
#include "fabric/memory/slice.h"
#include "providers/verbs/provider.h"

// For test programs named mock_*: they are linked with the device of tests/cpp/mock_verbs.
extern "C" {
int mock_verbs_set(const char* faults);
int mock_verbs_objects(const char* what);
int mock_verbs_tell(const char* what);
std::uint64_t mock_verbs_injected();
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

// What goes wrong on the device, for as long as this object lives: tests/cpp/mock_verbs/faults.h.
struct MockFaults {
  explicit MockFaults(const std::string& which) { REQUIRE(mock_verbs_set(which.c_str()) == 0); }
  ~MockFaults() { mock_verbs_set(""); }
  MockFaults(const MockFaults&) = delete;
  MockFaults& operator=(const MockFaults&) = delete;
};

inline DomainOptions with_setting(const std::string& name, const std::string& value) {
  DomainOptions options;
  options.settings[name] = value;
  return options;
}

inline std::shared_ptr<DomainCore> open_mock(DomainOptions options) {
  return DomainCore::open(
      [](const DomainServices& services) {
        return verbs::make_verbs_provider()->open(*mock_device(), "verbs.0", services);
      },
      std::move(options));
}

inline std::shared_ptr<Context> open_context(DomainCore& core, std::shared_ptr<AddressVector> peers,
                                             std::shared_ptr<CompletionQueue> completions,
                                             std::shared_ptr<EventQueue> events) {
  return core.open_context(0, {.number = core.contexts().next_endpoint_number()}, std::move(peers),
                           std::move(completions), std::move(events));
}

// A domain over the mock device with one context, and a region of `size` bytes.
struct MockNode {
  explicit MockNode(DomainOptions options, std::size_t size)
      : core(open_mock(std::move(options))),
        completions(core->open_completion_queue(1024, CompletionQueue::WhenFull::forget_oldest)),
        events(core->open_event_queue()),
        context(open_context(*core, peers, completions, events)),
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
  std::shared_ptr<CompletionQueue> completions;
  std::shared_ptr<EventQueue> events;
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
