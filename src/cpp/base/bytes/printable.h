#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace fab {

// How many bytes a character takes at the beginning of the text if a reader would obey it in place of seeing
// it: control characters, which end messages and steer terminals; ends of lines; and what turns the direction
// of letters, so that the text reads as another one. 0: it is shown, or it is no UTF-8.
inline std::size_t length_of_command(std::string_view text) noexcept {
  const auto at = [&](std::size_t i) { return i < text.size() ? static_cast<unsigned char>(text[i]) : 0u; };
  const unsigned first = at(0), second = at(1), third = at(2);
  if (first < 0x20 || first == 0x7f) return 1;
  if (first == 0xc2 && second >= 0x80 && second < 0xa0) return 2;  // U+0080 to U+009F
  if (first == 0xd8 && second == 0x9c) return 2;                   // U+061C
  if (first != 0xe2) return 0;
  const bool command = (second == 0x80 && third >= 0x8b && third <= 0x8f) ||  // U+200B to U+200F
                       (second == 0x80 && third >= 0xa8 && third <= 0xae) ||  // U+2028 to U+202E
                       (second == 0x81 && third >= 0xa0 && third <= 0xaf);    // U+2060 to U+206F
  return command ? 3 : 0;
}

// Text that others chose and people read, with the bytes of such characters escaped (`\x1b`). What is not
// UTF-8 stays as it is.
inline std::string printable(std::string_view text) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) {
    std::size_t command = length_of_command(text);
    if (command == 0) {
      out.push_back(text.front());
      text.remove_prefix(1);
    }
    for (; command != 0; --command, text.remove_prefix(1)) {
      const auto byte = static_cast<unsigned char>(text.front());
      out.append("\\x").push_back(kDigits[byte >> 4]);
      out.push_back(kDigits[byte & 15]);
    }
  }
  return out;
}

}  // namespace fab
