#pragma once

#include <cstdint>

#include "base/process/process.h"

// Processes that a scenario makes up, in place of those of the machine: this file's source stands for
// base/process/process.cpp. This process is one of them, and lives.
namespace model {

inline constexpr std::int32_t kFirstProcess =
    4'000'000;  // larger than the number of any process of the machine
inline constexpr unsigned kProcesses = 4;

fab::ProcessId process(unsigned number) noexcept;
// As the kernel tells it: whoever sees that a process has ended sees what it did before.
void end_process(unsigned number) noexcept;
void revive_processes() noexcept;  // for setup()

}  // namespace model
