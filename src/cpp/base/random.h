#pragma once

#include <sys/random.h>

#include <cstddef>
#include <cstdint>
#include <stdexcept>

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

inline std::uint64_t random_u64() {
  std::uint64_t value;
  fill_random(&value, sizeof value);
  return value;
}

}  // namespace fab
