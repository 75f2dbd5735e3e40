#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace fab::shm {

// One element of 1, 2, 4 or 8 bytes: not torn where both ends are aligned, and in order with the copies before it.
template <class T>
inline void copy_word(std::byte* to, const std::byte* from) noexcept {
  const auto aligned = [](const void* at) { return reinterpret_cast<std::uintptr_t>(at) % sizeof(T) == 0; };
  T value;
  if (aligned(from))
    value = __atomic_load_n(reinterpret_cast<const T*>(from), __ATOMIC_ACQUIRE);
  else
    std::memcpy(&value, from, sizeof value);
  if (aligned(to))
    __atomic_store_n(reinterpret_cast<T*>(to), value, __ATOMIC_RELEASE);
  else
    std::memcpy(to, &value, sizeof value);
}

template <std::size_t kSize>
inline void copy_both_ends(std::byte* to, const std::byte* from, std::size_t size) noexcept {
  std::byte head[kSize], tail[kSize];
  std::memcpy(head, from, kSize);
  std::memcpy(tail, from + size - kSize, kSize);
  std::memcpy(to, head, kSize);
  std::memcpy(to + size - kSize, tail, kSize);
}

// memcpy for memory that others use at the same time; small sizes without a call.
inline void copy_bytes(std::byte* to, const std::byte* from, std::size_t size) noexcept {
  if (size == 8) return copy_word<std::uint64_t>(to, from);
  if (size > 64) {
    std::memcpy(to, from, size);
    return;
  }
  if (size > 32) return copy_both_ends<32>(to, from, size);
  if (size > 16) return copy_both_ends<16>(to, from, size);
  if (size > 8) return copy_both_ends<8>(to, from, size);
  if (size == 4) return copy_word<std::uint32_t>(to, from);
  if (size > 4) return copy_both_ends<4>(to, from, size);
  if (size == 2) return copy_word<std::uint16_t>(to, from);
  if (size == 3) copy_word<std::uint16_t>(to + 1, from + 1);
  if (size) copy_word<std::uint8_t>(to, from);
}

}  // namespace fab::shm
