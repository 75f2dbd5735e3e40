#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>

#include "fab/api.h"
#include "fab/error.h"

FAB_BEGIN
// The handle of a peer in an endpoint.
enum class Peer : std::uint64_t {};
inline constexpr Peer kAnyPeer{~std::uint64_t{0}};

// The types that peers can update.
template <class Type>
concept Element = std::is_arithmetic_v<Type> && !std::is_same_v<Type, bool> &&
                  !std::is_same_v<Type, long double> && sizeof(Type) <= 8;

// Such a type, for what is no template.
struct Kind {
  std::uint8_t size = 0;  // bytes
  bool is_signed = false, is_float = false;
  bool operator==(const Kind&) const = default;
  template <Element Type>
  static constexpr Kind of() {
    return {sizeof(Type), std::is_signed_v<Type>, std::is_floating_point_v<Type>};
  }
};

// An operation that was started, and its one outcome. It keeps the memory that was moved in, and one that is
// dropped goes on. Where memory was borrowed, the end of the object waits until the operation is done,
// because the memory may go next; a receive is canceled before, if no message has met it. One thread at a
// time uses it.
class [[nodiscard]] FAB_API Request {
 public:
  Request(Request&&) noexcept;
  Request& operator=(Request&&) noexcept;
  ~Request();

  bool done() const noexcept;
  // Moves the endpoint until the operation is done; false: `seconds` are over. Does not tell whether it
  // succeeded.
  bool wait_for(double seconds) const;
  // Returns once the operation has succeeded: for puts and updates, once it is visible at the target. Throws
  // Error: how it failed, or ETIMEDOUT, after which the operation goes on.
  void wait(double seconds = kForever) const;
  // How it failed, in the words of wait(); empty: not done, or it succeeded.
  std::string error() const;
  void cancel();  // a receive that no message has met yet; its outcome is ECANCELED

  // --- once it has succeeded
  std::size_t size() const;   // bytes that were moved
  Peer source() const;        // who sent a message; kAnyPeer: one that this endpoint does not know
  std::uint64_t tag() const;  // of a message
  // The former value, of a fetching update of that type. Throws Error(EINVAL) for another one.
  template <Element Value>
  Value value() const {
    Value value;
    std::memcpy(&value, fetched(Kind::of<Value>()), sizeof value);
    return value;
  }

 private:
  friend class Endpoint;
  struct State;
  class Dropped;
  explicit Request(std::unique_ptr<State> state) noexcept;
  const State& succeeded() const;
  const std::byte* fetched(Kind kind) const;
  void let_go() noexcept;
  std::unique_ptr<State> state_;  // null: moved from
};

FAB_END
