#pragma once

#include <memory>
#include <string>

#include "fabric/address_vector/address_vector.h"

namespace fab {

// The memory of an address vector that processes of one user share by name (fi_av(3), AV-63 … AV-72): a file
// in /dev/shm, readable by this user only, which goes with the last process that has it open. Throws Error:
// not_found if it shall be read only and nobody has it open, invalid if it was made with other options,
// access if the file is not this user's alone, no_memory.
struct VectorName {
  std::string domain, name;
  bool read_only = false;
  std::uint64_t map_address = 0;  // 0: whatever the maker chose, or chooses
};
std::unique_ptr<PeerMemory> open_named_peer_memory(const VectorName& name,
                                                   const AddressVectorOptions& options);

// For tests and for those who look after a machine: the file of a name.
std::string named_vector_path(const VectorName& name);

}  // namespace fab
