#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>

namespace fab {

// How long a queue was each time after something came into it.
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

// The form of a send, as bits.
namespace send_form {
inline constexpr unsigned kTagged = 1, kInject = 2, kVector = 4, kRemoteData = 8, kForms = 16;
}

// What messages did over one link of a context.
struct LinkCounters {
  std::array<std::uint64_t, send_form::kForms> sends{};  // sends that the link took, by form
  std::uint64_t receives = 0;                            // messages that were matched with a receive
  std::size_t waiting = 0;                               // messages that wait for a receive
  QueueLengths unexpected;                               // how many waited, each time that one more did
};

// By the name of the link ("tcp.0"). References to entries stay valid.
using LinkBook = std::map<std::string, LinkCounters>;

}  // namespace fab
