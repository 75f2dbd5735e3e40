#pragma once

#include <array>
#include <cstddef>
#include <random>
#include <string>
#include <vector>

#include "providers/shm/harness.h"

// The ways for the bytes of shared memory, and two domains in one process that use one of them.
namespace fab::test {

// Each way, forced; "auto" is what users get.
inline const std::array<std::string, 4> kWays = {"auto", "mapped", "cma", "ring"};

inline std::vector<std::byte> pattern(std::size_t size, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<std::byte> bytes(size);
  for (auto& byte : bytes) byte = static_cast<std::byte>(random());
  return bytes;
}

struct Pair {
  explicit Pair(const std::string& copy) : a(copy), b() { peer = a.knows(b); }
  Side a, b;
  PeerId peer;
};

}  // namespace fab::test
