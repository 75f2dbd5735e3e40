#pragma once

#include <charconv>
#include <cstdint>
#include <string>

namespace fab {

// "0x2a": how keys are shown, which are random bits.
inline std::string hex(std::uint64_t value) {
  char text[17];
  return std::string("0x").append(text, std::to_chars(text, text + sizeof text, value, 16).ptr);
}

}  // namespace fab
