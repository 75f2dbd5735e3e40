#pragma once

#include <map>
#include <string>

namespace fab::lnx {

// Switches of linked domains: "lnx_disable_shm" and "lnx_use_srq" in DomainOptions::settings, else
// $FI_LNX_DISABLE_SHM and $FI_LNX_USE_SRQ.
struct LinkSettings {
  bool disable_shm = false;     // peers on the node are reached over the network as well
  bool shared_receives = true;  // false: every receive has to name its source

  // Throws Error(invalid) for what is neither yes nor no.
  static LinkSettings of(const std::map<std::string, std::string>& settings);
};

}  // namespace fab::lnx
