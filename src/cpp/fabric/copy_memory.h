#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace fab {

// Copies between registered memory and the library's own buffers: the one way in which messages touch memory
// of the user with the CPU. Aligned scalars go in one access, so that a reader of the memory never sees half
// of one.
inline void copy_memory(void* to, const void* from, std::size_t size) noexcept {
  const auto whole = [&]<class T>(T) {
    if ((reinterpret_cast<std::uintptr_t>(to) | reinterpret_cast<std::uintptr_t>(from)) % sizeof(T) == 0) {
      __atomic_store_n(static_cast<T*>(to), __atomic_load_n(static_cast<const T*>(from), __ATOMIC_RELAXED),
                       __ATOMIC_RELAXED);
    } else if (reinterpret_cast<std::uintptr_t>(to) % sizeof(T) == 0) {
      T value;
      std::memcpy(&value, from, sizeof value);
      __atomic_store_n(static_cast<T*>(to), value, __ATOMIC_RELAXED);
    } else if (reinterpret_cast<std::uintptr_t>(from) % sizeof(T) == 0) {
      const T value = __atomic_load_n(static_cast<const T*>(from), __ATOMIC_RELAXED);
      std::memcpy(to, &value, sizeof value);
    } else {
      std::memcpy(to, from, sizeof(T));
    }
  };
  switch (size) {
    case 0:
      return;
    case 2:
      return whole(std::uint16_t{});
    case 4:
      return whole(std::uint32_t{});
    case 8:
      return whole(std::uint64_t{});
    default:
      std::memcpy(to, from, size);
  }
}

}  // namespace fab
