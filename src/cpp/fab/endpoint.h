#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <type_traits>

#include "fab/domain.h"
#include "fab/request.h"

FAB_BEGIN
// From where puts, gets, updates and messages go to peers, and where messages from them arrive. Calls start
// an
// operation and return a Request. They wait only while the way to the peer is full: for room, or until the
// peer counts as lost. They throw Error where nothing was started: for a peer that was never inserted, that
// no link reaches, or a place outside of the region. Any thread may use it.
class FAB_API Endpoint {
 public:
  explicit Endpoint(const Domain& domain);
  Endpoint(Endpoint&&) noexcept;
  Endpoint& operator=(Endpoint&&) noexcept;
  ~Endpoint();  // as close()

  std::string address() const;            // bytes, to be told to peers
  Peer insert(std::string_view address);  // throws Error: EINVAL, EHOSTUNREACH
  void remove(Peer peer);

  // Into the region, from `offset` bytes on.
  Request put(Peer peer, Memory local, const Remote& remote, std::uint64_t offset = 0);
  // From there into `local`.
  Request get(Peer peer, Memory local, const Remote& remote, std::uint64_t offset = 0);

  // Updates of one aligned element, atomic among all who update it so. Request::value() is the former
  // value.
  template <Element Type>
  Request fetch_add(Peer peer, std::type_identity_t<Type> value, const Remote& remote,
                    std::uint64_t offset = 0) {
    return update(peer, {Update::add, Kind::of<Type>(), &value, nullptr}, remote, offset);
  }
  template <Element Type>
  Request exchange(Peer peer, std::type_identity_t<Type> value, const Remote& remote,
                   std::uint64_t offset = 0) {
    return update(peer, {Update::exchange, Kind::of<Type>(), &value, nullptr}, remote, offset);
  }
  // Stores `value` where the element is equal to `expected`.
  template <Element Type>
  Request compare_exchange(Peer peer, std::type_identity_t<Type> expected, std::type_identity_t<Type> value,
                           const Remote& remote, std::uint64_t offset = 0) {
    return update(peer, {Update::compare_exchange, Kind::of<Type>(), &value, &expected}, remote, offset);
  }

  // A message, which a receive with that tag takes.
  Request send(Peer peer, Memory local, std::uint64_t tag = 0);
  // One message: from anybody, or from `peer`. Bits of the tag that are set in `ignore` do not matter.
  Request recv(Memory local, std::uint64_t tag = 0, Peer peer = kAnyPeer, std::uint64_t ignore = 0);

  // Returns once all that was started so far is done; false: `seconds` are over.
  bool flush(double seconds = kForever, Peer peer = kAnyPeer);
  bool progress();  // moves what can be moved without waiting; true if anything moved
  // The link that leads to the peer, and how bytes go there: "tcp.0 (10.0.0.2:4711)".
  std::string way_to(Peer peer);
  void close();  // what is under way fails with ECANCELED. Idempotent

 private:
  enum class Update : std::uint8_t { add, exchange, compare_exchange };
  struct Operands {
    Update what;
    Kind kind;
    const void *value, *expected;  // null: nothing is compared
  };
  Request update(Peer peer, const Operands& operands, const Remote& remote, std::uint64_t offset);

  friend class Request;
  struct State;
  std::shared_ptr<State> state_;
};

FAB_END
