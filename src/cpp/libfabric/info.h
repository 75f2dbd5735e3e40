#pragma once

#include <rdma/fabric.h>

#include <cstdint>
#include <memory>
#include <string>

#include "fabric/types/types.h"
#include "libfabric/plugin/socket_wish.h"

// What fi_getinfo(3) tells: what the provider offers, and what of it a program has asked for.
namespace fab::fi {

inline constexpr const char* kFabricName = "pyfab";

struct FreeInfo {
  void operator()(fi_info* info) const noexcept;
};
// In memory of malloc(), part by part, as fi_freeinfo(3) gives it back. Every part has spare room, because
// later versions of libfabric have longer structures and copy them whole.
using InfoPtr = std::unique_ptr<fi_info, FreeInfo>;

// What a domain over these links offers to a program that asks for this version of the interface, within
// `hints` (may be null), with addresses as it wishes. Null: not what they ask for; `why` says what.
InfoPtr offer(const Info& links, std::uint32_t version, const fi_info* hints, const SocketWish& sockets,
              std::string& why);
// The links of a domain as they are written in settings, which is the name that it has in libfabric.
std::string domain_name(const Info& links);

}  // namespace fab::fi
