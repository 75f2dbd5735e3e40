#pragma once

#include <string>

// Texts that tell whether two processes share a part of a machine: they do if their texts are equal. Each
// call reads anew, because a process may move to another name space. Throw std::system_error when descriptors
// or memory run out.
namespace fab {

// Kernel, process numbers and user: boot id, pid and user name spaces, uid.
std::string host_identity();

// The loopback network: boot id and network name space.
std::string network_identity();

}  // namespace fab
