#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/locks/mutex.h"
#include "libfabric/endpoint/endpoint.h"

namespace fab::fi {

// An endpoint with several contexts under one name (fi_scalable_ep(3)). Transmit context i and receive
// context i are the two sides of context i of the core. It begins once the endpoint and those of its sides
// that there are have been enabled, and ends with the first of them that is closed. A receive side that the
// program has announced and not opened yet is waited for until the transmit side is used, or the name is
// read. For one thread at a time; the data calls of the sides are safe from any thread.
class ScalableEndpoint final : public fid_ep, private Whole {
 public:
  // fi_scalable_ep(3), as an EndpointOpener.
  static int open(fid_domain* domain, fi_info* info, fid_ep** out, void* user_context);

 private:
  friend struct ScalableCalls;
  enum Side : std::uint8_t { kTransmits, kReceives };
  struct Pair {
    Endpoint* sides[2] = {};
    bool enabled[2] = {};
    std::shared_ptr<Context> context;  // null: it has not begun
    bool ended = false;
  };

  ScalableEndpoint(Domain& domain, const fi_info& info, void* user_context);
  int open_side(Side side, int index, std::uint64_t flags, fid_ep** out, void* user_context);
  int bind(::fid* other);
  int enable();
  int name(void* address, std::size_t& length);
  std::string socket_name() const;
  bool begun() const noexcept;  // all contexts
  std::string own_name() const;
  void begin(std::size_t index, bool late = false) FAB_REQUIRES(mutex_);
  int enable_part(Endpoint& part) override;
  void begin_late(Endpoint& part) override;
  void close_part(Endpoint& part) noexcept override;
  static Side side_of(const Endpoint& part) noexcept;

  Domain& domain_;
  const Use domain_use_;
  const Endpoint::Traits traits_;
  const std::array<std::size_t, 2> counts_;  // of sides
  const std::uint32_t number_;
  Av* av_ = nullptr;
  Use av_use_;
  std::vector<Use> queues_;
  bool enabled_ = false;
  Mutex mutex_;  // of what begins
  std::vector<Pair> pairs_;
  NodeName shown_;
  bool is_shown_ = false;
  Users users_{0};  // its sides
};

}  // namespace fab::fi
