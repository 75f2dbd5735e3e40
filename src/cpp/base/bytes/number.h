#pragma once

#include <charconv>
#include <optional>
#include <string_view>
#include <system_error>

namespace fab {

// The number that a text is from end to end, in decimal; nothing for any other text, nor for one that T
// cannot hold.
template <class T>
std::optional<T> number_in(std::string_view text) noexcept {
  T number{};
  const char* const end = text.data() + text.size();
  const auto read = std::from_chars(text.data(), end, number);
  return read.ec == std::errc() && read.ptr == end ? std::optional(number) : std::nullopt;
}

}  // namespace fab
