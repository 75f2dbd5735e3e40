#pragma once

#include <rdma/fi_cm.h>
#include <rdma/fi_endpoint.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "base/locks/mutex.h"
#include "fabric/context/context.h"
#include "libfabric/domain/av.h"
#include "libfabric/domain/domain.h"
#include "libfabric/queues/counter.h"
#include "libfabric/queues/cq.h"

namespace fab::fi {

class Endpoint;

// What a transmit or receive context is a part of.
class Whole {
 public:
  virtual ~Whole() = default;
  // Calls begin() of the part once its context can begin. Returns 0, or a code.
  virtual int enable_part(Endpoint& part) = 0;
  // Likewise for an enabled part that is used although the other side is not there. From any thread.
  virtual void begin_late(Endpoint& part) = 0;
  // Ends the context of a part that closes.
  virtual void close_part(Endpoint& part) noexcept = 0;
};

// A reliable datagram endpoint (fi_endpoint(3)): one context of the core, which both sends and receives; or
// one side of such a context, which is a part of a larger endpoint. It begins when the program enables it.
// Data calls are safe from any thread; binding, enabling and closing are for one thread at a time, as
// libfabric has it.
class Endpoint final : public fid_ep {
 public:
  // fi_endpoint(3), as an EndpointOpener.
  static int open(fid_domain* domain, fi_info* info, fid_ep** out, void* user_context);

  // What the program asked for.
  struct Traits {
    bool directed = false;                            // receives name their source
    std::uint64_t send_flags = 0, receive_flags = 0;  // of calls that have none of their own
  };
  // Throws Error unless `info` describes what an endpoint, scalable or not, can be.
  static void check(const fi_info* info);
  static Traits traits_of(const fi_info& info) noexcept;
  // Where it belongs.
  struct Place {
    Whole* whole = nullptr;  // null: it stands alone
    Users* users = nullptr;  // of the whole
    std::uint16_t index = 0;
    std::size_t kind = FI_CLASS_EP;
  };
  Endpoint(Domain& domain, const Traits& traits, void* user_context, const Place& place);
  // Opens a context, of which `receiver` tells what is received and what peers do; null: nobody does.
  static std::shared_ptr<Context> open_context(DomainCore& core, std::uint32_t number, std::uint16_t index,
                                               const Av& av, const Endpoint* receiver);
  // Another one over the same context, whose calls in one direction have these flags (fi_ep_alias(3)).
  Endpoint(Endpoint& original, std::uint64_t flags);
  void begin(std::shared_ptr<Context> context);
  std::uint16_t index() const noexcept { return place_.index; }

  // --- what starts operations
  // What a call says of the operation that it starts. `flags` are those of the call, `kind` is what its entry
  // tells (fi_cq(3)). With FI_TRIGGER, `context` is an fi_triggered_context, which says when it begins.
  struct Start {
    void* context = nullptr;
    std::uint64_t flags = 0;
    std::uint64_t kind = 0;
    bool silent = false;  // success has no entry: fi_inject(3) and the like
  };
  // Starts one operation of all these transfers, whose `operation` is filled in here. Returns 0, or a code.
  ssize_t post(Op& op, const Start& start, fi_addr_t to, std::span<Transfer> transfers);
  // Posts a receive. `receive` says which messages and where; `many` makes it one for several messages.
  ssize_t receive(Op& op, const Start& start, Receive receive, bool many, std::uint64_t claim = 0);
  // Looks for a message that waits, and tells what was found by an entry (FI_PEEK of fi_tagged(3)).
  ssize_t peek(const Start& start, const MatchRule& rule);
  // What fi_cancel(3) and claims need.
  ssize_t cancel(void* user_context);
  ssize_t discard_claimed(const Start& start);
  // A message that was claimed (FI_CLAIM), and the entry that told of it.
  struct Claim {
    std::uint64_t number = 0;
    Completion entry{};
  };
  // What was claimed with this context. It is forgotten only once it is received or discarded, or has gone
  // with its sender: a call that finds no room may be repeated.
  std::optional<Claim> find_claim(void* user_context);
  void forget_claim(void* user_context, std::uint64_t number);

  Op& new_op() { return pool_->take(); }
  bool enabled() const noexcept { return begun_.load(std::memory_order_acquire); }
  // Flags of calls that have none of their own.
  std::uint64_t send_flags() const noexcept { return send_flags_; }
  std::uint64_t receive_flags() const noexcept { return receive_flags_; }
  // The peer that a receive is from, or nobody in particular.
  PeerId source_of(fi_addr_t address) const noexcept { return directed_ ? address : kNoPeer; }

 private:
  friend struct EndpointCalls;
  int bind(::fid* other, std::uint64_t flags);
  void bind_queue(Cq& cq, std::uint64_t flags);
  void bind_counter(Cntr& counter, std::uint64_t flags);
  int alias(const struct fi_alias& asked);
  int enable();
  bool begins() {  // for a call that sends
    if (!enabled() && place_.whole) place_.whole->begin_late(*this);
    return enabled();
  }
  int close();
  int name(void* address, std::size_t& length) const;
  int get_option(int option, void* value, std::size_t& length) const;
  int set_option(int option, const void* value, std::size_t length);
  Counter* counter_of(OpCode op) const noexcept;
  static bool told(const Start& start, bool selective) noexcept;
  // Posts what is begun. A patient caller waits for room; for others a full path is -FI_EAGAIN.
  ssize_t drive(Op& op, fi_addr_t to, std::span<const Transfer> transfers, bool patient);
  ssize_t defer(Op& op, fi_addr_t to, std::span<const Transfer> transfers);
  template <class Work>
  ssize_t tell_at_once(const Start& start, const Work& work);
  template <class Visit>
  void visit_driven(const Visit& visit);

  struct QueueBinding {
    Cq* cq = nullptr;
    bool selective = false;  // success has an entry only where the call asks for one
    CompletionQueue* queue() const noexcept { return cq ? cq->queue().get() : nullptr; }
  };
  struct CounterBindings {
    Cntr *send = nullptr, *receive = nullptr, *read = nullptr, *write = nullptr;
    Cntr *remote_read = nullptr, *remote_write = nullptr;  // of what peers do
  };

  Domain& domain_;
  const Use domain_use_;
  const Place place_;
  const Use whole_use_;  // of the whole, or of the original
  const bool alias_ = false;
  Users aliases_{0};
  const bool directed_;
  std::uint64_t send_flags_, receive_flags_;
  std::size_t least_room_ = 16384;  // FI_OPT_MIN_MULTI_RECV
  Av* av_ = nullptr;
  QueueBinding transmits_, receives_;
  CounterBindings counters_;
  std::vector<Use> uses_;  // of all that is bound
  const std::shared_ptr<OpPool> pool_;
  std::shared_ptr<Context> context_;  // null: not enabled
  std::atomic<bool> begun_{false};    // context_ is there
  NodeName shown_;
  SmallMutex claims_mutex_;
  std::unordered_map<void*, Claim> claims_ FAB_GUARDED_BY(claims_mutex_);
};

// The calls of fi_cm(3), of which such endpoints have fi_getname() alone.
fi_ops_cm connection_calls_with(int (*getname)(fid* known, void* address, std::size_t* length)) noexcept;

// What carries the data calls.
fi_ops_msg& message_calls() noexcept;
fi_ops_tagged& tagged_calls() noexcept;
fi_ops_rma& rma_calls() noexcept;
fi_ops_atomic& atomic_calls() noexcept;

}  // namespace fab::fi
