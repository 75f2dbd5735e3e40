#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>

namespace fab {

// How long a queue was, each time that something had come into it.
struct QueueLengths {
  std::uint64_t entries = 0, sum = 0;
  std::size_t longest = 0;

  void note(std::size_t length) noexcept {
    ++entries;
    sum += length;
    longest = std::max(longest, length);
  }
  double mean() const noexcept {
    return entries ? static_cast<double>(sum) / static_cast<double>(entries) : 0;
  }
};

// Bits of a send's form.
namespace send_form {
inline constexpr unsigned kTagged = 1, kInject = 2, kVector = 4, kRemoteData = 8, kForms = 16;
}

// What messages did over one link of a context (LNX-65).
struct LinkCounters {
  std::array<std::uint64_t, send_form::kForms> sends{};  // that the link took, by form
  std::uint64_t receives = 0;                            // messages that met a receive
  std::size_t waiting = 0;                               // messages that no receive has met
  QueueLengths unexpected;                               // likewise
};

// By the name of the link ("tcp.0"); places are stable.
using LinkBook = std::map<std::string, LinkCounters>;

}  // namespace fab
