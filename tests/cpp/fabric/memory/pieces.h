#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <vector>

// Bytes of a test, and pieces of them.
namespace fab::test {

using Bytes = std::vector<std::byte>;

inline iovec piece(Bytes& bytes, std::size_t offset, std::size_t length) {
  return {bytes.data() + offset, length};
}
inline std::uint64_t address(const void* at) { return reinterpret_cast<std::uint64_t>(at); }
inline std::byte* view(const iovec& piece) { return static_cast<std::byte*>(piece.iov_base); }

}  // namespace fab::test
