#pragma once

#include <array>
#include <cstddef>
#include <string>
#include <string_view>

namespace fab::test {

// What a run has to say: in memory that the process shares with the one that looks after it.
struct Findings {
  std::array<char, 240> errors{};  // what the calls and operations of the run failed with
  std::array<char, 480> wrong{};   // what must not be; empty: nothing
  void note(std::string_view what, std::string_view error) noexcept;
  void blame(std::string_view what, std::string_view why) noexcept;
};

inline constexpr const char* kLinks[] = {"shm",           "shm-cma", "shm-ring", "tcp",
                                         "tcp-encrypted", "shm+tcp", "rails",    "verbs:mock0"};

// Two domains of this process over the link do everything with each other that operations can do, and close.
// What fails is tried again, and has to succeed then; every operation has one outcome, and it is true.
void run_scenario(const std::string& link, Findings& findings);

}  // namespace fab::test
