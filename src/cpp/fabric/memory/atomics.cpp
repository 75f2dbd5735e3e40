#include "fabric/memory/atomics.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <type_traits>

#include "base/memory/guarded_copy.h"
#include "fabric/memory/local_memory.h"

namespace fab {
namespace {

template <class T>
constexpr bool kInteger = std::is_integral_v<T>;

template <class T>
T arithmetic(AtomicOp op, T old, T operand) noexcept {
  // Sums and products of integers wrap, so they are done without sign.
  const auto wrap = [&](auto combine) {
    if constexpr (kInteger<T>) {
      using Wide = std::make_unsigned_t<std::common_type_t<T, unsigned>>;
      return static_cast<T>(combine(static_cast<Wide>(old), static_cast<Wide>(operand)));
    } else {
      return static_cast<T>(combine(old, operand));
    }
  };
  switch (op) {
    case AtomicOp::min:
      return std::min(old, operand);
    case AtomicOp::max:
      return std::max(old, operand);
    case AtomicOp::sum:
      return wrap([](auto a, auto b) { return a + b; });
    case AtomicOp::prod:
      return wrap([](auto a, auto b) { return a * b; });
    case AtomicOp::lor:
      return static_cast<T>(old != T{} || operand != T{});
    case AtomicOp::land:
      return static_cast<T>(old != T{} && operand != T{});
    case AtomicOp::lxor:
      return static_cast<T>((old != T{}) != (operand != T{}));
    case AtomicOp::atomic_read:
      return old;
    default:
      return operand;  // atomic_write
  }
}

// What the comparing operations store; `compare` is the left side of the relation (fi_atomic(3)).
template <class T>
T compared(AtomicOp op, T old, T operand, T compare) noexcept {
  bool swap = false;
  switch (op) {
    case AtomicOp::cswap:
      swap = compare == old;
      break;
    case AtomicOp::cswap_ne:
      swap = compare != old;
      break;
    case AtomicOp::cswap_le:
      swap = compare <= old;
      break;
    case AtomicOp::cswap_lt:
      swap = compare < old;
      break;
    case AtomicOp::cswap_ge:
      swap = compare >= old;
      break;
    case AtomicOp::cswap_gt:
      swap = compare > old;
      break;
    default:
      break;
  }
  return swap ? operand : old;
}

template <class T>
T combine(AtomicOp op, T old, T operand, T compare) noexcept {
  if constexpr (kInteger<T>) {
    switch (op) {
      case AtomicOp::bor:
        return static_cast<T>(old | operand);
      case AtomicOp::band:
        return static_cast<T>(old & operand);
      case AtomicOp::bxor:
        return static_cast<T>(old ^ operand);
      case AtomicOp::mswap:
        return static_cast<T>((operand & compare) | (old & static_cast<T>(~compare)));
      default:
        break;
    }
  }
  return needs_compare(op) ? compared(op, old, operand, compare) : arithmetic(op, old, operand);
}

// Element types of one size share their bits' atomic type, so that all of them are atomic among each other.
template <class T>
void apply(const AtomicUpdate& update, std::byte* target, std::size_t count, bool& modified) noexcept {
  const auto [op, type, operand, compare, result] = update;
  using Bits =
      std::conditional_t<sizeof(T) == 8, std::uint64_t,
                         std::conditional_t<sizeof(T) == 4, std::uint32_t,
                                            std::conditional_t<sizeof(T) == 2, std::uint16_t, std::uint8_t>>>;
  const auto load = [](const std::byte* from, std::size_t i) {
    T value;
    std::memcpy(&value, from + i * sizeof(T), sizeof(T));
    return value;
  };
  const auto as_value = [](Bits bits) { return __builtin_bit_cast(T, bits); };
  for (std::size_t i = 0; i < count; ++i) {
    std::atomic_ref<Bits> cell(reinterpret_cast<Bits*>(target)[i]);
    const T value = op == AtomicOp::atomic_read ? T{} : load(operand, i);
    Bits old;
    if (op == AtomicOp::atomic_read) {
      old = cell.load();
    } else if (op == AtomicOp::atomic_write) {
      old = cell.exchange(__builtin_bit_cast(Bits, value));
      modified = true;  // like a put of the same bytes
    } else if (kInteger<T> && op == AtomicOp::sum) {
      old = cell.fetch_add(__builtin_bit_cast(Bits, value));
      modified |= value != T{};
    } else {
      const T comparand = compare ? load(compare, i) : T{};
      old = cell.load();
      Bits next;
      do {
        next = __builtin_bit_cast(Bits, combine(op, as_value(old), value, comparand));
      } while (!cell.compare_exchange_weak(old, next));
      modified |= next != old;
    }
    if (result) std::memcpy(result + i * sizeof(T), &old, sizeof(T));
  }
}

constexpr std::size_t kStep = 256;  // bytes of an update whose operands are copied at once

// Copies bytes [at, at + bytes) of a transfer's local memory. Returns false if any of them are gone.
bool copy_local(const Transfer& transfer, std::size_t at, std::byte* to, std::size_t bytes) noexcept {
  if (transfer.piece_count == 0) return copy_guarded(to, transfer.local + at, bytes);
  PieceCursor from = local_of(transfer);
  from.skip(at);
  return gather(from, to, bytes);
}

}  // namespace

bool atomic_supported(AtomicOp op, DataType type) noexcept {
  if (static_cast<int>(op) >= kAtomicOps || static_cast<int>(type) >= kDataTypes) return false;
  const bool floating = type == DataType::f32 || type == DataType::f64;
  const bool bitwise =
      op == AtomicOp::bor || op == AtomicOp::band || op == AtomicOp::bxor || op == AtomicOp::mswap;
  return !(floating && bitwise);
}

Errc apply_atomic(const AtomicUpdate& update, std::byte* target, std::size_t length,
                  bool* modified) noexcept {
  bool ignored = false;
  bool& changed = modified ? *modified : ignored;
  if (!atomic_supported(update.op, update.type)) return Errc::not_supported;
  const std::size_t size = size_of(update.type);
  if (reinterpret_cast<std::uintptr_t>(target) % size != 0 || length % size != 0) return Errc::invalid;
  if (needs_compare(update.op) && !update.compare) return Errc::invalid;
  const std::size_t count = length / size;
  switch (update.type) {
    case DataType::i8:
      apply<std::int8_t>(update, target, count, changed);
      break;
    case DataType::u8:
      apply<std::uint8_t>(update, target, count, changed);
      break;
    case DataType::i16:
      apply<std::int16_t>(update, target, count, changed);
      break;
    case DataType::u16:
      apply<std::uint16_t>(update, target, count, changed);
      break;
    case DataType::i32:
      apply<std::int32_t>(update, target, count, changed);
      break;
    case DataType::u32:
      apply<std::uint32_t>(update, target, count, changed);
      break;
    case DataType::i64:
      apply<std::int64_t>(update, target, count, changed);
      break;
    case DataType::u64:
      apply<std::uint64_t>(update, target, count, changed);
      break;
    case DataType::f32:
      apply<float>(update, target, count, changed);
      break;
    case DataType::f64:
      apply<double>(update, target, count, changed);
      break;
  }
  return Errc::ok;
}

Errc apply_atomic(const Transfer& transfer, std::byte* target, bool* modified) noexcept {
  std::byte operand[kStep], compare[kStep], result[kStep];
  const AtomicUpdate update{.op = transfer.atomic,
                            .type = transfer.type,
                            .operand = operand,
                            .compare = transfer.op == OpCode::compare_atomic ? compare : nullptr,
                            .result = transfer.op == OpCode::atomic ? nullptr : result};
  const auto copy_operands = [&](std::size_t at, std::size_t bytes) {
    if (update.op != AtomicOp::atomic_read && !copy_local(transfer, at, operand, bytes)) return false;
    return !update.compare || copy_guarded(compare, transfer.compare + at, bytes);
  };
  const auto apply_step = [&](std::size_t at, std::size_t bytes) {
    const Errc outcome = apply_atomic(update, target + at, bytes, modified);
    if (outcome != Errc::ok || !update.result) return outcome;
    return copy_guarded(transfer.result + at, result, bytes) ? Errc::ok : Errc::bounds;
  };
  const std::size_t length = transfer.length;
  if (length <= kStep) return copy_operands(0, length) ? apply_step(0, length) : Errc::bounds;
  if (length % size_of(transfer.type) != 0) return Errc::invalid;
  for (std::size_t at = 0; at < length; at += kStep) {
    const std::size_t bytes = std::min(kStep, length - at);
    if (!copy_operands(at, bytes)) return Errc::bounds;
    std::byte* const into = transfer.result + at;
    if (update.result && !(copy_guarded(result, into, bytes) && copy_guarded(into, result, bytes)))
      return Errc::bounds;
  }
  for (std::size_t at = 0; at < length; at += kStep) {
    const std::size_t bytes = std::min(kStep, length - at);
    const Errc outcome = copy_operands(at, bytes) ? apply_step(at, bytes) : Errc::bounds;
    if (outcome != Errc::ok) return outcome;
  }
  return Errc::ok;
}

}  // namespace fab
