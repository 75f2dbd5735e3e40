#pragma once

#include <sys/random.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "base/process/process.h"

namespace fab {

// Bytes that nobody can guess, from the kernel.
inline void fill_random(void* out, std::size_t size) {
  auto* bytes = static_cast<unsigned char*>(out);
  while (size) {
    const auto got = ::getrandom(bytes, size, 0);
    if (got < 0) continue;  // only EINTR is possible here (getrandom(2))
    bytes += got;
    size -= static_cast<std::size_t>(got);
  }
}

// A number that nobody can guess. Each thread takes it from a supply of its own. Numbers leave the supply
// with their use, and a child of fork() starts a new supply, so none is given out twice.
inline std::uint64_t random_u64() {
  struct Supply {
    std::array<std::uint64_t, 32> values;  // 256 bytes, which the kernel gives without being interrupted
    std::size_t left = 0;
    std::uint32_t generation = 0;
  };
  thread_local Supply supply;
  if (supply.left == 0 || supply.generation != fork_generation()) {
    fill_random(supply.values.data(), sizeof supply.values);
    supply.left = supply.values.size();
    supply.generation = fork_generation();
  }
  return std::exchange(supply.values[--supply.left], 0);
}
inline std::uint64_t nonzero_random_u64() {
  for (;;)
    if (const std::uint64_t value = random_u64()) return value;
}

}  // namespace fab
