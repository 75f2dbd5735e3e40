#pragma once

#include <rdma/fabric.h>
#include <rdma/providers/fi_log.h>
#include <rdma/providers/fi_prov.h>

#include <cstdint>
#include <string>

// The libfabric that has loaded this library. Nothing of it is linked, since it may be one that the program
// has opened for itself, with symbols that nobody else sees: its functions are found through the address of
// whoever calls fi_prov_ini().
namespace fab::fi {

// Finds the functions of the library that holds `caller`. Without them nothing is logged.
void find_loader(const void* caller) noexcept;
// The interface that it offers (fi_version()); FI_VERSION(1, 17) where it could not be asked.
std::uint32_t loader_version() noexcept;

// The provider as libfabric knows it, whose name the log shows.
fi_provider& this_provider() noexcept;

// Writes one line to the log of the provider, where FI_LOG_LEVEL asks for it. Never throws.
void log(fi_log_level level, fi_log_subsys subsystem, const std::string& text) noexcept;
// The same of a call that failed; needs no memory.
void log_failure(fi_log_subsys subsystem, const char* call, const char* what) noexcept;

}  // namespace fab::fi
