#pragma once

#include <memory>
#include <string>

#include "fabric/address_vector/address_vector.h"

namespace fab {

// The memory of an address vector that processes of one user share by name (fi_av(3)): a file in /dev/shm,
// readable by this user only, which goes with the last process that has it open. Throws Error: not_found with
// `read_only` if nobody has it open, invalid if it was made with other options, access if the file is not
// this user's alone, no_memory.
struct VectorName {
  std::string domain, name;
  bool read_only = false;
  std::uint64_t map_address = 0;  // 0: what the process chose, or chooses, that makes the file
};
std::unique_ptr<PeerMemory> open_named_peer_memory(const VectorName& name,
                                                   const AddressVectorOptions& options);

// The file of a name, for tests and for whoever looks after the machine.
std::string named_vector_path(const VectorName& name);

}  // namespace fab
