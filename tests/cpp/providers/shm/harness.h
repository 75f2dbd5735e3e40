#pragma once

#include <algorithm>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/memory/shared_memory.h"
#include "fabric/address_vector/address_vector.h"
#include "fabric/completion/event_queue.h"
#include "fabric/completion/operation.h"
#include "fabric/domain/domain_core.h"
#include "providers/shm/provider.h"

// One domain with one context over shm, and single operations on it that wait for their outcome.
namespace fab::test {

class Side {
 public:
  using Keys = std::vector<AuthKeyRing::Key>;
  explicit Side(const std::string& copy = "auto", DomainOptions options = {}, Keys keys = {}) {
    options.settings["shm_copy"] = copy;
    domain = DomainCore::open(
        [](const DomainServices& services) {
          const auto provider = shm::make_shm_provider();
          return provider->open(provider->discover().front(), "shm.0", services);
        },
        std::move(options));
    peers = std::make_shared<AddressVector>();
    completions = domain->open_completion_queue(1024, CompletionQueue::WhenFull::forget_oldest);
    events = domain->open_event_queue();
    context = domain->open_context(
        0, {.number = domain->contexts().next_endpoint_number(), .keys = std::move(keys)}, peers, completions,
        events);
  }
  ~Side() { domain->close(true); }

  std::string name() const { return Name{context->parts()}.encode(); }
  PeerId knows(const Side& other) { return peers->insert(other.name()); }

  // `length` zeroed bytes that peers can map, registered.
  struct Memory {
    std::shared_ptr<SharedMemory> shared;
    std::vector<std::byte> own;
    std::shared_ptr<MemoryRegion> region;
    std::byte* data() { return shared ? shared->mapping.data() : own.data(); }
  };
  Memory alloc(std::size_t length, std::uint32_t rights = access::kAll, std::uint64_t key = kNoKey) {
    Memory memory;
    memory.shared = allocate_shared(length);
    memory.region = domain->register_memory({.buffers = {{memory.shared->mapping.data(), length}},
                                             .access = rights,
                                             .requested_key = key,
                                             .file = memory.shared->file.get(),
                                             .keep_alive = memory.shared});
    return memory;
  }
  Memory own(std::size_t length, std::uint32_t rights = access::kAll, std::uint64_t key = kNoKey) {
    Memory memory;
    memory.own.resize(length);
    memory.region = domain->register_memory(
        {.buffers = {{memory.own.data(), length}}, .access = rights, .requested_key = key, .keep_alive = {}});
    return memory;
  }

  // Posts all of `transfers` as one operation and waits for it. Errc::timeout if it is not done in time.
  Completion run(PeerId peer, std::vector<Transfer> transfers, double seconds = 30) {
    Operation operation;
    operation.begin({.transfers = static_cast<std::uint32_t>(transfers.size())});
    for (Transfer& transfer : transfers) transfer.operation = &operation;
    std::span<const Transfer> rest(transfers);
    const auto deadline = Deadline::in_seconds(seconds);
    while (!rest.empty()) {
      const std::size_t taken = context->post(peer, rest);
      rest = rest.subspan(taken);
      if (taken == 0 && !context->progress() && deadline.passed()) return {.error = Errc::timeout};
    }
    if (!context->wait([&] { return operation.done(); }, deadline)) {
      context->close();  // settles it, so that it may go out of scope
      return {.error = Errc::timeout};
    }
    return operation.completion();
  }
  Errc put(PeerId peer, std::uint64_t key, std::uint64_t remote, const void* from, std::size_t length,
           Delivery delivery = Delivery::delivery) {
    return run(peer, {transfer(OpCode::write, key, remote, const_cast<void*>(from), length, delivery)}).error;
  }
  Errc get(PeerId peer, std::uint64_t key, std::uint64_t remote, void* to, std::size_t length) {
    return run(peer, {transfer(OpCode::read, key, remote, to, length)}).error;
  }
  Errc fetch_add(PeerId peer, std::uint64_t key, std::uint64_t remote, std::uint64_t operand,
                 std::uint64_t& result) {
    Transfer add = transfer(OpCode::fetch_atomic, key, remote, &operand, 8);
    add.atomic = AtomicOp::sum;
    add.type = DataType::u64;
    add.result = reinterpret_cast<std::byte*>(&result);
    return run(peer, {add}).error;
  }
  static Transfer transfer(OpCode op, std::uint64_t key, std::uint64_t remote, void* local,
                           std::size_t length, Delivery delivery = Delivery::delivery) {
    Transfer made{};
    made.op = op;
    made.key = key;
    made.remote = remote;
    made.local = static_cast<std::byte*>(local);
    made.length = length;
    made.delivery = delivery;
    return made;
  }

  std::shared_ptr<DomainCore> domain;
  std::shared_ptr<AddressVector> peers;
  std::shared_ptr<CompletionQueue> completions;
  std::shared_ptr<EventQueue> events;
  std::shared_ptr<Context> context;
};

}  // namespace fab::test
