#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string_view>

// What a fuzzer takes its decisions and its bytes from. Past the end everything is zero, so that a short
// input is a short story.
#include "fabric/types/error.h"

namespace fab::test {

class Input {
 public:
  Input(const std::uint8_t* bytes, std::size_t size) : left_(reinterpret_cast<const char*>(bytes), size) {}

  bool empty() const noexcept { return left_.empty(); }
  std::string_view rest() noexcept { return take(left_.size()); }
  std::string_view take(std::size_t most) noexcept {
    const auto taken = left_.substr(0, most);
    left_.remove_prefix(taken.size());
    return taken;
  }
  template <class T>
  T get() noexcept {
    T value{};
    const auto bytes = take(sizeof value);
    if (!bytes.empty()) std::memcpy(&value, bytes.data(), bytes.size());
    return value;
  }
  std::uint8_t byte() noexcept { return get<std::uint8_t>(); }

 private:
  std::string_view left_;
};

// Ends the process with a report that the fuzzer keeps, whatever the build does with assert().
inline void demand(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "does not hold: %s\n", what);
  std::abort();
}

// Runs what may refuse its input, in words.
template <class Call>
void may_refuse(Call&& call) {
  try {
    call();
  } catch (const Error& error) {
    demand(error.what()[0] != 0, "a refusal has words");
  }
}

}  // namespace fab::test
