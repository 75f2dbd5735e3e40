#pragma once

// What the objects of the interface hold. Their classes have names that the library's own have too: here
// `Domain` is the interface's, and fab::Domain a provider's.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "base/deadline.h"
#include "fab/domain.h"
#include "fab/endpoint.h"
#include "fab/request.h"
#include "fabric/address_vector/address_vector.h"
#include "fabric/completion/operation.h"
#include "fabric/context/context.h"
#include "fabric/context/failure.h"
#include "fabric/domain/domain_core.h"
#include "fabric/domain/memory_region.h"
#include "fabric/types/error.h"
#include "fabric/types/name.h"

// Not seen from outside, though what they are nested in is.
#define FAB_HIDDEN [[gnu::visibility("hidden")]]

namespace fab::FAB_INTERFACE_NAME {

// What the headers say in numbers, because they include nothing of the library.
static_assert(static_cast<std::uint32_t>(Access::read) == fab::access::kRemoteRead);
static_assert(static_cast<std::uint32_t>(Access::write) == fab::access::kRemoteWrite);
static_assert(static_cast<std::uint32_t>(Access::all) == fab::access::kRemote);
static_assert(static_cast<PeerId>(kAnyPeer) == kNoPeer);
static_assert(Registration{}.requested_key == kNoKey);

inline Error error_of(fab::Errc code, const std::string& text) { return {static_cast<int>(code), text}; }

// Calls the library, whose errors programs do not know.
template <class Call>
auto translated(const Call& call) {
  try {
    return call();
  } catch (const fab::Error& error) {
    throw error_of(error.code(), error.what());
  }
}

inline fab::Deadline deadline_in(double seconds) {
  return seconds <= 1e9 ? fab::Deadline::in_seconds(seconds < 0 ? 0 : seconds) : fab::Deadline();
}

inline void check_writable(const char* what, const Memory& memory) {
  if (!memory.writable())
    throw error_of(fab::Errc::invalid,
                   std::string(what) + " would write to memory that is const; give it memory that is not");
}

struct FAB_HIDDEN Domain::State {
  explicit State(std::shared_ptr<fab::DomainCore> opened) : core(std::move(opened)) {}
  ~State() {
    if (!core->inherited()) core->close(true);
  }
  State(const State&) = delete;
  State& operator=(const State&) = delete;

  const std::shared_ptr<fab::DomainCore> core;
};

struct FAB_HIDDEN Remote::State {
  fab::RemoteRegion region;
};

struct FAB_HIDDEN Region::State {
  std::shared_ptr<Domain::State> domain;
  std::shared_ptr<fab::MemoryRegion> region;
};

// What a request has while its operation goes on.
struct FAB_HIDDEN Request::State {
  void finish() noexcept;

  fab::Operation operation;
  fab::Failure asked{};
  Memory memory;
  Kind kind;                                                // of an update; size 0: it is none
  alignas(8) std::byte operand[8], expected[8], former[8];  // of an update
  std::shared_ptr<Endpoint::State> endpoint;
  std::unique_ptr<State> next;  // in Dropped
};

// Requests that nobody waits for any more. Thread-safe.
class FAB_HIDDEN Request::Dropped {
 public:
  Dropped() = default;
  Dropped(const Dropped&) = delete;
  Dropped& operator=(const Dropped&) = delete;
  ~Dropped() { let_go(std::move(first_)); }

  void add(std::unique_ptr<Request::State> request) noexcept;
  // Lets go of those that are done. `all`: else only if many have come since the last time.
  void sweep(bool all) noexcept;

 private:
  using List = std::unique_ptr<Request::State>;
  static void let_go(List list) noexcept;

  std::mutex mutex_;
  List first_;
  std::atomic<std::size_t> count_{0};
  std::size_t enough_ = kFew;  // for a sweep
  static constexpr std::size_t kFew = 16;
};

struct FAB_HIDDEN Endpoint::State {
  explicit State(std::shared_ptr<Domain::State> of);
  ~State() { close(); }
  State(const State&) = delete;
  State& operator=(const State&) = delete;

  // What is asked of a peer: remote and key are as in Transfer.
  struct Asked {
    Peer peer;
    fab::OpCode op;
    std::uint64_t remote, key;
  };
  // Begins an operation of that endpoint, without posting it. Throws Error(EBADF) in a child of fork().
  static std::unique_ptr<Request::State> begin(const std::shared_ptr<State>& endpoint, const Asked& asked,
                                               Memory local);
  static Transfer transfer_of(Request::State& request);
  // Posts the transfer. Throws where nothing of it was posted.
  void post(const Transfer& transfer, Request::State& request);
  static Request start(const std::shared_ptr<State>& endpoint, const Asked& asked, Memory local,
                       std::uint16_t flags = 0);
  // An operation on these bytes of a region. Throws where there are none.
  Asked at(Peer peer, fab::OpCode op, std::size_t size, const fab::RemoteRegion& region,
           std::uint64_t offset);
  // Without a thread, whoever waits serves the peers of all endpoints.
  bool wait(const std::function<bool()>& done, fab::Deadline deadline);
  void close() noexcept;

  const std::shared_ptr<Domain::State> domain;
  const bool manual;
  const std::shared_ptr<fab::AddressVector> peers = std::make_shared<fab::AddressVector>();
  std::shared_ptr<fab::Context> context;
  Request::Dropped dropped;
};

}  // namespace fab::FAB_INTERFACE_NAME
