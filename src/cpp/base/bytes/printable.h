#pragma once

#include <array>
#include <string>
#include <string_view>

namespace fab {

// Text whose control characters are escaped (`\x1b`), for what others chose and people read: a terminal would
// obey them, and a zero byte would end a message. What is not UTF-8 stays as it is.
inline std::string printable(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    // Those from U+0080 to U+009F have two bytes, of which the first is 0xc2.
    const bool second =
        byte >= 0x80 && byte < 0xa0 && i != 0 && static_cast<unsigned char>(text[i - 1]) == 0xc2;
    if (byte >= 0x20 && byte != 0x7f && !second) {
      out.push_back(text[i]);
      continue;
    }
    static constexpr char kDigits[] = "0123456789abcdef";
    if (second) out.pop_back();
    out.append("\\x").push_back(kDigits[byte >> 4]);
    out.push_back(kDigits[byte & 15]);
  }
  return out;
}

}  // namespace fab
