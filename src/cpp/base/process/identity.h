#pragma once

#include <string>

// What tells whether two processes share something of a machine: they do if the texts are equal. Read anew
// each time, because a process may move to another name space. Throw std::system_error if they cannot be read
// now, for want of descriptors or memory.
namespace fab {

// Kernel, process numbers and user: boot id, pid and user name spaces, uid.
std::string host_identity();

// The loopback network: boot id and network name space.
std::string network_identity();

}  // namespace fab
